"""Rules on RDMA ports and netdevs: present, up, and allowed to talk to other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import Host
from prober.fabrics.clusters import is_rail_class
from prober.facts.rdma.verbs_library import CANNOT_OPEN
from prober.rails.choose_rails import BLUEFIELD_TYPES, is_stated, rails_of
from prober.rails.nearness import BESIDE, nearness_of, path_class
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.rule import NAME_IT, NO_RAIL, Evidence, Rule, together

RDMA = ("InfiniBand", "RoCE")
LEFT_OUT = "nothing: Holmes names the rails exactly; if these are others, name them by `rails:` in hosts.yaml"


def active_ports(host: Host) -> Iterable[Nic]:
    """Return the ports that NCCL's verbs transport lists by itself."""
    return (nic for nic in of_the_job(host) if nic.state == "Active")


def of_the_job(host: Host) -> Iterable[Nic]:
    """Return InfiniBand and RoCE ports, without ports that reach no other host."""
    return (nic for nic in host.nics if nic.kind in RDMA and not nic.nvlink_management)


def _none_usable(host: Host) -> Evidence:
    ports = list(of_the_job(host))
    if any(nic.why.startswith(CANNOT_OPEN) for nic in ports):
        return  # NIC-VERBS-LIBRARY says more
    if ports and all(nic.usable_by_nccl_ib is False for nic in ports):
        seen = "; ".join(f"{nic.hca} {nic.state or 'state not known'}" for nic in ports)
        yield EvidenceLine(seen, _OF_ANOTHER_NAMESPACE) if all(_is_elsewhere(host, nic) for nic in ports) else seen


def _waits_for_subnet_manager(nic: Nic) -> bool:
    """Return True if the link is up and no subnet manager has set the port up."""
    half_way = nic.state in ("Initializing", "Armed")
    return nic.kind == "InfiniBand" and (half_way or (nic.state == "Down" and nic.phys_state == "LinkUp"))


def _is_elsewhere(host: Host, nic: Nic) -> bool:
    """Return True for a RoCE port in a container without netdev and GIDs: it is in another network namespace."""
    in_container = host.container not in (None, "none")
    return in_container and nic.kind == "RoCE" and nic.netdev is None and not nic.gids


def _is_missing_rail(host: Host, nic: Nic) -> bool:
    """Return True if a port without service should be a rail."""
    rails = rails_of(host)
    spare = _is_spare_port(host, nic) or _serves_others(host, nic) or (len(rails) > 0 and _is_elsewhere(host, nic))
    # SR-IOV hosts have dozens of unused virtual functions, all of them Down.
    spare = spare or (nic.virtual_function is True and any(rail.kind == "InfiniBand" for rail in rails))
    return is_rail_class(host, nic) and (is_stated(nic) is True or not spare)


def _waiting(nic: Nic) -> str:
    return f"{nic.hca} is {nic.state}, physical state {nic.phys_state}, SM lid {nic.sm_lid or 0}"


def _rail_waits(host: Host) -> Evidence:
    for nic in of_the_job(host):
        if _waits_for_subnet_manager(nic) and _is_missing_rail(host, nic):
            yield (
                EvidenceLine(_waiting(nic), f"{_VIRTUAL_REMEDY}; {NO_RAIL}") if nic.virtual_function else _waiting(nic)
            )


def _spare_waits(host: Host) -> Evidence:
    waiting = [nic for nic in of_the_job(host) if _waits_for_subnet_manager(nic) and not _is_missing_rail(host, nic)]
    return together("{}; they are no rails", (nic.hca for nic in waiting))


def ports_down(host: Host) -> Iterable[Nic]:
    """Yield RDMA ports without a link, for any reason."""
    for nic in of_the_job(host):
        if nic.state not in (None, "Active") and not _waits_for_subnet_manager(nic):
            yield nic


def missing_rails(host: Host) -> Evidence:
    """Yield each port without a link that should be a rail, with its remedy."""
    for nic in ports_down(host):
        if _is_missing_rail(host, nic):
            yield EvidenceLine(
                f"{nic.hca} is {nic.state}, physical state {nic.phys_state or 'not known'}",
                f"{_raise(host, nic)}; {NO_RAIL}",
            )


def _raise(host: Host, nic: Nic) -> str:
    """Return the remedy for a port by its reason for being down."""
    if _is_elsewhere(host, nic):
        return _OF_ANOTHER_NAMESPACE
    if nic.phys_state == "Polling":
        return "it sees no partner: check the cable, the optic and the switch port"
    if nic.kind == "RoCE":
        return f"`ip link set {nic.netdev or 'NETDEV'} up`; then the cable and the switch port"
    if nic.driver in (None, "mlx5_core") and nic.device.startswith("mlx5"):
        return f"`mlxlink -d {nic.device} -p {nic.port} -a UP` (as root), or ask the fabric's owner to enable its port"
    return "ask the fabric's owner to enable the port; then the cable and the switch port"


