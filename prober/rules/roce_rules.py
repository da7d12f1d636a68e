"""Rules on RoCE: GIDs, MTU, priority flow control, and routing of several rails."""

from __future__ import annotations

import ipaddress
import operator
from collections.abc import Iterable, Sequence

from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import Host
from prober.fabrics.fabric import fabric_of
from prober.rails.choose_rails import rails_of
from prober.rails.port_networks import is_fast_path, netdevs_of
from prober.rule_text import EvidenceLine
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing, distinct

USUAL_GID = 3
SMALL_MTU = 1024


def roce_ports(host: Host) -> Iterable[Nic]:
    """Return RoCE ports that are Active, or may be, and could carry a job."""
    usable = (nic for nic in host.nics if nic.kind == "RoCE" and nic.state in ("Active", None))
    return (nic for nic in usable if not is_fast_path(host, nic))


def rail_netdevs(host: Host) -> list[Netdev]:
    """Return the netdevs of the RoCE rails."""
    names = [nic.netdev for nic in rails_of(host) if nic.kind == "RoCE"]
    return [netdev for netdev in host.netdevs if netdev.name in names]


def _no_v2_gid(host: Host) -> Evidence:
    yield from (evidence for nic, evidence in _without_v2_gid(host) if _is_needed(host, nic))
    fabric = fabric_of(host)
    asked = "ip" in host.sources
    if asked and fabric.kind == "RoCE" and not fabric.networks and not any(nic.gids for nic in fabric.rails):
        yield f"no IPv4 address on the netdevs of {', '.join(nic.hca for nic in fabric.rails)}"


def _without_v2_gid(host: Host) -> Iterable[tuple[Nic, EvidenceLine]]:
    for nic in roce_ports(host):
        if nic.gids and all(gid.type in ("IB", "RoCE v1") for gid in nic.gids):
            yield nic, EvidenceLine(f"{nic.hca}: {len(nic.gids)} GIDs, none of RoCE v2", _give_address(nic))


def _is_needed(host: Host, nic: Nic) -> bool:
    """Return True for a rail, or if the host has neither a rail nor a port that could be one instead."""
    if rails := rails_of(host):
        return nic in rails
    return not any(gid.type == "RoCE v2" for other in roce_ports(host) for gid in other.gids)


def _give_address(nic: Nic) -> str:
    """Return the command that gives the netdev an address, and so a GID; ConnectX-3 needs an option for RoCE v2."""
    address = f"`ip address add ADDRESS/LENGTH dev {nic.netdev or 'NETDEV'}`"
    old = nic.driver == "mlx4_core" or nic.device.startswith("mlx4")
    return f"{address}; and `options mlx4_core roce_mode=2` in /etc/modprobe.d" if old else address


def _gid_ipv6_only(host: Host) -> Evidence:
    for nic in roce_ports(host):
        second = [gid for gid in nic.gids if gid.type == "RoCE v2"]
        if second and all(gid.ipv4 is None for gid in second):
            yield f"{nic.hca}: RoCE v2 GIDs are IPv6 only"


def _mtu_small(host: Host) -> Evidence:
    mtus = {netdev.name: netdev.mtu for netdev in host.netdevs}
    for nic in roce_ports(host):
        netdev_mtu = mtus.get(nic.netdev or "")
        if nic.active_mtu is not None and nic.active_mtu <= SMALL_MTU:
            yield f"{nic.hca}: active MTU {nic.active_mtu}"
        elif nic.active_mtu is None and netdev_mtu is not None and netdev_mtu <= 1500:
            yield f"{nic.hca}: netdev {nic.netdev} has MTU {netdev_mtu}, which allows an RDMA MTU of {SMALL_MTU}"


def _pfc_off(host: Host) -> Evidence:
    """Yield netdevs without PFC that trust PCP, so that untagged packets have no priority, or have ECN off too."""
    names = {nic.netdev for nic in roce_ports(host)}
    for netdev in host.netdevs:
        unprotected = netdev.name in names and netdev.pfc_enabled_priorities == () and not netdev.ecn_priorities
        if unprotected and (netdev.trust == "pcp" or netdev.ecn_priorities == ()):
            ecn = ", ECN off" if netdev.ecn_priorities == () else ""
            yield f"{netdev.name}: PFC off on every priority{ecn}, trust {netdev.trust or 'not known'}"


def _trust_pcp(host: Host) -> Evidence:
    """Yield rails that trust PCP without a VLAN. Packets without a tag have priority 0."""
    by_name = {netdev.name: netdev for netdev in host.netdevs}
    for nic in rails_of(host):
        card, own = by_name.get(nic.netdev or ""), next(iter(netdevs_of(host, nic)), None)
        if nic.kind != "RoCE" or card is None or card.trust != "pcp" or (own is not None and own.kind == "vlan"):
            continue
        protected = {*(card.pfc_enabled_priorities or ()), *(card.ecn_priorities or ())}
        if protected and 0 not in protected:
            listed = ", ".join(map(str, sorted(protected)))
            yield EvidenceLine(
                f"{nic.hca}: trust pcp without a VLAN; PFC or ECN is on for priority {listed}, packets have 0",
                f"`mlnx_qos -i {card.name} --trust dscp`, and NCCL_IB_TC of that priority (106 is DSCP 26, priority 3) "
                "in `launch.environment` of job.yaml",
            )


