"""What a NIC is: its kind, its card, its bond, how the host shows it; and whether hosts have the same."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Host
from prober.clusters import fabric_of
from prober.rules.port_rules import RDMA, active_ports
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing


def _soft_rdma(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "SoftRoCE" or nic.device.startswith("siw"):
            yield f"{nic.hca} is RDMA in software"


def _two_fabrics(host: Host) -> Evidence:
    """InfiniBand rails below different subnet managers: the host joins only the cluster of the first."""
    fabrics: dict[str, list[str]] = {}
    for nic in fabric_of(host).rails:
        if nic.kind == "InfiniBand" and nic.sm_lid:
            key = f"subnet {nic.subnet_prefix or 'not known'}, SM lid {nic.sm_lid}"
            fabrics.setdefault(key, []).append(nic.hca)
    if len(fabrics) > 1:
        yield "; ".join(f"{key}: {', '.join(ports)}" for key, ports in fabrics.items())


def _duplicate_faces(host: Host) -> Evidence:
    cards: dict[str, list[str]] = {}
    for nic in host.nics:
        if nic.sys_image_guid and nic.kind in RDMA:
            cards.setdefault(nic.sys_image_guid, []).append(nic.device)
    for devices in cards.values():
        if len(set(devices)) > 1:
            yield f"{', '.join(dict.fromkeys(devices))} are one card"


def _bond_one_qp(host: Host) -> Evidence:
    for nic in active_ports(host):
        if nic.bond:
            yield f"{nic.hca} is a bond: one queue pair uses one of its members"


def _bond_degraded(host: Host) -> Evidence:
    for netdev in host.netdevs:
        for slave in netdev.bond_slaves or ():
            if slave.mii_status not in (None, "up"):
                yield f"{netdev.name}: member {slave.name} is {slave.mii_status}"


def _no_netdev(host: Host) -> Evidence:
    for nic in active_ports(host):
        listed_by_rdma = nic.node_type is not None or host.sources == ("rdma",)
        if nic.kind == "RoCE" and nic.netdev is None and not nic.gids and listed_by_rdma:
            yield f"{nic.hca} is an Ethernet port without a netdev here"


def _no_uverbs(host: Host) -> Evidence:
    if host.uverbs_openable == 0 and any(active_ports(host)):
        yield f"{host.uverbs or 0} /dev/infiniband/uverbs* there, none can be opened"


def _ipoib_bootstrap(host: Host) -> Evidence:
    names = [netdev.name for netdev in host.netdevs if netdev.name.startswith("ib") and netdev.addresses]
    if names:
        yield f"{', '.join(names)} have addresses"


def _firmware_differs(peers: Sequence[Host]) -> PeerEvidence:
    families = {nic.board_id or nic.hca_type for host in peers for nic in host.nics} - {None}
    for family in sorted(str(family) for family in families):
        versions: dict[str, object] = {}
        for host in peers:
            found = {nic.firmware for nic in host.nics if (nic.board_id or nic.hca_type) == family and nic.firmware}
            versions[host.name] = ", ".join(sorted(found)) or None
        yield from differing(versions, f"firmware of {family}")


def _drivers_differ(peers: Sequence[Host]) -> PeerEvidence:
    yield from differing({host.name: host.software.ofed for host in peers}, "OFED")
    yield from differing({host.name: host.kernel for host in peers}, "kernel")


def _sets_differ(peers: Sequence[Host]) -> PeerEvidence:
    lists: dict[str, object] = {}
    for host in peers:
        usable = [nic.hca for nic in host.nics if nic.usable_by_nccl_ib]
        lists[host.name] = ", ".join(usable) or None
    yield from differing(lists, "usable ports")


HOST_RULES = (
    Rule("NIC-SOFT-RDMA", "W", "NCCL takes it and is slow", "leave it out of NCCL_IB_HCA", _soft_rdma),
    Rule(
        "NIC-TWO-FABRICS",
        "W",
        "rails of different islands cannot talk to each other",
        "pin `cluster:` in hosts.yaml; by hand, name the rails of one island in NCCL_IB_HCA",
        _two_fabrics,
    ),
    Rule("NIC-DUPLICATE-FACE", "I", "their rates do not add up", "count the card once", _duplicate_faces),
    Rule("NIC-BOND-ONE-QP", "I", "half the bond's rate", "NCCL_IB_QPS_PER_CONNECTION=2 or 4", _bond_one_qp),
    Rule("NIC-BOND-DEGRADED", "W", "less than the bond's rate", "repair the member's link", _bond_degraded),
    Rule(
        "NIC-NO-NETDEV-IN-NS",
        "F",
        "the device belongs to another network namespace",
        "list only the container's own devices",
        _no_netdev,
    ),
    Rule(
        "NIC-NO-UVERBS",
        "F",
        "no RDMA for this user",
        "`--device /dev/infiniband`, or the device cgroup; check permissions",
        _no_uverbs,
    ),
    Rule(
        "IB-IPOIB-BOOTSTRAP",
        "W",
        "NCCL's bootstrap prefers names beginning with ib, which other clusters may not reach",
        "Holmes sets NCCL_SOCKET_IFNAME to the shared network; by hand, set it too",
        _ipoib_bootstrap,
    ),
)

PEER_RULES = (
    PeerRule("NIC-FW-MISMATCH", "W", "uneven speed, rare hangs", "update to one version", _firmware_differs),
    PeerRule("NIC-DRIVER-MISMATCH", "W", "uneven behaviour", "align OFED and kernel", _drivers_differ),
    PeerRule(
        "NIC-SET-DIFFERS",
        "W",
        "one NCCL_IB_HCA does not fit all hosts",
        "Holmes writes a list for each host; keep the number of rails equal",
        _sets_differ,
    ),
)
