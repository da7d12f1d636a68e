"""Python and torch where the run would use them."""

from __future__ import annotations

import re
import shlex

from holmes_core.inventory import Software
from prober.facts.question import Command, Output

_ASK = """
import platform
print("python", platform.python_version())
import importlib.util
if importlib.util.find_spec("torch"):
    import importlib.metadata
    print("torch", importlib.metadata.version("torch"))
"""

HOSTNAME = Command("hostname", "uname -n")


def software_command(python: str) -> Command:
    """Asks `python` (a path or name) for versions, without importing torch: that would take seconds."""
    return Command("software", f"{shlex.quote(python)} -c {shlex.quote(_ASK)}")


def parse_software(output: Output) -> Software:
    """Versions; None for what is not there."""
    found = dict(re.findall(r"^(python|torch) (\S+)$", output.text, flags=re.MULTILINE))
    return Software(python=found.get("python"), torch=found.get("torch"))
