"""NICs and links."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holmes_core.records.inventory import Host, Nic
from holmes_core.units import bytes_per_s_from_gbps, format_rate
from prober.clusters import fabric_of, is_rail_class
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing

MOST_FLAPS = 3
GB10_PORT_GBPS = 200  # ConnectX-7 of DGX Spark; NVIDIA/dgx-spark-playbooks, multi-sparks-through-switch
FLAP_COUNTERS = ("link_downed", "link_error_recovery")
ERROR_COUNTERS = (
    "symbol_error",
    "port_rcv_errors",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
RDMA = ("InfiniBand", "RoCE")


def place(nic: Nic) -> str:
    """`mlx5_0:1`."""
    return f"{nic.device}:{nic.port}"


def active(host: Host) -> Iterable[Nic]:
    """Ports that NCCL's verbs transport would list if nobody told it otherwise."""
    return (nic for nic in host.nics if nic.kind in RDMA and nic.state == "Active")


def none_usable(host: Host) -> Evidence:
    ports = [nic for nic in host.nics if nic.kind in RDMA]
    if ports and all(nic.usable_by_nccl_ib is False for nic in ports):
        yield "; ".join(f"{place(nic)} {nic.state or 'state not known'}" for nic in ports)


def waits_for_subnet_manager(nic: Nic) -> bool:
    """The link is up and nobody has set the port up."""
    half_way = nic.state in ("Initializing", "Armed")
    return nic.kind == "InfiniBand" and (half_way or (nic.state == "Down" and nic.phys_state == "LinkUp"))


def no_subnet_manager(host: Host) -> Evidence:
    for nic in host.nics:
        if waits_for_subnet_manager(nic):
            yield f"{place(nic)} is {nic.state}, physical state {nic.phys_state}, SM lid {nic.sm_lid or 0}"


def ports_down(host: Host) -> Iterable[Nic]:
    """RDMA ports without a link, whatever the reason."""
    for nic in host.nics:
        if nic.kind in RDMA and nic.state not in (None, "Active") and not waits_for_subnet_manager(nic):
            yield nic


def rail_down(host: Host) -> Evidence:
    for nic in ports_down(host):
        if is_rail_class(host, nic) and not _other_port_of_card_is_active(host, nic):
            yield f"{place(nic)} is {nic.state}, physical state {nic.phys_state or 'not known'}"


def other_port_down(host: Host) -> Evidence:
    for nic in ports_down(host):
        if not is_rail_class(host, nic) or _other_port_of_card_is_active(host, nic):
            yield f"{place(nic)} is {nic.state}, physical state {nic.phys_state or 'not known'}; it is no rail"


def _other_port_of_card_is_active(host: Host, nic: Nic) -> bool:
    """A second port left without a cable is common and harmless."""
    return nic.sys_image_guid is not None and any(
        other.sys_image_guid == nic.sys_image_guid and other.state == "Active" for other in host.nics
    )


def link_down(host: Host) -> Evidence:
    for netdev in host.netdevs:
        if netdev.kind in (None, "physical") and netdev.up and netdev.link_detected is False:
            yield f"{netdev.name}: no link detected"


def mixed_link_layers(host: Host) -> Evidence:
    rails = fabric_of(host).rails
    kinds: dict[str, list[str]] = {}
    for nic in active(host):
        kinds.setdefault(nic.kind, []).append(place(nic))
    if len(kinds) > 1 and rails:
        listed = "; ".join(f"{kind}: {', '.join(ports)}" for kind, ports in kinds.items())
        yield f"{listed}; the rails are {rails[0].kind}"


def rate_outliers(host: Host) -> Evidence:
    rails = fabric_of(host).rails
    for nic in active(host):
        if rails and nic not in rails and nic.rate_gbps and rails[0].rate_gbps and nic.rate_gbps != rails[0].rate_gbps:
            yield f"{place(nic)} has {nic.rate_gbps:g} Gbit/s, the rails {rails[0].rate_gbps:g} Gbit/s"


