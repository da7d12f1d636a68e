"""Messages that are signs of a fault or of a choice, by name, from `fault_signs.yaml`; and warnings that are none."""

from __future__ import annotations

import re
from importlib.resources import files

import yaml

from prober.nccl_logs.nccl_lines import NcclMessage

SIGNS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (sign, needle, re.compile(form))
    for sign, needle, form in yaml.safe_load(files(__package__).joinpath("fault_signs.yaml").read_text("utf-8"))
)

_HARMLESS = re.compile(
    r"ras/|bind failed: Address already in use|gdrcopy|gdrdrv|libgdrapi"
    r"|[Pp]ort active|PORT_ACTIVE|path migration|communication established|WQE reached|queue drained"
    r"|SM change|LID change|GID table change|client reregistration|P_Key"
    r"|NUMA auto balancing|iommu=pt|LD_LIBRARY_PATH|Could not find real path|ibv_set_ece|Accept failed"
    r"|Failed to execute operation|Socket recv failed while polling|Error encountered progressing|Proxy Call to rank"
    r"|Could not receive type from localRank|Mismatched response size|comm \S+ has already been destroyed"
    r"|Attempt to use communicator before|fatal error \(detected in|Cannot get incoming CPU|Maximum retry reached for|ctrl timeout cnt|Missing \"?.*tuner|NCCL_TUNER|msccl"
)


def is_harmless(message: NcclMessage) -> bool:
    """Return True for warnings that occur in sound runs, and for those that only follow another."""
    return bool(_HARMLESS.search(f"{message.source} {message.text}"))
