"""Rules on a NIC's kind, card, bond and device, and on differences between hosts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.facts.rdma.verbs_library import CANNOT_OPEN, FINDS_NONE, NO_DRIVER, NOT_THERE
from prober.rails.choose_rails import rails_of, undecided_ports
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.port_rules import active_ports
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing, distinct, together

PCI_ENCODING = 128 / 130  # of lanes from 8 GT/s on. Source: PCI Express base specification


def _soft_rdma(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "SoftRoCE" or nic.device.startswith("siw"):
            link = f"{nic.device}/{nic.port}"
            yield EvidenceLine(
                f"{nic.hca} is RDMA in software", f"leave it out of NCCL_IB_HCA; `rdma link delete {link}` removes it"
            )


def _efa(host: Host) -> Evidence:
    return together("EFA: {}", (nic.hca for nic in host.nics if nic.kind == "EFA"))


def _iwarp(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "iWARP" and not nic.device.startswith("siw"):
            seen = f"{nic.hca} ({nic.driver or 'driver not known'}) speaks iWARP"
            yield EvidenceLine(seen, _roce_mode(nic)) if nic.driver in ("irdma", "ice") else seen


def _roce_mode(nic: Nic) -> str:
    """Return the commands that enable RoCE, which iWARP excludes.

    Source: Linux, Documentation/networking/devlink/ice.rst.
    """
    device = f"devlink dev param set pci/{nic.pci_address or 'BDF'}"
    return (
        f"`{device} name enable_iwarp value false cmode runtime`, then "
        f"`{device} name enable_roce value true cmode runtime`; the driver outside the kernel has `irdma roce_ena=1`"
    )


def _two_fabrics(host: Host) -> Evidence:
    """Yield similar InfiniBand ports under different subnet managers, if no fact shows which are the rails."""
    fabrics: dict[str, list[str]] = {}
    for nic in undecided_ports(host):
        if nic.kind == "InfiniBand" and nic.sm_lid:
            key = f"subnet {nic.subnet_prefix or 'not known'}, SM lid {nic.sm_lid}"
            fabrics.setdefault(key, []).append(nic.hca)
    if len(fabrics) > 1:
        yield "; ".join(f"{key}: {', '.join(ports)}" for key, ports in fabrics.items())


def _verbs_library(host: Host) -> Evidence:
    """Yield a line for each reason, with its remedy."""
    reasons: dict[str, list[str]] = {}
    for nic in host.nics:
        if nic.why.startswith(CANNOT_OPEN):
            reasons.setdefault(nic.why.removeprefix(CANNOT_OPEN), []).append(nic.hca)
    for reason, ports in reasons.items():
        remedy = next((text for kind, text in _LIBRARY_REMEDIES.items() if kind in reason), _MATCHING_DRIVER)
        yield EvidenceLine(f"{', '.join(ports)}: {CANNOT_OPEN}{reason}", remedy)


def _duplicate_faces(host: Host) -> Evidence:
    """Yield functions of one card whose slot cannot carry all their ports at once."""
    cards: dict[str, list[Nic]] = {}
    for nic in active_ports(host):
        if nic.sys_image_guid:
            cards.setdefault(nic.sys_image_guid, []).append(nic)
    for ports in cards.values():
        devices = ", ".join(dict.fromkeys(nic.device for nic in ports))
        total, slot = sum(nic.rate_gbps or 0 for nic in ports), _slot_gbps(ports)
        if len(ports) > 1 and slot is not None and total > slot:
            yield f"{devices} are one card: {total:g} Gbit/s of ports, {slot:.0f} Gbit/s of PCI Express"


def _slot_gbps(ports: Sequence[Nic]) -> float | None:
    """Return the Gbit/s of a card's slots, each counted once, or None if one is not known."""
    slots = {(nic.pci_address or nic.device).rpartition(".")[0]: nic.pci for nic in ports}
    rates = [(link.speed_gts or 0) * (link.width or 0) for link in slots.values()]
    return sum(rates) * PCI_ENCODING if all(rates) else None


def _foreign(host: Host) -> Evidence:
    """Yield the RoCE ports of another network namespace, which are no rails."""
    ports = [nic for nic in active_ports(host) if nic.node_type is not None or host.sources == ("rdma",)]
    foreign = [nic for nic in ports if nic.kind == "RoCE" and nic.netdev is None and not nic.gids]
    return together(
        "{}: Ethernet ports without a netdev here", (nic.hca for nic in foreign if nic not in rails_of(host))
    )


def _no_uverbs(host: Host) -> Evidence:
    if host.uverbs_openable == 0 and any(active_ports(host)):
        yield f"{host.uverbs or 0} /dev/infiniband/uverbs* there, none can be opened"


def _firmware_differs(peers: Sequence[Host]) -> PeerEvidence:
    families = {nic.board_id or nic.hca_type for host in peers for nic in host.nics} - {None}
    for family in sorted(str(family) for family in families):
        yield from differing(peers, f"firmware of {family}", functools.partial(_firmware, family))


def _firmware(family: str, host: Host) -> str | None:
    return distinct(nic.firmware or None for nic in host.nics if (nic.board_id or nic.hca_type) == family)


