"""Rules on the kernel log: NVSwitches, GPUs that do not start, NICs without power or optics, PCI Express errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holmes_core.records.inventory import Host
from prober.asking.pci_values import normal_address
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.rule import Evidence, Rule

MANY_CORRECTED = 100  # lines since boot of one device; a sound link has a few in a year
_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_INIT_FAILED = re.compile(rf"NVRM: (?:GPU ({_ADDRESS}): )?(?:RmInitAdapter|rm_init_adapter) failed", re.IGNORECASE)

# Messages of the driver before it gives up a GPU, and their remedies.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        "onlining",
        "its memory could not be brought online: boot with `memhp_default_state=online_movable` on the kernel command "
        "line",
    ),
    ("open kernel modules", "this GPU needs the open kernel modules: install the `-open` package of the driver"),
    ("not supported by", "the driver does not know this GPU: install a newer one"),
    ("BAR\\d is 0M", "the firmware gave the GPU no address space: enable `Above 4G decoding` in the BIOS"),
    ("API mismatch", "driver and library have different versions: reboot, or reload the driver's modules"),
    ("fallen off the bus", "the GPU is off the bus: drain the host and power it off and on"),
)
INIT_REMEDY = (
    "drain the host, power it off and on, and look at the lines before `RmInitAdapter failed` in `dmesg`; where it "
    "stays, NVIDIA's field diagnostic decides on replacing the GPU"
)


def init_cause(host: Host) -> tuple[str, str] | None:
    """Return the line by which the driver gave up a GPU and its remedy, or None if the log shows none."""
    for pattern, remedy in _CAUSES:
        for line in host.warnings:
            if "NVRM" in line and re.search(pattern, line):
                return line, remedy
    return next(((line, INIT_REMEDY) for line in host.warnings if _INIT_FAILED.search(line)), None)


def _init_failed(host: Host) -> Evidence:
    """Yield GPUs that did not start. Those in nvidia-smi have started since; GPU-NONE reports hosts without any."""
    if host.nvidia_smi_failure and not host.gpus:
        return
    shown = {gpu.pci_address or str(gpu.index) for gpu in host.gpus}
    missing = host.gpu_count_lspci is not None and len(shown) < host.gpu_count_lspci
    failed = {match[1]: line for line in host.warnings if (match := _INIT_FAILED.search(line))}
    cause = init_cause(host)
    for address, line in failed.items():
        if missing if address is None else normal_address(address) not in shown:
            yield EvidenceLine(line, cause[1] if cause else INIT_REMEDY)


def _sxids(host: Host, fatal: bool) -> Evidence:
    """Yield the last line of each number of each switch, with the number of such lines."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in host.warnings:
        match = re.search(r"SXid \(([^)]*)\): (\d+), (Non-fatal|Fatal)?", line, re.IGNORECASE)
        if match and ((match[3] or "").lower() == "fatal") is fatal:
            found.setdefault((match[1], match[2]), []).append(line)
    for lines in found.values():
        yield lines[-1] + (f" ({len(lines)} such lines)" if len(lines) > 1 else "")


def _sxid_fatal(host: Host) -> Evidence:
    yield from () if _links_are_well(host) else _sxids(host, fatal=True)


def _sxid(host: Host) -> Evidence:
    yield from _sxids(host, fatal=False)
    yield from _sxids(host, fatal=True) if _links_are_well(host) else ()


def _links_are_well(host: Host) -> bool:
    """Return True if all NVLinks of all GPUs are up, which shows that the board was reset since."""
    return bool(host.gpus) and all(gpu.nvlinks_total and gpu.nvlinks_up == gpu.nvlinks_total for gpu in host.gpus)


def _last_of_cards(host: Host, pattern: str) -> Mapping[str, str]:
    """Return the last line with the pattern for each card, by PCI address."""
    found: dict[str, str] = {}
    for line in host.warnings:
        card = re.search(rf"(?:mlx5|bnxt|ionic)\S* ({_ADDRESS})", line)
        if card and re.search(pattern, line):
            found[card[1]] = line
    return found


def _module(host: Host) -> Evidence:
    """Yield cards whose last event is a fault: a module may have been changed after an earlier one."""
    for line in _last_of_cards(host, "[Pp]ort module event").values():
        if re.search(r"event\[error\]|[Ee]rror|[Tt]emperature|exceeded|shorted", line):
            yield line


def _aer(host: Host) -> Iterable[tuple[str, str, bool, str]]:
    """Yield the address and name of the device, True for an uncorrected error, and the line."""
    names = {nic.pci_address: nic.device for nic in host.nics if nic.pci_address}
    names |= {gpu.pci_address: f"GPU {gpu.index}" for gpu in host.gpus if gpu.pci_address}
    for line in host.warnings:
        received = re.search(rf"AER: .*?(?:received:|from) ({_ADDRESS})", line)
        reported = re.search(rf"({_ADDRESS}): (?:AER: )?PCIe Bus Error: severity=(\w+)", line)
        match = received or reported
        if match:
            address = normal_address(match[1])
            kind = reported[2] if reported else line
            yield address, names.get(address, "a device"), bool(re.search(r"Uncorrect|Fatal", kind)), line


