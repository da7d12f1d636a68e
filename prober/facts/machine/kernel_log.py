"""Lines of the kernel log on faults of GPUs, NVSwitches, NICs and PCI Express, or on the end of a fault."""

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
MAX_LINES = 1000  # the newest, and as many on PCI Express, where a link may report every corrected error
_PCIE = "AER: |PCIe Bus Error"
_PATTERNS = " ".join(f"-e '{fault}'" for fault in _FAULTS)
_FIRST_PCIE = f"awk '!/{_PCIE}/ || ++n <= {MAX_LINES}'"
LOG = Command(
    f"dmesg | grep -iE {_PATTERNS} | {_FIRST_PCIE} | tail -n {2 * MAX_LINES}", when="command -v dmesg >/dev/null 2>&1"
)
_LINE = re.compile("|".join((*_FAULTS, "infoROM is corrupted")), re.IGNORECASE)


def read_warnings(outputs: Sequence[Recorded]) -> tuple[str, ...]:
    """Return the lines of nvidia-smi and the kernel log that report faults."""
    lines: list[str] = []
    for output in outputs:
        if output.tool in ("nvidia-smi", "dmesg", "journalctl"):
            found = [line.strip()[:300] for line in _since_boot(output.lines) if _LINE.search(line)]
            pcie = [line for line in found if re.search(_PCIE, line)]
            others = [line for line in found if not re.search(_PCIE, line)]
            kept = {*pcie[-MAX_LINES:], *others[-MAX_LINES:]}
            lines += [line for line in found if line in kept]
    return tuple(dict.fromkeys(lines))


def _since_boot(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines after journalctl's last mark of a boot, as older faults have passed."""
    boots = [at for at, line in enumerate(lines) if re.match(r"-- (?:Reboot|Boot [0-9a-f]{32}) --", line)]
    return lines[boots[-1] :] if boots else lines