def _drivers_differ(peers: Sequence[Host]) -> PeerEvidence:
    yield from differing(peers, "OFED", lambda host: host.software.ofed or ("none" if host.python_asked else None))
    yield from differing(peers, "kernel", lambda host: host.kernel)


_MATCHING_DRIVER = (
    "install the user-space driver of the same release as the kernel module where the job runs, in the container's "
    "image too: the vendor's package (libbnxt_re, libionic, MLNX_OFED or DOCA), or a newer rdma-core"
)
_LIBRARY_REMEDIES = {
    NO_DRIVER: "install the provider where the job runs: `ibverbs-providers` (Debian, Ubuntu), `rdma-core` (RHEL), or "
    "the card vendor's own",
    NOT_THERE: "install `libibverbs1` and `ibverbs-providers` (Debian, Ubuntu) or `libibverbs` and `rdma-core` (RHEL) "
    "where the job runs, in the container's image too",
    FINDS_NONE: "see that /dev/infiniband/uverbs* are there (in a container `--device=/dev/infiniband`) and "
    "`ibverbs-providers` or the vendor's driver is installed where the job runs",
}

HOST_RULES = (
    Rule(
        "NIC-SOFT-RDMA",
        "W",
        "a port is RDMA in software (rxe, siw)",
        "NCCL uses rxe and is slow",
        "leave it out of NCCL_IB_HCA; `rdma link delete DEVICE` removes it",
        "rdma-core, rxe(7); iproute2, rdma-link(8)",
        _soft_rdma,
    ),
    Rule(
        "NIC-NVLINK-BRIDGE",
        "I",
        "InfiniBand ports belong to the bridge between the host and the NVSwitches of its HGX B200 or B300 board",
        "left alone, NCCL takes them for rails, and the first collective between hosts fails or hangs",
        "nothing with Holmes, which leaves them out; by hand, name the real rails in NCCL_IB_HCA, or leave these out "
        "with `^=`",
        "NVIDIA fabric manager user guide (NVLSM); aws/sagemaker-hyperpod-cli PR 282; siderolabs/extensions#893",
        lambda host: together(
            "{} manage the NVSwitches of this host's board", (nic.hca for nic in host.nics if nic.nvlink_management)
        ),
    ),
    Rule(
        "NIC-VERBS-LIBRARY",
        "W",
        "the kernel has an RDMA port, and the verbs library that NCCL loads cannot open it",
        "NCCL logs `NET/IB : No device found` at most, and uses sockets; Holmes leaves the port out",
        "install the verbs driver that matches the kernel module, where the job runs (in the container's image)",
        "rdma-core, libibverbs/init.c; k8snetworkplumbingwg/sriov-cni#348; NVIDIA/nccl#1044",
        _verbs_library,
    ),
    Rule(
        "NIC-EFA-NEEDS-PLUGIN",
        "F",
        "there are EFA adapters, but NCCL's loader finds no network plugin",
        "NCCL's verbs transport cannot use EFA; it would use TCP sockets, at a fraction of the rate",
        "install aws-ofi-nccl (Amazon's EFA installer brings it), so that libnccl-net.so is on the library path; "
        "`fi_info -p efa` must list the adapters",
        "aws/aws-ofi-nccl, README; linux-rdma/rdma-core PR 884",
        lambda host: _efa(host) if () in (host.nccl_net_plugins, host.ofi_plugins) and not host.ofi_plugins else (),
    ),
    Rule(
        "NIC-EFA-NEEDS-PLUGIN",
        "I",
        "there are EFA adapters, but it is unknown if NCCL has a plugin for them",
        "without aws-ofi-nccl NCCL uses TCP sockets, at a fraction of the rate",
        "`fi_info -p efa` must list the adapters, and NCCL_DEBUG=INFO name the plugin",
        "aws/aws-ofi-nccl, README",
        lambda host: _efa(host) if host.nccl_net_plugins is None and host.ofi_plugins is None else (),
    ),
    Rule(
        "NIC-OMNIPATH",
        "W",
        "a port is Omni-Path, though its tools say InfiniBand",
        "NCCL takes it by its link layer; it is slow that way, without GPUDirect RDMA",
        "use libfabric's OPX provider by way of aws-ofi-nccl, or sockets over its IPoIB",
        "prometheus/node_exporter#2023; libfabric, fi_opx(7); " + FIELD,
        lambda host: (
            f"{nic.hca} is Omni-Path, though tools call it InfiniBand" for nic in host.nics if nic.kind == "Omni-Path"
        ),
    ),
    Rule(
        "NIC-IWARP",
        "W",
        "a port speaks iWARP",
        "Holmes leaves it out and uses sockets there: NCCL's verbs transport is made for InfiniBand and RoCE",
        "Intel E810: enable RoCE in its place; of other cards iWARP is all there is",
        "Linux, Documentation/networking/devlink/ice.rst; " + FIELD,
        _iwarp,
    ),
    Rule(
        "NIC-TWO-FABRICS",
        "W",
        "similar InfiniBand ports are under different subnet managers, and nothing shows which are the rails",
        "ports of different fabrics cannot talk to each other, and storage may be among them",
        "name the rails with `rails:` in hosts.yaml",
        "InfiniBand architecture, subnet management: one master subnet manager a subnet; " + FIELD,
        _two_fabrics,
    ),
    Rule(
        "NIC-DUPLICATE-FACE",
        "I",
        "ports of one card (one system image GUID) are faster together than its PCI Express link",
        "their rates do not add up: together they carry what the slot does",
        "nothing, unless the slot is slower than the card (PCI-LINK-DEGRADED); by hand, count the card once",
        "NVIDIA/nccl#307; PCI Express base specification (lane rates)",
        _duplicate_faces,
    ),
    Rule(
        "NIC-BOND-ONE-QP",
        "I",
        "a rail is a bond (LAG)",
        "each queue pair uses one member of the bond, so a few pairs may load only one member",
        "nothing with Holmes, which sets NCCL_IB_QPS_PER_CONNECTION=2 on all hosts of the cluster; where all-reduce "
        "stays at half the bond's rate, a larger one in `launch.environment` of job.yaml",
        "NVIDIA/nccl#1015 and PR 2150",
        lambda host: (
            f"{nic.hca} is a bond: one queue pair uses one of its members" for nic in active_ports(host) if nic.bond
        ),
    ),
    Rule(
        "NIC-BOND-DEGRADED",
        "W",
        "a member of a bond has no link",
        "the bond does not reach its rate",
        "repair the member's link: cable, optic, switch port",
        "Linux, Documentation/networking/bonding.rst (MII Status)",
        lambda host: (
            f"{netdev.name}: member {slave.name} is {slave.mii_status}"
            for netdev in host.netdevs
            for slave in netdev.bond_slaves or ()
            if slave.mii_status not in (None, "up")
        ),
    ),
    Rule(
        "NIC-NO-NETDEV-IN-NS",
        "W",
        "Ethernet ports have neither netdev nor GIDs here, and no port is left that has",
        "they belong to another network namespace; Holmes leaves them out, and the job goes over sockets",
        "give the container netdevs of its own RDMA devices, or the host's network (`--network host`)",
        "Linux, rdma-system(8); google/dranet",
        lambda host: () if rails_of(host) else _foreign(host),
    ),
    Rule(
        "NIC-NO-NETDEV-IN-NS",
        "I",
        "Ethernet ports that are no rails have neither netdev nor GIDs here",
        "they belong to another network namespace, and Holmes leaves them out",
        "nothing; by hand, name the container's own devices in NCCL_IB_HCA",
        "Linux, rdma-system(8); google/dranet",
        lambda host: _foreign(host) if rails_of(host) else (),
    ),
    Rule(
        "NIC-NO-UVERBS",
        "F",
        "there are Active RDMA ports, but this user cannot open any /dev/infiniband/uverbs*",
        "no RDMA for this user: NCCL opens no device",
        "in a container `--device=/dev/infiniband/uverbs0` (and so on) or the cluster's RDMA device plugin; "
        "else the files' permissions: the kernel makes them 0666",
        "Linux, drivers/infiniband/core/uverbs_main.c (uverbs_devnode); NVIDIA/nccl#2428",
        _no_uverbs,
    ),
    Rule(
        "IB-IPOIB-BOOTSTRAP",
        "W",
        "an IPoIB interface whose name begins with ib has an address",
        "NCCL's bootstrap prefers names beginning with ib, which other clusters may not reach",
        "nothing with Holmes, which sets NCCL_SOCKET_IFNAME to the shared network; by hand, set it too",
        "NCCL, src/misc/socket.cc; NCCL user guide, environment variables (NCCL_SOCKET_IFNAME)",
        lambda host: together(
            "{} have addresses", (n.name for n in host.netdevs if n.name.startswith("ib") and n.addresses)
        ),
    ),
)

PEER_RULES = (
    PeerRule(
        "NIC-FW-MISMATCH",
        "W",
        "cards of one board model have different firmware in a cluster",
        "uneven speed, rare hangs",
        "update to one version (`mlxfwmanager`, or the vendor's tool)",
        "scitix/sichek, HCA firmware check; " + FIELD,
        _firmware_differs,
    ),
    PeerRule(
        "NIC-DRIVER-MISMATCH",
        "W",
        "kernel or OFED differ between hosts of a cluster",
        "hosts behave differently",
        "align OFED and kernel",
        "scitix/sichek; " + FIELD,
        _drivers_differ,
    ),
    PeerRule(
        "NIC-SET-DIFFERS",
        "W",
        "usable ports have different names on hosts of a cluster",
        "no single NCCL_IB_HCA fits all hosts",
        "nothing with Holmes, which writes a list for each host; by hand, a list for each host too; "
        "`rails:` in hosts.yaml keeps their number equal",
        "NVIDIA/nccl#1277 and #2428",
        lambda hosts: differing(
            hosts, "usable ports", lambda host: ", ".join(n.hca for n in host.nics if n.usable_by_nccl_ib) or None
        ),
    ),
)