def _aer_uncorrected(host: Host) -> Evidence:
    last = {(address, what): line for address, what, uncorrected, line in _aer(host) if uncorrected}
    yield from (f"{address} ({what}): {line}" for (address, what), line in last.items())


def _aer_corrected(host: Host) -> Evidence:
    counts: dict[tuple[str, str], int] = {}
    for address, what, uncorrected, _ in _aer(host):
        if not uncorrected:
            counts[address, what] = counts.get((address, what), 0) + 1
    for (address, what), count in counts.items():
        if count >= MANY_CORRECTED:
            yield f"{address} ({what}): {count} lines on corrected PCI Express errors in the kernel log"


_SXID_SOURCE = "NVIDIA fabric manager user guide (NVSwitch SXid errors)"
_MLX5_EVENTS = "Linux, drivers/net/ethernet/mellanox/mlx5/core/events.c"

HOST_RULES = (
    Rule(
        "GPU-INIT-FAILED",
        "F",
        "the kernel log says that the driver could not start a GPU, and nvidia-smi does not show it",
        "the GPU is missing, and NVLink of its board may be",
        INIT_REMEDY,
        "NVIDIA open GPU kernel modules, RmInitAdapter; NVIDIA GPU debug guidelines",
        _init_failed,
    ),
    Rule(
        "NVSWITCH-SXID",
        "F",
        "the kernel log since boot has a fatal SXid of an NVSwitch, and not all NVLinks are known to be up",
        "the switch has shut down the link or itself; NCCL hangs or fails on this host until a reset",
        "end what runs on the host and `nvidia-smi -r` (all GPUs and switches of the board), or reboot; then see that "
        "nvidia-fabricmanager is active; drain the host if it returns",
        _SXID_SOURCE,
        _sxid_fatal,
    ),
    Rule(
        "NVSWITCH-SXID",
        "W",
        "the kernel log since boot has an SXid of an NVSwitch that is not fatal, or after which all NVLinks are up",
        "an error between GPUs; the affected traffic was lost or sent again",
        "look for an Xid of a GPU at the same time, which names the cause; reset the board or drain the host if it "
        "comes back",
        _SXID_SOURCE,
        _sxid,
    ),
    Rule(
        "NIC-SLOT-POWER",
        "W",
        "the kernel log says that the slot gives a network card too little power",
        "the card keeps its optics off or slow: ports stay down, or links fail under load",
        "use a slot, riser or auxiliary cable that gives the card its 75 W, and look at the slot's power limit in the "
        "BIOS; then power the host off and on",
        f"{_MLX5_EVENTS} (mlx5_pcie_event); leptonai/gpud#348",
        lambda host: _last_of_cards(host, "insufficient power").values(),
    ),
    Rule(
        "NIC-MODULE-FAULT",
        "W",
        "the kernel log's last event about a network card's cable or optic is a fault",
        "the port is down or loses packets",
        "reseat the module, clean it, then change the cable or optic for one that the card's maker lists",
        f"{_MLX5_EVENTS} (port module events)",
        _module,
    ),
    Rule(
        "NIC-CARD-HEALTH",
        "W",
        "the kernel log has a failure of a network card's firmware, or too high a temperature",
        "the card stops for seconds or for good, and NCCL ends with error 12 or hangs",
        "`devlink health show` says if it recovered; update the firmware, look at its cooling, and drain the host if "
        "it returns",
        "Linux, drivers/net/ethernet/mellanox/mlx5/core/health.c",
        lambda host: _last_of_cards(host, "health compromised|[Ff]atal error|[Hh]igh temperature on sensors").values(),
    ),
    Rule(
        "PCI-AER",
        "W",
        "the kernel log has a PCI Express error that was not corrected",
        "the device or what runs on it failed at that moment: a GPU falls off the bus, a NIC loses its link",
        "reseat the device and its riser or cable; drain the host if it returns",
        "Linux, Documentation/PCI/pcieaer-howto.rst",
        _aer_uncorrected,
    ),
    Rule(
        "PCI-AER",
        "W",
        f"the kernel log has {MANY_CORRECTED} lines or more on corrected PCI Express errors of one device",
        "each packet is sent again, so the link is slow, and it may fail for good",
        "reseat the device and its riser or cable, and look at the firmware of slot and device",
        "Linux, Documentation/PCI/pcieaer-howto.rst; " + FIELD,
        _aer_corrected,
    ),
)
