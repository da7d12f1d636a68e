"""Functions of the bridge between a host and the NVSwitches of its own HGX B200 or B300 board.

They belong to a ConnectX-7, are Active and InfiniBand, and have a subnet manager on the host itself (nvlsm), which sets
up the switches through them. They reach no other host, and their LIDs are the same in every server.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from holmes_core.records.devices import Nic
from prober.asking.commands import Command
from prober.asking.pci_values import NVSWITCH_MARK
from prober.asking.recording import Recorded
from prober.facts.rdma.mlxlink import PHYSICAL_MELLANOX

WHY = "it manages the NVSwitches of this host's board, and reaches no other host"
MAX_GBPS = 100
RAIL_GBPS = 400  # the slowest rails of such boards
CONNECTX7 = "MT4129"
MANY_FUNCTIONS = 3  # of one card: other InfiniBand cards have fewer without SR-IOV

VPD = Command(
    f'grep -lsa {NVSWITCH_MARK} "$d/device/vpd"',
    each="/sys/class/infiniband/*",
    only=PHYSICAL_MELLANOX,
    limited=True,
    when='[ "$uid" = 0 ]',
)
_BOARD = re.compile(r"\bB[123]00\b")
_VPD_FILE = re.compile(r"^/sys/class/infiniband/([^/\s]+)/device/vpd$", re.MULTILINE)


def marked_devices(outputs: Iterable[Recorded]) -> frozenset[str]:
    """Return the devices whose vital product data has the mark."""
    asked = [output for output in outputs if NVSWITCH_MARK in output.command]
    return frozenset(name for output in asked for name in _VPD_FILE.findall(output.plain))


def with_bridges_marked(
    nics: Sequence[Nic], gpu_names: Collection[str], marked: Collection[str], marked_pci: Collection[str]
) -> tuple[Nic, ...]:
    """Return the NICs with the bridge's functions marked as unusable.

    `marked` are devices, and `marked_pci` PCI addresses, whose product data has the mark.
    """
    slow = [nic for nic in nics if nic.kind == "InfiniBand" and (nic.rate_gbps or 0) <= MAX_GBPS]
    ports = [nic for nic in slow if not nic.virtual_function and nic.hca_type in (CONNECTX7, None)]
    # Amazon has no InfiniBand, so on hosts with EFA an InfiniBand port belongs to the board.
    amazon = {nic.hca for nic in slow} if any(nic.kind == "EFA" for nic in nics) else set()
    on_board = any(_BOARD.search(name) for name in gpu_names)
    sure = amazon | {nic.hca for nic in nics if nic.device in marked or nic.pci_address in marked_pci}
    faster = any((nic.rate_gbps or 0) >= RAIL_GBPS for nic in nics if nic.kind in ("InfiniBand", "RoCE"))
    sure |= {nic.hca for nic in ports if _number_of_signs(nic, ports, on_board or faster) >= 2}
    bridge = {"nvlink_management": True, "usable_by_nccl_ib": False, "why": WHY}
    return tuple(nic.model_copy(update=bridge) if nic.hca in sure else nic for nic in nics)


def _number_of_signs(nic: Nic, ports: Sequence[Nic], fits_machine: bool) -> int:
    """Return the number of signs of a bridge. No other port has two.

    With `fits_machine`, the GPUs are on such a board, or other ports are as fast as its rails.
    """
    sisters = {port.device for port in ports if nic.sys_image_guid and port.sys_image_guid == nic.sys_image_guid}
    alike = [port for port in ports if (port.hca_type, port.rate_gbps) == (nic.hca_type, nic.rate_gbps)]
    own_manager = bool(nic.sm_lid) and nic.sm_lid in {port.lid for port in alike}
    return (len(sisters) >= MANY_FUNCTIONS) + own_manager + (fits_machine and nic.rate_gbps is not None)