def _better_ports_down(host: Host) -> Sequence[Nic]:
    """Return ports that look like the compute rails and are all down, so that front-end ports took their place.

    They outnumber the rails. They are InfiniBand while the rails are RoCE, a newer card, or nearer to the GPUs.
    """
    rails = rails_of(host)
    if not rails or is_stated(rails[0]) or rails[0].kind not in RDMA:
        return ()
    down: dict[tuple[str, str | None], list[Nic]] = {}
    for nic in ports_down(host):
        if not nic.virtual_function:
            down.setdefault((nic.kind, nic.hca_type), []).append(nic)
    up = {(nic.kind, nic.hca_type) for nic in active_ports(host)}
    groups = [ports for model, ports in down.items() if model not in up and len(ports) > len(rails)]
    return max((ports for ports in groups if _are_better(host, ports, rails)), key=len, default=())


def _are_better(host: Host, ports: Sequence[Nic], rails: Sequence[Nic]) -> bool:
    nearness = nearness_of(host)
    near = [
        any(path_class(path) == BESIDE for nic in group for path in nearness.get(nic.device, {}).values())
        for group in (ports, rails)
    ]
    theirs, ours = _connectx(ports[0]), _connectx(rails[0])
    return (
        (ports[0].kind == "InfiniBand" and rails[0].kind == "RoCE")
        or near == [True, False]
        or (theirs is not None and ours is not None and theirs > ours)
        or (theirs is not None and rails[0].hca_type in BLUEFIELD_TYPES)
    )


def _connectx(nic: Nic) -> int | None:
    """Return the PCI device id of a ConnectX, which grows by generation. Source: pci.ids, vendor 15b3."""
    match = re.fullmatch(r"MT(4\d{3})", nic.hca_type or "")
    return int(match[1]) if match else None


def _front_end_in_place_of_rails(host: Host) -> Evidence:
    if ports := _better_ports_down(host):
        listed, rails = ", ".join(nic.hca for nic in ports), ", ".join(nic.hca for nic in rails_of(host))
        yield EvidenceLine(
            f"{listed}: all {len(ports)} {ports[0].kind} ports of this kind are down; {rails} have their place",
            f"{_raise(host, ports[0])}, and so for the others; if the job is to use {rails}, name them by `rails:` in "
            "hosts.yaml",
        )


def _other_port_down(host: Host) -> Evidence:
    reported = _better_ports_down(host)
    for nic in ports_down(host):
        if nic not in reported and not _is_missing_rail(host, nic):
            yield f"{nic.hca} is {nic.state}, physical state {nic.phys_state or 'not known'}; it is no rail"


def _is_spare_port(host: Host, nic: Nic) -> bool:
    """Return True for a second port without a cable, unless all other cards with rails use both ports."""
    rails = rails_of(host)
    used = sum(_is_one_card(nic, rail) for rail in rails)
    others = [sum(_is_one_card(rail, other) for other in rails) for rail in rails if not _is_one_card(nic, rail)]
    beside_active = any(_is_one_card(nic, other) and other.state == "Active" for other in host.nics)
    return beside_active and min(others, default=0) <= max(used, 1)


def _is_one_card(nic: Nic, other: Nic) -> bool:
    """Return True for ports with one card's GUID or, if that is not known, functions of one PCI device."""
    if nic.sys_image_guid and other.sys_image_guid:
        return nic.sys_image_guid == other.sys_image_guid
    places = [(port.pci_address or port.device).partition(".")[0] for port in (nic, other)]
    return places[0] == places[1]


def _serves_others(host: Host, nic: Nic) -> bool:
    """Return True for a card of the rails' model for storage or the front end, as HGX machines have.

    It is farther from the GPUs than the rails, or another board.
    """
    rails, nearness = rails_of(host), nearness_of(host)
    ways = [nearness.get(port.device, {}).values() for port in (nic, *rails)]
    near = [any(path_class(path) == BESIDE for path in of_port) for of_port in ways]
    if ways[0]:
        return not near[0] and len(rails) > 0 and all(near[1:])
    boards = {rail.board_id for rail in rails}
    return nic.board_id is not None and len(boards) > 0 and not boards & {nic.board_id, None}


def _without_link(host: Host) -> Iterable[Netdev]:
    """Yield cards without a carrier, except those that are reported as RDMA ports."""
    reported = {nic.netdev for nic in host.nics if nic.kind in RDMA}
    for netdev in host.netdevs:
        if netdev.kind in (None, "physical") and netdev.link_detected is False and netdev.name not in reported:
            yield netdev


