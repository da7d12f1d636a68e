"""The versions of Python, torch, CUDA and NCCL in the run's environment, and of OFED."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from holmes_core.records.access import Access
from holmes_core.records.inventory import Software
from prober.asking.commands import Command, in_root
from prober.asking.recording import Recorded

# torch is not imported, because that would take seconds.
_ASK = (
    "import sys, re, pathlib, platform, importlib.util as u, importlib.metadata as m; "
    'print("python", platform.python_version()); '
    's = u.find_spec("torch"); '
    's and print("torch", m.version("torch")); '
    'p = s and s.origin and pathlib.Path(s.origin).with_name("version.py"); '
    't = p.read_text() if p and p.exists() else ""; '
    'c = re.search(r"^cuda\\b[^=]*= *.([0-9.]+)", t, re.M); '
    'c and print("cuda", c.group(1)); '
    '[print("nccl", d.version) for d in m.distributions(path=[str(p.parent.parent)] if p else []) '
    'if str(d.metadata["Name"]).startswith("nvidia-nccl-cu")]; '
    'exec("try:\\n import ctypes; ctypes.CDLL(\\"libibverbs.so.1\\")\\nexcept OSError as e: print(\\"verbs\\", e)")'
)

SHOWN_LINES, MAX_SHOWN = 3, 400  # lines and characters of a failed start's message

OFED = Command("ofed_info -s", limited=True, when="command -v ofed_info >/dev/null 2>&1")


def software_command(access: Access) -> Command:
    """Return the command that asks the Python of `access` for versions in the environment of ranks.

    That is after its activation line and in its container. A missing image is not fetched.
    """
    ask = f"{access.python_word} -c {shlex.quote(_ASK)}"
    if access.container is not None:
        run = "docker run --rm --pull never" if access.container.engine == "docker" else "apptainer exec"
        words = " ".join(shlex.quote(word) for word in (*access.container.options, access.container.image))
        ask = f"{run} {words} {ask}"
    if access.activate is not None:
        return Command(f"bash -lc {shlex.quote(f'{access.activate} && cd / && {ask}')}", limited=True)
    return Command(in_root(ask), limited=True, shown=ask)


def read_python_failure(outputs: Sequence[Recorded]) -> str | None:
    """Return the last lines of a shell, container or Python that failed, or None if it did not."""
    failed = [output for output in outputs if output.asks_python and output.exit_code not in (0, None)]
    lines = [line.strip() for line in failed[-1].plain.splitlines() if line.strip()] if failed else []
    return " | ".join(lines[-SHOWN_LINES:])[:MAX_SHOWN] or None


def read_software(outputs: Sequence[Recorded]) -> Software:
    """Return the versions, None for missing software."""
    found: dict[str, str] = {}
    for output in outputs:
        if output.asks_python:
            found.update(re.findall(r"^(python|torch|cuda|nccl) (\S+)$", output.plain, flags=re.MULTILINE))
        elif output.tool == "ofed_info" and output.exit_code in (0, None):
            found["ofed"] = output.plain.strip().rstrip(":")[:100]
    return Software(**{name: found.get(name) or None for name in Software.model_fields})
