"""NCCL's plugin for libfabric: its version decides what NCCL calls its network."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holmes_core.records.inventory import OfiPlugin
from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.machine import nccl_plugins

_NAME = "aws-ofi-nccl"
# The library says its name and version in the text that it logs when it is loaded.
_SEARCH = f"grep -aoHsE '{_NAME} [0-9A-Za-z.+-]+'"
OFI_PLUGINS = Command(
    f"{_SEARCH} $({nccl_plugins.PLUGINS.shell}) /dev/null", shown=f"{_SEARCH} [library folders]/libnccl-net*.so*"
)


def read_ofi_plugins(outputs: Iterable[Recorded]) -> tuple[OfiPlugin, ...] | None:
    """The libraries in order, each once; None where nobody looked."""
    asked = [output for output in outputs if output.tool == "grep" and _NAME in output.command]
    if not asked:
        return None
    versions: dict[str, list[str]] = {}
    for output in asked:
        for line in output.whole_lines:
            if match := re.fullmatch(rf"(/[^:]+):{_NAME} ([0-9A-Za-z.+-]+)", line.strip()):
                versions.setdefault(match.group(1), []).append(match.group(2))
    return tuple(OfiPlugin(path=path, version=_version(words)) for path, words in versions.items())


def _version(words: Iterable[str]) -> str | None:
    """The word that begins with a number; what was built from the sources between releases has none."""
    return next((word for word in words if re.match(r"\d+\.\d", word)), None)