def _mixed_link_layers(host: Host) -> Evidence:
    rails = rails_of(host)
    kinds: dict[str, list[str]] = {}
    for nic in active_ports(host):
        kinds.setdefault(nic.kind, []).append(nic.hca)
    if len(kinds) > 1 and rails:
        listed = "; ".join(f"{kind}: {', '.join(ports)}" for kind, ports in kinds.items())
        yield f"{listed}; the rails are {rails[0].kind}"


_OF_ANOTHER_NAMESPACE = (
    "the port is another network namespace's, and nothing raises it from inside this one: give the container an RDMA "
    "device and netdev of its own (RDMA device plugin or SR-IOV CNI), or the host's network"
)
_VIRTUAL_REMEDY = (
    "on the hypervisor give the function a GUID and `ip link set PF vf N state auto`; "
    "opensm needs `virt_enabled 2` in its configuration"
)
_ASK_FIRST = (
    "ask the fabric's owner: its subnet manager is down or does not know the port. Start opensm only where "
    "two hosts are cabled back to back; a second one on a managed fabric does harm"
)

HOST_RULES = (
    Rule(
        "NIC-NONE-USABLE",
        "I",
        "there are RDMA ports, but NCCL can use none of them",
        "NCCL logs `NET/IB : No device found` and uses sockets",
        "bring a port up if this host is to use RDMA",
        "NCCL, src/transport/net_ib/init.cc",
        _none_usable,
    ),
    Rule(
        "NIC-NO-SM",
        "F",
        "an InfiniBand port that should be a rail has a link but is not Active",
        "the port never becomes Active and NCCL leaves it out",
        f"{_ASK_FIRST}; {NO_RAIL}",
        "NCCL user guide, networking troubleshooting (Subnet Manager); Mellanox/network-operator#249; "
        "k8snetworkplumbingwg/sriov-network-device-plugin#269",
        _rail_waits,
    ),
    Rule(
        "NIC-NO-SM",
        "I",
        "InfiniBand ports that are no rails, such as unused virtual functions, have a link and are not Active",
        "none for the job",
        f"nothing, unless such a port is meant to carry the job: then {NAME_IT}",
        FIELD,
        _spare_waits,
    ),
    Rule(
        "NIC-PORT-DOWN",
        "F",
        "a port of the rails' kind and model is not Active; not a spare second port, nor a card farther from the GPUs",
        "a rail is missing; NCCL skips the port without a message",
        "RoCE: `ip link set NETDEV up`; InfiniBand: `mlxlink -d DEVICE -a UP`; then cable, optic and switch port; "
        + NO_RAIL,
        "NVIDIA MFT documentation, mlxlink (--port_state); NCCL, src/transport/net_ib/init.cc",
        lambda host: missing_rails(host) if rails_of(host) else (),
    ),
    Rule(
        "NIC-PORT-DOWN",
        "W",
        "all ports that look like the compute rails are down, and a few others, of the front end, are left",
        "the job runs at the front end's rate, a fraction of the compute rails'",
        "bring the ports up: cable, optic, switch port and subnet manager; if the others are the rails, "
        "name them by `rails:` in hosts.yaml",
        "NVIDIA/nccl#1935; " + FIELD,
        _front_end_in_place_of_rails,
    ),
    Rule(
        "NIC-PORT-DOWN",
        "I",
        "a port that is no rail is not Active",
        "none for the job",
        f"nothing, unless the port is meant to carry the job: then {NAME_IT}",
        "NCCL, src/transport/net_ib/init.cc",
        _other_port_down,
    ),
    Rule(
        "NIC-LINK-DOWN",
        "W",
        "a network card has an address but no link",
        "traffic through this address goes nowhere, and NCCL hangs if it chooses it",
        "fix the link or remove the address; by hand, leave it out of NCCL_SOCKET_IFNAME",
        "NCCL user guide, networking troubleshooting (IP network interfaces)",
        lambda host: (
            f"{netdev.name} ({', '.join(netdev.addresses)}): no link detected"
            for netdev in _without_link(host)
            if netdev.addresses
        ),
    ),
    Rule(
        "NIC-LINK-DOWN",
        "I",
        "network cards without an address have no link",
        "no socket traffic over them",
        "nothing, unless one should carry the job: then check its cable and switch port",
        FIELD,
        lambda host: together(
            "{}: no link detected, and no address", (n.name for n in _without_link(host) if not n.addresses)
        ),
    ),
    Rule(
        "NIC-MIXED-LINK-LAYER",
        "I",
        "InfiniBand and RoCE ports are Active on one host",
        "left alone, NCCL lists both kinds and fails when it pairs them (`Attempted to connect incompatible devices`)",
        LEFT_OUT,
        "NCCL, src/transport/net_ib/connect.cc",
        _mixed_link_layers,
    ),
)
