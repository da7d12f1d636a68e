"""The kernel log: lines on GPUs, NVSwitches, NICs and PCI Express that are faults, or say that one has passed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prober.asking.commands import Command
from prober.asking.recording import Recorded

# Extended regular expressions, for grep on the host and for Python here.
_FAULTS = (
    "NVRM: .*(Xid|rm_?init_?adapter failed|memory onlining|onlining failed|not supported by|open kernel modules)",
    "NVRM: .*(API mismatch|BAR[0-9] is 0M|fallen off the bus)",
    "SXid",
    "nvidia-peermem.*invalid context",
    "limited by .*PCIe",
    "(mlx5|bnxt|ionic)[^ ]* .*(insufficient power|port module event|health compromised|fatal error|temperature)",
    "AER: .*error|PCIe Bus Error",
)
MAX_LINES = 1000  # the newest; a link that reports every corrected error fills the log with them
_PATTERNS = " ".join(f"-e '{fault}'" for fault in _FAULTS)
LOG = Command(f"dmesg | grep -iE {_PATTERNS} | tail -n {MAX_LINES}", when="command -v dmesg >/dev/null 2>&1")
_LINE = re.compile("|".join((*_FAULTS, "infoROM is corrupted")), re.IGNORECASE)


def read_warnings(outputs: Sequence[Recorded]) -> tuple[str, ...]:
    """Lines of nvidia-smi and the kernel log that are faults in themselves."""
    lines: list[str] = []
    for output in outputs:
        if output.tool in ("nvidia-smi", "dmesg", "journalctl"):
            lines += [line.strip()[:300] for line in output.lines if _LINE.search(line)][-MAX_LINES:]
    return tuple(dict.fromkeys(lines))
