"""Rules on faults of GPUs: memory errors, Xids of the driver, and the infoROM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holmes_core.records.inventory import Host
from prober.rule_text import EvidenceLine
from prober.rules.rule import Evidence, Rule

# Xids for which NVIDIA's catalogue says RESET_GPU or RESTART_BM, and 48 and 74, which need a reset or reboot.
FATAL_XIDS = frozenset((46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158))
NVLINK5_XIDS = range(144, 151)  # the line itself says Fatal or Nonfatal
RECOVERY_XID = 154
NO_ACTION = "None"


def _ecc(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.ecc_uncorrected:
            seen = f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected errors since the driver was loaded"
            yield EvidenceLine(
                seen, f"end what runs there and `nvidia-smi -i {gpu.index} -r`; drain the host if they return"
            )


def _remap_pending(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.row_remap_pending and not gpu.row_remap_failure:
            seen = f"GPU {gpu.index}: row remapping pending"
            yield EvidenceLine(seen, f"end what runs there and `nvidia-smi -i {gpu.index} -r`, or reboot")


@dataclass(frozen=True)
class _Xid:
    """A line of the driver, with the PCI address of the GPU as printed there and the number of the Xid."""

    gpu: str
    number: int | None
    line: str

    @property
    def is_fatal(self) -> bool:
        """True if the GPU is unusable until it is reset."""
        if self.number in NVLINK5_XIDS:
            return re.search(r"\bFatal\b", self.line) is not None
        return self.number in FATAL_XIDS


def _xids(host: Host) -> Iterable[_Xid]:
    for line in host.warnings:
        if re.search(r"(?<!S)Xid", line):
            match = re.search(r"Xid \(([^)]*)\): (\d+)", line)
            yield _Xid(match[1], int(match[2]), line) if match else _Xid("", None, line)


def _actions(host: Host) -> Mapping[str, str]:
    """Return the last recovery action that the driver itself named for each GPU, by PCI address."""
    actions = {}
    for xid in _xids(host):
        match = re.search(r"changed from \S+ \([^)]*\) to \S+ \(([^)]*)\)", xid.line)
        if xid.number == RECOVERY_XID and match:
            actions[xid.gpu] = match[1]
    return actions


def _fatal_xid(host: Host) -> Evidence:
    """Yield fatal Xids. The driver's own last action counts first: None means that the GPU was reset."""
    actions = _actions(host)
    for xid, seen in _counted(xid for xid in _xids(host) if _refuses(xid, actions)):
        reset = f"end what runs there and `nvidia-smi -r -i {xid.gpu.removeprefix('PCI:')}.0`"
        yield EvidenceLine(seen, _BY_ACTION.get(actions.get(xid.gpu, ""), f"{reset}; drain the host if it returns"))


def _refuses(xid: _Xid, actions: Mapping[str, str]) -> bool:
    action = actions.get(xid.gpu)
    if xid.number == RECOVERY_XID:
        return action not in (None, NO_ACTION) and f"({action})" in xid.line
    return xid.is_fatal and action != NO_ACTION


def _xid(host: Host) -> Evidence:
    actions = _actions(host)
    others = (xid for xid in _xids(host) if xid.number != RECOVERY_XID and not _refuses(xid, actions))
    yield from (seen for _, seen in _counted(others))


def _counted(xids: Iterable[_Xid]) -> Iterable[tuple[_Xid, str]]:
    """Yield the last Xid of each number on each GPU, and its line with the number of such lines."""
    groups: dict[tuple[str, int | None], list[_Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.gpu, xid.number), []).append(xid)
    for group in groups.values():
        yield group[-1], group[-1].line + (f" ({len(group)} such lines)" if len(group) > 1 else "")


_BY_ACTION = {
    "Drain P2P": "end the jobs that use its peers, then start them again; no reset is asked for",
    "Node Reboot Required": "reboot the host",
}
_CATALOGUE = "NVIDIA Xid errors, Xid catalogue (resolution buckets, Xid 154)"

HOST_RULES = (
    Rule(
        "GPU-ECC-UNCORR",
        "W",
        "a GPU counted uncorrected memory errors since the driver was loaded",
        "a program was ended; contained errors leave the GPU usable (Xid 95 tells of others), and more may come",
        "reset the GPU when nothing runs there; drain the host if they return",
        "NVIDIA GPU memory error management (response to uncorrectable contained ECC errors)",
        _ecc,
    ),
    Rule(
        "GPU-ROW-REMAP",
        "F",
        "a GPU could not remap a row of its memory",
        "memory errors return and cannot be repaired",
        "drain the host; NVIDIA's field diagnostic decides on replacing the GPU",
        "NVIDIA GPU memory error management (row remapping, RMA policy); NVIDIA Xid catalogue (64)",
        lambda host: (f"GPU {gpu.index}: row remapping failed" for gpu in host.gpus if gpu.row_remap_failure),
    ),
    Rule(
        "GPU-ROW-REMAP",
        "W",
        "a GPU will remap a row of its memory at the next reset",
        "until then the page is out of use, which leaves a little less memory",
        "reset the GPU when nothing runs there",
        "NVIDIA GPU memory error management (row remapping, dynamic page offlining)",
        _remap_pending,
    ),
    Rule(
        "GPU-XID",
        "F",
        "the kernel log since boot has an Xid that needs a reset, or Xid 154 names an action",
        "the GPU is unusable until then",
        "end what runs there and `nvidia-smi -r -i GPU`; drain the host if it returns",
        _CATALOGUE,
        _fatal_xid,
    ),
    Rule(
        "GPU-XID",
        "W",
        "the kernel log since boot has another Xid, or one after which the GPU was reset",
        "the driver reported an error, most often of a program",
        "look up the number in NVIDIA's Xid catalogue",
        _CATALOGUE,
        _xid,
    ),
    Rule(
        "GPU-INFOROM",
        "W",
        "nvidia-smi warns that a GPU's infoROM is corrupted",
        "counters and remapped rows that are kept there may be lost",
        "reset the GPU or reboot and ask again; if it stays, run NVIDIA's field diagnostic, which decides on an RMA",
        "NVIDIA GPU debug guidelines; nvidia-smi exit code 14",
        lambda host: (line for line in host.warnings if "inforom" in line.lower()),
    ),
)
