"""RDMA ports: whether they are there, and up."""

from __future__ import annotations

from collections.abc import Iterable

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.clusters import fabric_of, is_rail_class
from prober.rules.rule import Evidence, Rule

RDMA = ("InfiniBand", "RoCE")
LEFT_OUT = "nothing: Holmes names the rails exactly; if these are others, name them by `rails:` in hosts.yaml"


def active_ports(host: Host) -> Iterable[Nic]:
    """Ports that NCCL's verbs transport would list by itself."""
    return (nic for nic in host.nics if nic.kind in RDMA and nic.state == "Active")


def _none_usable(host: Host) -> Evidence:
    ports = [nic for nic in host.nics if nic.kind in RDMA]
    if ports and all(nic.usable_by_nccl_ib is False for nic in ports):
        yield "; ".join(f"{nic.hca} {nic.state or 'state not known'}" for nic in ports)


def _waits_for_subnet_manager(nic: Nic) -> bool:
    """The link is up and nobody has set the port up."""
    half_way = nic.state in ("Initializing", "Armed")
    return nic.kind == "InfiniBand" and (half_way or (nic.state == "Down" and nic.phys_state == "LinkUp"))


def _no_subnet_manager(host: Host) -> Evidence:
    for nic in host.nics:
        if _waits_for_subnet_manager(nic):
            yield f"{nic.hca} is {nic.state}, physical state {nic.phys_state}, SM lid {nic.sm_lid or 0}"


def _ports_down(host: Host) -> Iterable[Nic]:
    """RDMA ports without a link, whatever the reason."""
    for nic in host.nics:
        if nic.kind in RDMA and nic.state not in (None, "Active") and not _waits_for_subnet_manager(nic):
            yield nic


def _rail_down(host: Host) -> Evidence:
    for nic in _ports_down(host):
        if is_rail_class(host, nic) and not _other_port_of_card_is_active(host, nic):
            yield f"{nic.hca} is {nic.state}, physical state {nic.phys_state or 'not known'}"


def _other_port_down(host: Host) -> Evidence:
    for nic in _ports_down(host):
        if not is_rail_class(host, nic) or _other_port_of_card_is_active(host, nic):
            yield f"{nic.hca} is {nic.state}, physical state {nic.phys_state or 'not known'}; it is no rail"


def _other_port_of_card_is_active(host: Host, nic: Nic) -> bool:
    """A second port left without a cable is common and harmless."""
    return nic.sys_image_guid is not None and any(
        other.sys_image_guid == nic.sys_image_guid and other.state == "Active" for other in host.nics
    )


def _link_down(host: Host) -> Evidence:
    for netdev in host.netdevs:
        if netdev.kind in (None, "physical") and netdev.up and netdev.link_detected is False:
            yield f"{netdev.name}: no link detected"


def _mixed_link_layers(host: Host) -> Evidence:
    rails = fabric_of(host).rails
    kinds: dict[str, list[str]] = {}
    for nic in active_ports(host):
        kinds.setdefault(nic.kind, []).append(nic.hca)
    if len(kinds) > 1 and rails:
        listed = "; ".join(f"{kind}: {', '.join(ports)}" for kind, ports in kinds.items())
        yield f"{listed}; the rails are {rails[0].kind}"


HOST_RULES = (
    Rule(
        "NIC-NONE-USABLE",
        "I",
        "NCCL logs `NET/IB : No device found` and uses sockets",
        "bring a port up if this host is to use RDMA",
        _none_usable,
    ),
    Rule(
        "NIC-NO-SM",
        "F",
        "the port never becomes Active and NCCL leaves it out",
        "start the subnet manager (opensm, UFM); for a virtual function enable virtualisation there and set its GUID",
        _no_subnet_manager,
    ),
    Rule(
        "NIC-PORT-DOWN",
        "F",
        "a rail is out; NCCL leaves the port out without a word",
        "Disabled: `ip link set up`, mlxlink port up; Polling: check cable, optic and switch port",
        _rail_down,
    ),
    Rule(
        "NIC-PORT-DOWN", "I", "none for the job", "nothing, unless the port is meant to carry the job", _other_port_down
    ),
    Rule(
        "NIC-LINK-DOWN",
        "I",
        "no socket traffic over it",
        "fix the link, or leave the interface out of NCCL_SOCKET_IFNAME",
        _link_down,
    ),
    Rule(
        "NIC-MIXED-LINK-LAYER",
        "I",
        "left alone, NCCL lists both kinds and fails when it pairs them",
        LEFT_OUT,
        _mixed_link_layers,
    ),
)