def _no_traffic_class(host: Host) -> Evidence:
    """Yield rails that trust DSCP: traffic class 0 is priority 0 there, unless the device sets another."""
    asked = {"env", "printenv"} & set(host.sources)
    if not asked or any(setting.name == "NCCL_IB_TC" for setting in host.nccl_settings):
        return
    by_name = {netdev.name: netdev for netdev in host.netdevs}
    for nic in rails_of(host):
        card = by_name.get(nic.netdev or "")
        priorities = card.pfc_enabled_priorities if card is not None and card.trust == "dscp" else None
        if nic.kind == "RoCE" and priorities and 0 not in priorities and not nic.traffic_class:
            listed = ", ".join(map(str, priorities))
            yield f"{nic.hca}: PFC for priority {listed}, trust dscp, and NCCL_IB_TC is not set"


def _rp_filter(host: Host) -> Evidence:
    subnets: dict[str, list[Netdev]] = {}
    for netdev in rail_netdevs(host):
        for address in netdev.addresses:
            subnets.setdefault(str(ipaddress.ip_interface(address).network), []).append(netdev)
    for subnet, netdevs in subnets.items():
        loose = [netdev.name for netdev in netdevs if netdev.rp_filter == 1 or netdev.arp_ignore == 0]
        if len(netdevs) > 1 and loose:
            yield f"{', '.join(loose)}: several rails in {subnet} with rp_filter or arp_ignore at their defaults"


def _pfc_differs(peers: Sequence[Host]) -> PeerEvidence:
    def shown(priorities: Iterable[tuple[int, ...] | None]) -> str | None:
        return "; ".join(sorted(str(each) for each in {*priorities} - {None})) or None

    pfc, ecn = (operator.attrgetter(name) for name in ("pfc_enabled_priorities", "ecn_priorities"))
    yield from differing(peers, "priorities with PFC", lambda host: shown(map(pfc, rail_netdevs(host))))
    yield from differing(peers, "trust", lambda host: distinct(each.trust or None for each in rail_netdevs(host)))
    yield from differing(peers, "priorities with ECN", lambda host: shown(map(ecn, rail_netdevs(host))))


_GIVE_V2_GID = (
    "give the port's netdev an IPv4 address (ConnectX-3 also needs `options mlx4_core roce_mode=2`); "
    "or pin `cluster:` in hosts.yaml"
)
_GID_SOURCE = "NVIDIA MLNX_OFED documentation, RoCE (GID table, roce_mode of mlx4_core); NVIDIA/nccl#769"