def rate_below_class(host: Host) -> Evidence:
    best: dict[tuple[str, str], float] = {}
    for nic in active(host):
        if nic.hca_type and nic.rate_gbps:
            key = (nic.hca_type, nic.kind)
            best[key] = max(best.get(key, 0.0), nic.rate_gbps)
    for nic in active(host):
        top = best.get((nic.hca_type or "", nic.kind), 0.0)
        if nic.rate_gbps and nic.rate_gbps < top:
            yield f"{place(nic)} has {nic.rate_gbps:g} Gbit/s, other {nic.hca_type} ports here {top:g} Gbit/s"
        elif nic.rate_gbps and nic.rate_gbps < GB10_PORT_GBPS and _is_gb10_face(host, nic):
            yield f"{place(nic)} has {nic.rate_gbps:g} Gbit/s, a port of this machine {GB10_PORT_GBPS} Gbit/s"


def _is_gb10_face(host: Host, nic: Nic) -> bool:
    """GB10 shows each port of its ConnectX-7 in two PCI domains, and the device names say so: p1s0f0, P2p1s0f0."""
    first = nic.device.replace("roceP2p", "rocep")
    second = first.replace("rocep", "roceP2p")
    return first != second and {first, second} <= {other.device for other in host.nics}


def rate_conflicts(host: Host) -> Evidence:
    told = {conflict.subject for conflict in host.conflicts if conflict.fact == "rate_gbps"}
    speeds = {netdev.name: netdev.speed_bytes_per_s for netdev in host.netdevs}
    for nic in active(host):
        if place(nic) in told:
            continue
        speed = speeds.get(nic.netdev or "")
        if nic.kind == "RoCE" and nic.rate_gbps and speed and speed != bytes_per_s_from_gbps(nic.rate_gbps):
            yield f"{place(nic)} says {nic.rate_gbps:g} Gbit/s, its netdev {nic.netdev} {format_rate(speed)}"
    for conflict in host.conflicts:
        if conflict.fact == "rate_gbps":
            both = f"{conflict.source_a} says {conflict.value_a}, {conflict.source_b} {conflict.value_b}"
            yield f"{conflict.subject}: {both} Gbit/s"


def grown(host: Host, names: Collection[str]) -> Evidence:
    """Counters of that name that grew while the probe ran."""
    seconds = host.counter_interval_s
    during = "between two readings" if seconds is None else f"in {seconds:g} s"
    for nic in host.nics:
        for name, growth in nic.counter_growth or ():
            if name in names:
                yield f"{place(nic)}: {name} grew by {growth} {during}"


def flaps(host: Host) -> Evidence:
    yield from grown(host, FLAP_COUNTERS)
    for nic in active(host):
        for name, value in nic.counters:
            if name in FLAP_COUNTERS and value > MOST_FLAPS:
                yield f"{place(nic)}: {name} is {value} since boot"


def errors(host: Host) -> Evidence:
    """What was counted since boot may be years old; only growth tells of a fault that is there now."""
    yield from grown(host, ERROR_COUNTERS)


