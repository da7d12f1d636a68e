"""NCCL's network plugins: library files in the folders of the loader or of usual installations.

The version of aws-ofi-nccl, the plugin for libfabric, is read too, because NCCL's name for the network depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import OfiPlugin
from prober.asking.commands import Command
from prober.asking.recording import Recorded

_FILE = "libnccl-net*.so*"
# Folders of the packages and images of AWS, Google and HPC-X. The loader's cache may lack them all.
_USUAL = (
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/ofi-nccl/lib/*-linux-gnu"),
    *("/opt/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/install/lib", "/usr/local/gib/lib64", "/var/lib/tcpxo/lib64"),
    *("/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib", "/usr/local/nvidia/lib64"),
)
_FILES = " ".join(f"{folder}/{_FILE}" for folder in _USUAL)
_FOUND = (
    "{ ldconfig -p | grep -o '/[^ ]*/libnccl-net[^/]*$'; "
    f"ls -d $(echo \"$LD_LIBRARY_PATH\" | tr : '\\n' | sed 's|.$|&/{_FILE}|') {_FILES}; }} 2>/dev/null | sort -u"
)
_OFI = "aws-ofi-nccl"
# The library contains its name and version in a text that it logs when it is loaded.
_SEARCH = f"grep -aoHsE '{_OFI} [0-9A-Za-z.+-]+'"
_SHOWN_FILES = f"[library folders]/{_FILE}"
PLUGINS = Command(
    f'for file in $({_FOUND}); do echo "$file"; {_SEARCH} "$file"; done; :',
    shown=f"ls -d {_SHOWN_FILES}; {_SEARCH} {_SHOWN_FILES}",
)


def read_nccl_plugins(outputs: Sequence[Recorded]) -> tuple[str, ...] | None:
    """Return the paths of the plugins, or None if they were not looked for."""
    asked = [output for output in outputs if "libnccl-net" in output.command or _OFI in output.command]
    found = re.findall(
        r"(?:^|\s)(/[^\s:]*/libnccl-net[\w.-]*\.so[\d.]*)(?=\s|$)", "\n".join(output.plain for output in asked)
    )
    return tuple(dict.fromkeys(found)) if asked else None


def read_ofi_plugins(outputs: Iterable[Recorded]) -> tuple[OfiPlugin, ...] | None:
    """Return the plugins of aws-ofi-nccl in order, each once, or None if the files were not searched."""
    asked = [
        output for output in outputs if _SEARCH in output.command or (output.tool == "grep" and _OFI in output.command)
    ]
    if not asked:
        return None
    versions: dict[str, list[str]] = {}
    for output in asked:
        for line in output.whole_lines:
            if match := re.fullmatch(rf"(/[^:]+):{_OFI} ([0-9A-Za-z.+-]+)", line.strip()):
                versions.setdefault(match.group(1), []).append(match.group(2))
    # A build of the sources between releases has no version.
    return tuple(
        OfiPlugin(path=path, version=next((word for word in words if re.match(r"\d+\.\d", word)), None))
        for path, words in versions.items()
    )