HOST_RULES = (
    Rule(
        "ROCE-NO-V2-GID",
        "F",
        "a RoCE rail has GIDs and none of RoCE v2, or no netdev of a RoCE rail has an IPv4 address",
        "no routable RoCE there, and which hosts share the fabric cannot be told",
        _GIVE_V2_GID,
        _GID_SOURCE,
        _no_v2_gid,
    ),
    Rule(
        "ROCE-NO-V2-GID",
        "W",
        "a RoCE port that is no rail has GIDs and none of RoCE v2",
        "none, unless it is to be a rail",
        _GIVE_V2_GID,
        _GID_SOURCE,
        lambda host: (seen for nic, seen in _without_v2_gid(host) if not _is_needed(host, nic)),
    ),
    Rule(
        "ROCE-GID-NOT-3",
        "I",
        "the RoCE v2 IPv4 GID is not at index 3",
        "NCCL_IB_GID_INDEX=3, as many guides say, would be wrong here",
        "leave NCCL_IB_GID_INDEX unset (NCCL 2.21 on chooses); Holmes sets it where a VLAN's GID is first on "
        "some rails only",
        "NCCL user guide, networking troubleshooting (RoCE); NVIDIA/nccl#1573",
        lambda host: (
            f"{nic.hca}: the RoCE v2 IPv4 GID is at index {nic.gid_choice}"
            for nic in roce_ports(host)
            if nic.gid_choice not in (None, USUAL_GID)
        ),
    ),
    Rule(
        "ROCE-GID-IPV6-ONLY",
        "W",
        "all RoCE v2 GIDs of a port are IPv6",
        "NCCL looks for an IPv4 GID first",
        "give the netdev an IPv4 address; else Holmes sets NCCL_IB_ADDR_FAMILY=AF_INET6 where all rails of the cluster "
        "have an IPv6 address that is not link-local",
        "NCCL user guide, environment variables (NCCL_IB_ADDR_FAMILY)",
        _gid_ipv6_only,
    ),
    Rule(
        "ROCE-MTU-SMALL",
        "W",
        "the RDMA MTU of a RoCE port is 1024 or less, or its netdev allows no more",
        "less bandwidth",
        "netdev MTU 4200 or 9000 at both ends and the switch",
        "NVIDIA MLNX_OFED documentation, RoCE (MTU); NVIDIA/dgx-spark-playbooks PR 103",
        _mtu_small,
    ),
    Rule(
        "ROCE-PFC-OFF",
        "W",
        "no priority has PFC, and the card trusts PCP or has ECN (DCQCN) off as well",
        "the network may drop RDMA packets, and each loss costs a time-out",
        "set up PFC or congestion control end to end, and NCCL_IB_TC to the traffic class in use, in "
        "`launch.environment` of job.yaml",
        "Mellanox/mlnx-tools, mlnx_qos; NCCL user guide, networking troubleshooting (congestion indicators)",
        _pfc_off,
    ),
    Rule(
        "ROCE-TRUST",
        "W",
        "a RoCE rail has PFC or ECN for a priority, trusts PCP, and its packets have no VLAN tag to carry one",
        "RDMA uses priority 0, without the configured protection, and loses packets when links are full",
        "`mlnx_qos -i NETDEV --trust dscp`, and NCCL_IB_TC to the traffic class of that priority",
        "NVIDIA MLNX_OFED documentation, RoCE (trust state); Mellanox/mlnx-tools, mlnx_qos",
        _trust_pcp,
    ),
    Rule(
        "ROCE-TRAFFIC-CLASS",
        "I",
        "PFC is on for a priority other than 0, the card trusts DSCP, and NCCL_IB_TC is not set",
        "NCCL sends with traffic class 0, which most sites map to priority 0, without PFC",
        "ask the network's owner for the class, and set it in `launch.environment` of job.yaml: NCCL_IB_TC=106 is DSCP "
        "26, priority 3 at most sites",
        "NCCL user guide, environment variables (NCCL_IB_TC); NVIDIA MLNX_OFED documentation, RoCE",
        _no_traffic_class,
    ),
    Rule(
        "ROCE-RP-FILTER",
        "W",
        "several rails have addresses in one subnet, with rp_filter 1 or arp_ignore 0",
        "replies leave over the wrong rail and are dropped",
        "`sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=2`, "
        "or one subnet a rail",
        "Linux, Documentation/networking/ip-sysctl.rst",
        _rp_filter,
    ),
)

PEER_RULES = (
    PeerRule(
        "ROCE-GID-DIFFERS-BY-HOST",
        "W",
        "the index of the RoCE v2 IPv4 GID differs between hosts",
        "no single NCCL_IB_GID_INDEX fits",
        "leave NCCL_IB_GID_INDEX unset (NCCL 2.21 on chooses); Holmes sets it where a VLAN's GID is first on "
        "some rails only",
        "NCCL user guide, networking troubleshooting (RoCE)",
        lambda hosts: differing(
            hosts, "index of the RoCE v2 IPv4 GID", lambda host: distinct(nic.gid_choice for nic in rails_of(host))
        ),
        scope="job",
    ),
    PeerRule(
        "ROCE-MTU-DIFFERS",
        "W",
        "the RDMA MTU of the rails differs between hosts of a cluster",
        "NCCL takes the smaller of both ends, so that some pairs are slower",
        "set the same MTU on all hosts' netdevs and on the switch",
        "NCCL, src/transport/net_ib/connect.cc (the smaller MTU is used)",
        # RDMA MTUs are powers of two, so netdevs of 4200 and 9000 have the same.
        lambda hosts: differing(
            hosts,
            "RDMA MTU of the rails",
            lambda host: distinct(nic.active_mtu for nic in rails_of(host) if nic.kind == "RoCE"),
        ),
    ),
    PeerRule(
        "ROCE-MTU-DIFFERS",
        "I",
        "the MTU of the rails' netdevs differs between hosts of a cluster",
        "none for RDMA; TCP between them may lose large packets where the switch does not fragment",
        "set the same MTU on all hosts' netdevs and on the switch",
        "Linux, Documentation/networking/ip-sysctl.rst (ip_no_pmtu_disc)",
        lambda hosts: differing(
            hosts, "MTU of the rails' netdevs", lambda host: distinct(each.mtu for each in rail_netdevs(host))
        ),
    ),
    PeerRule(
        "ROCE-PFC-DIFFERS",
        "W",
        "rails have PFC or ECN for other priorities, or trust another field, than on other hosts of the cluster",
        "packet loss on the hosts without it",
        "the same priorities everywhere: `mlnx_qos -i NETDEV --pfc 0,0,0,1,0,0,0,0` sets priority 3 alone",
        "Mellanox/mlnx-tools, mlnx_qos; scitix/sichek",
        _pfc_differs,
    ),
)
