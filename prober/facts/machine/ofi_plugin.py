"""NCCL's plugin for libfabric: where it is installed, and its version, which decides what NCCL calls its network."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holmes_core.records.inventory import OfiPlugin
from prober.asking.commands import Command
from prober.asking.recording import Recorded

# Where installers put it: AWS's, by version; a build by hand; distributions; Slingshot sites.
_FOLDERS = (
    *(
        "/opt/amazon/ofi-nccl/lib",
        "/opt/amazon/ofi-nccl/lib64",
        "/opt/amazon/ofi-nccl/lib/*",
        "/opt/amazon/*ofi-nccl/lib",
    ),
    *("/opt/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib64", "/usr/local/lib", "/usr/local/lib64"),
    *("/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu"),
)
_NAME = "aws-ofi-nccl"
# The library says its name and version in the text that it logs when it is loaded.
OFI_PLUGINS = Command(
    f"grep -aoHsE '{_NAME} [0-9A-Za-z.+-]+' {' '.join(f'{folder}/libnccl-net*.so' for folder in _FOLDERS)}"
)


def read_ofi_plugins(outputs: Iterable[Recorded]) -> tuple[OfiPlugin, ...] | None:
    """The libraries in order of the folders, each once; None where nobody looked."""
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
