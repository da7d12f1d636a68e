"""NCCL's network plugins, such as aws-ofi-nccl: library files where the loader, or a usual installation, has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prober.asking.commands import Command
from prober.asking.recording import Recorded

_FILE = "libnccl-net*.so*"
# Where the AWS, Google and HPC-X packages and images put it, none of which the loader's cache need know.
_USUAL = (
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/ofi-nccl/lib/*-linux-gnu"),
    *("/opt/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/install/lib", "/usr/local/gib/lib64", "/var/lib/tcpxo/lib64"),
    *("/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib", "/usr/local/nvidia/lib64"),
)
_FILES = " ".join(f"{folder}/{_FILE}" for folder in _USUAL)
PLUGINS = Command(
    "{ ldconfig -p | grep -o '/[^ ]*/libnccl-net[^/]*$'; "
    f"ls -d $(echo \"$LD_LIBRARY_PATH\" | tr : '\\n' | sed 's|.$|&/{_FILE}|') {_FILES}; }} 2>/dev/null | sort -u",
    shown=f"ls -d [library folders]/{_FILE}",
)


def read_nccl_plugins(outputs: Sequence[Recorded]) -> tuple[str, ...] | None:
    """Their paths; None where nobody looked for them."""
    asked = [output for output in outputs if "libnccl-net" in output.command or "aws-ofi-nccl" in output.command]
    found = re.findall(
        r"(?:^|\s)(/[^\s:]*/libnccl-net[\w.-]*\.so[\d.]*)(?=\s|$)", "\n".join(output.plain for output in asked)
    )
    return tuple(dict.fromkeys(found)) if asked else None
