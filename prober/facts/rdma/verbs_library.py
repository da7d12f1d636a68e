"""Devices of the kernel that the verbs library cannot open, so that NCCL would silently use sockets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from holmes_core.records.devices import Nic
from prober.asking.recording import Recorded

CANNOT_OPEN = "the verbs library cannot open it: "
ABI, NO_DRIVER, NOT_THERE, FINDS_NONE = "kernel ABI", "no driver", "libibverbs", "finds no device"  # how reasons begin
_TOOLS = ("ibv_devinfo", "ibv_devices")
_ABI_LINE = re.compile(
    r"Driver (\S+) does not support the kernel ABI of (\d+) \(supports (\d+) to (\d+)\) for device "
    r"/sys/class/infiniband/([^/\s]+)"
)
_DRIVER_LINE = re.compile(r"no userspace device-specific driver found for /sys/class/infiniband/([^/\s]+)")
# A block of ibv_devinfo or a row of ibv_devices; then messages for no device, or a table without rows.
_OPENED = re.compile(r"^(?:hca_id:[ \t]*(\S+)|[ \t]*(\S+)[ \t]+[0-9a-f]{16})[ \t]*$", re.MULTILINE)
_NONE = re.compile(
    r"^(?:No IB devices found|0 HCAs? found|Failed to get IB devices list|[ \t]*-{4,}[ \t]+-{8,}[ \t]*\n\Z)",
    re.MULTILINE,
)
_LIBRARY = re.compile(
    r"error while loading shared libraries: (lib(?:ibverbs|rdmacm|nl)\S*):|^verbs (.*libibverbs.*)$", re.M
)
_ALL = ""


def with_unopenable_marked(nics: Sequence[Nic], outputs: Iterable[Recorded], in_container: bool) -> tuple[Nic, ...]:
    """Return the NICs with those that the library cannot open marked as unusable.

    With `in_container`, the job runs in a container, whose library is not the one of the tools.
    """
    reasons = _reasons(outputs, in_container)
    return tuple(_marked(nic, reasons) for nic in nics)


def _marked(nic: Nic, reasons: Mapping[str, str]) -> Nic:
    reason = reasons.get(nic.device, reasons.get(_ALL))
    if reason is None or nic.kind not in ("InfiniBand", "RoCE") or nic.usable_by_nccl_ib is False:
        return nic
    return nic.model_copy(update={"usable_by_nccl_ib": False, "why": CANNOT_OPEN + reason})


def _reasons(outputs: Iterable[Recorded], in_container: bool) -> dict[str, str]:
    """Return the reason for each device, and under _ALL the reason for all others."""
    found: dict[str, str] = {}
    opened: set[str] = set()
    for output in outputs:
        counts = output.asks_python or (output.tool in _TOOLS and not in_container)
        if counts and (match := _LIBRARY.search(output.plain)):
            found[_ALL] = f"{NOT_THERE} cannot be loaded ({(match[1] or match[2])[:80]})"
        if output.tool in _TOOLS and not in_container:
            for driver, kernel, low, high, device in _ABI_LINE.findall(output.plain):
                found[device] = f"{ABI} {kernel}, its driver {driver} is for {low} to {high}"
            for device in _DRIVER_LINE.findall(output.plain):
                found[device] = f"{NO_DRIVER} for this card is installed"
            opened |= {device or row for device, row in _OPENED.findall(output.plain)}
            names_device = any(word.startswith(("-d", "--ib-dev")) for word in output.words)
            if _NONE.search(output.plain) and not names_device:
                found.setdefault(_ALL, f"it {FINDS_NONE}")
    if opened:
        found.pop(_ALL, None)
    return {device: reason for device, reason in found.items() if device not in opened}
