"""Rules on the NVLinks of GPUs and the fabric of their NVSwitches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Host
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, majority

NO_FABRIC = ("N/A", "Not Supported")
_SXM_NAME = re.compile(r"SXM|HGX|HBM3e?\b|\b[BH](?:[123]00|20|800)\b(?!.*(?:PCIe|NVL))|\bGB\d{3}\b|\bDGX\b")
_LONE_NAME = re.compile(r"\bGH\d{3}\b")  # GH200 96GB HBM3 and 144G HBM3e, too, stand alone in most machines
BOARD_PEERS = 3
BOARD_GPUS = 8  # of an HGX board: a virtual machine with all of them has the switches too


def _nvlinks_below_sisters(host: Host) -> Evidence:
    """Yield GPUs with fewer NVLinks up than others of their model in the host. A card without any has no bridge."""
    by_model: dict[str | None, list[Gpu]] = defaultdict(list)
    for gpu in host.gpus:
        by_model[gpu.name].append(gpu)
    for gpus in by_model.values():
        most = max((gpu.nvlinks_up or 0 for gpu in gpus), default=0)
        for gpu in gpus:
            without_bridge = gpu.nvlinks_up == 0 and not is_on_board(gpu)
            if gpu.nvlinks_up is not None and gpu.nvlinks_up < most and not without_bridge:
                yield EvidenceLine(f"GPU {gpu.index}: {gpu.nvlinks_up} NVLinks up, others here {most}", _reset_of(gpu))


def is_on_board(gpu: Gpu) -> bool:
    """Return True if the name shows a GPU on a board that is wired by NVLink, rather than a card."""
    name = gpu.name or ""
    return bool(_SXM_NAME.search(name)) and not _LONE_NAME.search(name)


def _apart_in_topo(host: Host) -> Iterable[tuple[Gpu, EvidenceLine]]:
    """Yield GPUs without NVLink in `topo -m`, if links are not known: bridges join two cards, boards four GPUs."""
    most = max((gpu.nvlink_peers or 0 for gpu in host.gpus), default=0)
    for gpu in host.gpus:
        if gpu.nvlinks_up is None and gpu.nvlink_peers == 0 and most >= BOARD_PEERS:
            seen = f"GPU {gpu.index}: no NVLink to another GPU in `topo -m`, others here have it to {most}"
            yield gpu, EvidenceLine(seen, _reset_of(gpu))


def _nvlinks_all_below(host: Host) -> Iterable[Gpu]:
    """Yield GPUs with inactive NVLinks if no GPU of the host has more up, and cards without a link."""
    most = max((gpu.nvlinks_up or 0 for gpu in host.gpus), default=0)
    for gpu in host.gpus:
        below = gpu.nvlinks_total is not None and (gpu.nvlinks_up or 0) < gpu.nvlinks_total
        if below and (gpu.nvlinks_up == most or (gpu.nvlinks_up == 0 and not is_on_board(gpu))):
            yield gpu


def _nvlinks_inactive_on_board(host: Host) -> Evidence:
    """Yield GPUs of whole boards with inactive NVLinks. A virtual machine may have only half a board."""
    if _has_part_of_board(host):
        return
    dark = _without_any_link(host)
    if 1 < len(dark) == len([gpu for gpu in host.gpus if is_on_board(gpu)]):
        remedy = f"`nvidia-smi -q` shows the state of `Fabric`; {_fabric_remedy(dark[0])}; then drain the host"
        numbers = ", ".join(str(gpu.index) for gpu in dark)
        yield EvidenceLine(f"GPU {numbers}: all NVLinks inactive", remedy)
        return
    for gpu in _nvlinks_all_below(host):
        if is_on_board(gpu):
            yield EvidenceLine(f"GPU {gpu.index}: {gpu.nvlinks_up} of {gpu.nvlinks_total} NVLinks up", _reset_of(gpu))


def _without_any_link(host: Host) -> list[Gpu]:
    """Return the GPUs of a board without any NVLink up. nvidia-smi may not print the number of links then."""
    return [gpu for gpu in host.gpus if is_on_board(gpu) and gpu.nvlinks_up == 0 and gpu.nvlinks_total != 0]


def _has_part_of_board(host: Host) -> bool:
    return host.virtual_machine is True and len(host.gpus) < BOARD_GPUS


def _nvlinks_without_bridge(host: Host) -> Evidence:
    for gpu in _nvlinks_all_below(host):
        if not is_on_board(gpu) or _has_part_of_board(host):
            yield f"GPU {gpu.index} ({gpu.name or 'name not known'}): {gpu.nvlinks_up} of {gpu.nvlinks_total} up"


def _reset_of(gpu: Gpu) -> str:
    return (
        f"`nvidia-smi nvlink -e -i {gpu.index}` shows its errors; reset all GPUs of the board (`nvidia-smi -r`, "
        "without processes on them), then drain the host"
    )


def _nvlinks_below_peers(peers: Sequence[Host]) -> PeerEvidence:
    """Yield hosts on which all GPUs of a board have fewer NVLinks up than on most hosts. Cards may lack bridges."""
    models = sorted({gpu.name for host in peers for gpu in host.gpus if gpu.name and is_on_board(gpu)})
    for model in models:
        ups = {host.name: up for host in peers if (up := _most_up(host, model)) is not None}
        usual = majority(ups.values())
        dark = {host.name for host in peers if len(_without_any_link(host)) > 1}  # which is a finding of its own
        low = [name for name, up in ups.items() if usual is not None and up < usual and name not in dark]
        if low and usual is not None:
            seen = ", ".join(f"{name} {ups[name]:g}" for name in low)
            yield tuple(low), f"{model}: NVLinks up {seen}; {usual:g} on most hosts of the cluster"


def _most_up(host: Host, model: str) -> float | None:
    return max((float(g.nvlinks_up) for g in host.gpus if g.name == model and g.nvlinks_up is not None), default=None)


def _fabric(host: Host) -> Evidence:
    """Yield GPUs whose fabric is not set up or unhealthy. `N/A` and `Not Supported` stand for no NVSwitch."""
    manager = f", fabric manager {host.fabric_manager}" if host.fabric_manager else ""
    for gpu in host.gpus:
        unfinished = gpu.fabric_state not in (None, "Completed", *NO_FABRIC)
        if unfinished or gpu.fabric_status not in (None, "Success", *NO_FABRIC):
            seen = f"GPU {gpu.index}: fabric state {gpu.fabric_state}, status {gpu.fabric_status}{manager}"
            yield EvidenceLine(seen, _fabric_remedy(gpu))
        elif any(_cuts_off(fault) for fault in gpu.fabric_faults):
            yield f"GPU {gpu.index}: fabric health {', '.join(gpu.fabric_faults)}"


def _cuts_off(fault: str) -> bool:
    """Return True if the GPU has lost paths to its peers, rather than some bandwidth for a while."""
    return bool(re.search(r": Unhealthy$|Unhealthy: (?:True|Yes)$|^Incorrect", fault, re.IGNORECASE))


def _fabric_degraded(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.fabric_faults and not any(_cuts_off(fault) for fault in gpu.fabric_faults):
            yield f"GPU {gpu.index}: fabric health {', '.join(gpu.fabric_faults)}"


def _fabric_remedy(gpu: Gpu) -> str:
    name = gpu.name or ""
    if re.search(r"\bGB\d{3}\b", name):
        return "the fabric manager runs on the rack's NVLink switches: look there (NMX-Controller), then reset the GPUs"
    restart = "`systemctl restart nvidia-fabricmanager`, whose version must be the driver's"
    return f"install nvlsm, then {restart}" if re.search(r"\bB[123]00\b", name) else restart


def _no_fabric_manager(peers: Sequence[Host]) -> PeerEvidence:
    """Yield hosts without a fabric manager if most have one. Boards without NVSwitch need none."""
    states = {host.name: host.fabric_manager for host in peers if host.gpus and host.fabric_manager}
    off = {name: state for name, state in states.items() if state != "active"}
    if 2 * len(off) <= len(states):
        yield from (((name,), f"nvidia-fabricmanager is {state}, on most hosts active") for name, state in off.items())


HOST_RULES = (
    Rule(
        "GPU-NVLINK-INACTIVE",
        "F",
        "a GPU has fewer NVLinks up than others of its model in the host",
        "NCCL uses PCI Express or the NICs for that GPU, and all others wait for it",
        "reset all GPUs of the board; drain the host",
        "nvidia-smi(1), nvlink; Azure/azhpc-diagnostics#73; NVIDIA Xid catalogue (74)",
        _nvlinks_below_sisters,
    ),
    Rule(
        "GPU-NVLINK-INACTIVE",
        "F",
        "a GPU of a board is joined to none by NVLink in `topo -m`, and others of the host to three or more",
        "NCCL uses PCI Express or the NICs for that GPU, and all others wait for it",
        "reset all GPUs of the board; drain the host",
        "nvidia-smi(1), topo; vllm-project/vllm#16336",
        lambda host: (seen for gpu, seen in _apart_in_topo(host) if gpu.name is not None and is_on_board(gpu)),
    ),
    Rule(
        "GPU-NVLINK-INACTIVE",
        "W",
        "a GPU of unknown name is joined to none by NVLink in `topo -m`, and others of the host to three or more",
        "if it is part of their board, NCCL uses PCI Express for it, and all others wait",
        "`nvidia-smi -L` says if it is a display card; else reset all GPUs of the board",
        "nvidia-smi(1), topo; vllm-project/vllm#16336",
        lambda host: (seen for gpu, seen in _apart_in_topo(host) if gpu.name is None),
    ),
    Rule(
        "GPU-NVLINK-INACTIVE",
        "F",
        "GPUs of a board that is wired by NVLink (SXM, HGX) have inactive links",
        "NCCL uses PCI Express for some pairs",
        "reset all GPUs of the board; drain the host",
        "nvidia-smi(1), nvlink; Azure/azhpc-diagnostics#73",
        _nvlinks_inactive_on_board,
    ),
    Rule(
        "GPU-NVLINK-INACTIVE",
        "I",
        "GPUs that are cards, or parts of a board given to a virtual machine, have inactive NVLinks",
        "NCCL uses PCI Express between them",
        "nothing, unless a bridge is fitted: then reseat it",
        "nvidia-smi(1), nvlink; " + FIELD,
        _nvlinks_without_bridge,
    ),
    Rule(
        "GPU-FABRIC",
        "F",
        "a GPU's NVSwitch fabric is not completed, with another status than Success, or unhealthy",
        "NVSwitch is not set up, or some ways to peers are closed: CUDA fails with error 802, or NCCL over NVLink does",
        "look at the NVLink switches (NMX-Controller or fabric manager log) and at `nvidia-smi nvlink -e`; reset the "
        "GPU when its links are well, or leave the host out",
        "NVIDIA fabric manager user guide (nvlsm for B200 boards); NVIDIA MNNVL user guide (NVL72); NVIDIA/nccl#2186",
        _fabric,
    ),
    Rule(
        "GPU-FABRIC",
        "W",
        "the health of a GPU's NVLink fabric is degraded, or the fabric is recovering",
        "the GPU has less NVLink bandwidth than its peers, and all wait for it",
        "wait for a recovery to end and probe again; else look at the NVLink switches and at `nvidia-smi nvlink -e`",
        "NVIDIA NVML API (nvmlGpuFabricInfo, health mask); NVIDIA/nccl#2186",
        _fabric_degraded,
    ),
)

PEER_RULES = (
    PeerRule(
        "GPU-FABRIC",
        "W",
        "the fabric manager does not run on a host, and does on most hosts of its cluster",
        "where the GPUs are on NVSwitches, CUDA fails with error 802",
        "`journalctl -u nvidia-fabricmanager`, then `systemctl restart nvidia-fabricmanager`: its version must be the "
        "driver's",
        "NVIDIA fabric manager user guide",
        _no_fabric_manager,
    ),
    PeerRule(
        "GPU-NVLINK-INACTIVE",
        "F",
        "all GPUs of a host have fewer NVLinks up than the same model on most hosts of its cluster",
        "NCCL uses PCI Express or the NICs on this host, and all others wait for it",
        "reset all GPUs of the board (`nvidia-smi -r`), restart nvidia-fabricmanager; drain the host",
        "nvidia-smi(1), nvlink; NVIDIA fabric manager user guide",
        _nvlinks_below_peers,
    ),
)