def soft_rdma(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "SoftRoCE" or nic.device.startswith("siw"):
            yield f"{place(nic)} is RDMA in software"


def efa(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "EFA":
            yield f"{place(nic)} is an EFA adapter"


def omni_path(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "Omni-Path":
            yield f"{place(nic)} is Omni-Path, though tools call it InfiniBand"


def iwarp(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "iWARP" and not nic.device.startswith("siw"):
            yield f"{place(nic)} speaks iWARP"


def two_fabrics(host: Host) -> Evidence:
    """InfiniBand rails below different subnet managers: the host joins only the cluster of the first."""
    fabrics: dict[str, list[str]] = {}
    for nic in fabric_of(host).rails:
        if nic.kind == "InfiniBand" and nic.sm_lid:
            key = f"subnet {nic.subnet_prefix or 'not known'}, SM lid {nic.sm_lid}"
            fabrics.setdefault(key, []).append(place(nic))
    if len(fabrics) > 1:
        yield "; ".join(f"{key}: {', '.join(ports)}" for key, ports in fabrics.items())


def duplicate_faces(host: Host) -> Evidence:
    cards: dict[str, list[str]] = {}
    for nic in host.nics:
        if nic.sys_image_guid and nic.kind in RDMA:
            cards.setdefault(nic.sys_image_guid, []).append(nic.device)
    for devices in cards.values():
        if len(set(devices)) > 1:
            yield f"{', '.join(dict.fromkeys(devices))} are one card"


def bond_one_qp(host: Host) -> Evidence:
    for nic in active(host):
        if nic.bond:
            yield f"{place(nic)} is a bond: one queue pair uses one of its members"


def bond_degraded(host: Host) -> Evidence:
    for netdev in host.netdevs:
        for slave in netdev.bond_slaves or ():
            if slave.mii_status not in (None, "up"):
                yield f"{netdev.name}: member {slave.name} is {slave.mii_status}"


def no_netdev(host: Host) -> Evidence:
    for nic in active(host):
        listed_by_rdma = nic.node_type is not None or host.sources == ("rdma",)
        if nic.kind == "RoCE" and nic.netdev is None and not nic.gids and listed_by_rdma:
            yield f"{place(nic)} is an Ethernet port without a netdev here"


def no_uverbs(host: Host) -> Evidence:
    if host.uverbs_openable == 0 and any(active(host)):
        yield f"{host.uverbs or 0} /dev/infiniband/uverbs* there, none can be opened"


def ipoib_bootstrap(host: Host) -> Evidence:
    names = [netdev.name for netdev in host.netdevs if netdev.name.startswith("ib") and netdev.addresses]
    if names:
        yield f"{', '.join(names)} have addresses"


def firmware_differs(peers: Sequence[Host]) -> PeerEvidence:
    families = {nic.board_id or nic.hca_type for host in peers for nic in host.nics} - {None}
    for family in sorted(str(family) for family in families):
        versions: dict[str, object] = {}
        for host in peers:
            found = {nic.firmware for nic in host.nics if (nic.board_id or nic.hca_type) == family and nic.firmware}
            versions[host.name] = ", ".join(sorted(found)) or None
        yield from differing(versions, f"firmware of {family}")


def drivers_differ(peers: Sequence[Host]) -> PeerEvidence:
    yield from differing({host.name: host.software.ofed for host in peers}, "OFED")
    yield from differing({host.name: host.kernel for host in peers}, "kernel")


def sets_differ(peers: Sequence[Host]) -> PeerEvidence:
    lists: dict[str, object] = {}
    for host in peers:
        usable = [place(nic) for nic in host.nics if nic.usable_by_nccl_ib]
        lists[host.name] = ", ".join(usable) or None
    yield from differing(lists, "usable ports")


LEFT_OUT = "Holmes names the rails exactly; by hand, set NCCL_IB_HCA to them"

HOST_RULES = (
    Rule(
        "NIC-NONE-USABLE",
        "I",
        "NCCL logs `NET/IB : No device found` and uses sockets",
        "bring a port up if this host is to use RDMA",
        none_usable,
    ),
    Rule(
        "NIC-NO-SM",
        "F",
        "the port never becomes Active and NCCL leaves it out",
        "start the subnet manager (opensm, UFM); for a virtual function enable virtualisation there and set its GUID",
        no_subnet_manager,
    ),
    Rule(
        "NIC-PORT-DOWN",
        "F",
        "a rail is out; NCCL leaves the port out without a word",
        "Disabled: `ip link set up`, mlxlink port up; Polling: check cable, optic and switch port",
        rail_down,
    ),
    Rule(
        "NIC-PORT-DOWN", "I", "none for the job", "nothing, unless the port is meant to carry the job", other_port_down
    ),
    Rule(
        "NIC-LINK-DOWN",
        "I",
        "no socket traffic over it",
        "fix the link, or leave the interface out of NCCL_SOCKET_IFNAME",
        link_down,
    ),
    Rule(
        "NIC-MIXED-LINK-LAYER",
        "I",
        "left alone, NCCL lists both kinds and fails when it pairs them",
        LEFT_OUT,
        mixed_link_layers,
    ),
    Rule("NIC-RATE-OUTLIER", "W", "NCCL would use the slow port as a rail", LEFT_OUT, rate_outliers),
    Rule(
        "NIC-RATE-BELOW-CLASS",
        "F",
        "a ring is as fast as its slowest rail",
        "reseat or change the cable; set the speed at the switch",
        rate_below_class,
    ),
    Rule(
        "NIC-RATE-CONFLICT",
        "W",
        "what the port can carry is uncertain",
        "trust the netdev for Ethernet; for bonds count the members",
        rate_conflicts,
    ),
    Rule("NIC-FLAP", "W", "NCCL jobs hang or abort when a link goes", "cable or optic; drain the host", flaps),
    Rule(
        "NIC-ERRORS",
        "W",
        "packets are lost and sent again; error 12 (retries exceeded) follows",
        "cable or optic, or congestion: look at the switch port, PFC and ECN",
        errors,
    ),
    Rule("NIC-SOFT-RDMA", "W", "NCCL takes it and is slow", "leave it out of NCCL_IB_HCA", soft_rdma),
    Rule(
        "NIC-EFA-NEEDS-PLUGIN",
        "F",
        "NCCL's verbs transport cannot use EFA",
        "install the aws-ofi-nccl plugin; `fi_info -p efa` must list the adapter",
        efa,
    ),
    Rule(
        "NIC-OMNIPATH", "W", "NCCL's verbs transport fails on it", "use the OPX or PSM2 plugin, or sockets", omni_path
    ),
    Rule(
        "NIC-IWARP", "F", "NCCL's verbs transport needs InfiniBand or RoCE", "`irdma roce_ena=1` where possible", iwarp
    ),
    Rule(
        "NIC-TWO-FABRICS",
        "W",
        "rails of different islands cannot talk to each other",
        "pin `cluster:` in hosts.yaml; by hand, name the rails of one island in NCCL_IB_HCA",
        two_fabrics,
    ),
    Rule("NIC-DUPLICATE-FACE", "I", "their rates do not add up", "count the card once", duplicate_faces),
    Rule("NIC-BOND-ONE-QP", "I", "half the bond's rate", "NCCL_IB_QPS_PER_CONNECTION=2 or 4", bond_one_qp),
    Rule("NIC-BOND-DEGRADED", "W", "less than the bond's rate", "repair the member's link", bond_degraded),
    Rule(
        "NIC-NO-NETDEV-IN-NS",
        "F",
        "the device belongs to another network namespace",
        "list only the container's own devices",
        no_netdev,
    ),
    Rule(
        "NIC-NO-UVERBS",
        "F",
        "no RDMA for this user",
        "`--device /dev/infiniband`, or the device cgroup; check permissions",
        no_uverbs,
    ),
    Rule(
        "IB-IPOIB-BOOTSTRAP",
        "W",
        "NCCL's bootstrap prefers names beginning with ib, which other clusters may not reach",
        "Holmes sets NCCL_SOCKET_IFNAME to the shared network; by hand, set it too",
        ipoib_bootstrap,
    ),
)

PEER_RULES = (
    PeerRule("NIC-FW-MISMATCH", "W", "uneven speed, rare hangs", "update to one version", firmware_differs),
    PeerRule("NIC-DRIVER-MISMATCH", "W", "uneven behaviour", "align OFED and kernel", drivers_differ),
    PeerRule(
        "NIC-SET-DIFFERS",
        "W",
        "one NCCL_IB_HCA does not fit all hosts",
        "Holmes writes a list for each host; keep the number of rails equal",
        sets_differ,
    ),
)
