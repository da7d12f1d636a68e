"""Rules on rates and error counters of NICs."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from holmes_core.units import bytes_per_s_from_gbps, format_rate
from prober.fabrics.fabric import fabric_of
from prober.rails.choose_rails import rails_of
from prober.rules.port_rules import LEFT_OUT, active_ports
from prober.rules.rule import NO_RAIL, Evidence, PeerEvidence, PeerRule, Rule, below, differing, distinct, majority

MAX_FLAPS = 3
MAX_EFFECTIVE_BER = 1e-12  # InfiniBand Architecture Specification; mlxlink prints 1.5e-254 for no errors
MAX_RAW_BER = 1e-5  # RS(544,514) corrects up to 2.4e-4. Source: IEEE 802.3, clause 91 and annex 120
GB10_PORT_GBPS = 200  # ConnectX-7 of DGX Spark; NVIDIA/dgx-spark-playbooks, multi-sparks-through-switch
NEAR = ("PIX", "PXB")
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


def _outliers(host: Host) -> Iterable[tuple[Nic, str]]:
    """Yield ports with another rate than the rails. Bonds are front ends or storage."""
    rails = rails_of(host)
    for nic in active_ports(host):
        if not rails or nic in rails or nic.bond or not nic.rate_gbps or not rails[0].rate_gbps:
            continue
        if nic.rate_gbps != rails[0].rate_gbps:
            yield nic, f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, the rails {rails[0].rate_gbps:g} Gbit/s"


def _slow_ports(host: Host) -> Evidence:
    """Yield slow ports that may be rails or front ends, if the neighbours of GPUs are not known."""
    known = any(gpu.nearest_nics for gpu in host.gpus)
    yield from (f"{evidence}; a front end may" for _, evidence in _below_class(host) if not known)
    for nic in active_ports(host):
        if nic.rate_gbps and nic.rate_gbps < GB10_PORT_GBPS and _is_gb10_face(host, nic):
            yield f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, a port of this machine {GB10_PORT_GBPS} Gbit/s"


def _below_class(host: Host) -> list[tuple[Nic, str]]:
    best: dict[tuple[str, str, str | None], float] = {}
    ports = [nic for nic in active_ports(host) if nic.hca_type and nic.rate_gbps]
    for nic in ports:
        best[_model(nic)] = max(best.get(_model(nic), 0.0), nic.rate_gbps or 0.0)
    return [
        (nic, f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, other {nic.hca_type} ports here {top_gbps:g} Gbit/s")
        for nic in ports
        if nic.rate_gbps and nic.rate_gbps < (top_gbps := best[_model(nic)])
    ]


def _model(nic: Nic) -> tuple[str, str, str | None]:
    """Return chip, kind and board. Cards of one chip differ by board: a 200 Gbit/s model among 400 ones is not slow."""
    return nic.hca_type or "", nic.kind, nic.board_id


def _is_near_a_gpu(host: Host, nic: Nic) -> bool:
    return any(gpu.nearest_path in NEAR and nic.device in gpu.nearest_nics for gpu in host.gpus)


def _is_gb10_face(host: Host, nic: Nic) -> bool:
    """Return True for a port of GB10, whose ConnectX-7 is in two PCI domains, as names show: p1s0f0, P2p1s0f0."""
    first = nic.device.replace("roceP2p", "rocep")
    second = first.replace("rocep", "roceP2p")
    return first != second and {first, second} <= {other.device for other in host.nics}


def _rate_conflicts(host: Host) -> Evidence:
    reported = {conflict.subject for conflict in host.conflicts if conflict.fact == "rate_gbps"}
    speeds = {netdev.name: netdev.speed_bytes_per_s for netdev in host.netdevs}
    for nic in active_ports(host):
        if nic.hca in reported:
            continue
        speed = speeds.get(nic.netdev or "")
        if nic.kind == "RoCE" and nic.rate_gbps and speed and speed != bytes_per_s_from_gbps(nic.rate_gbps):
            yield f"{nic.hca} says {nic.rate_gbps:g} Gbit/s, its netdev {nic.netdev} {format_rate(speed)}"
    for conflict in host.conflicts:
        if conflict.fact == "rate_gbps":
            both = f"{conflict.source_a} says {conflict.value_a}, {conflict.source_b} {conflict.value_b}"
            yield f"{conflict.subject}: {both} Gbit/s"


def _grown(host: Host, names: Collection[str]) -> Evidence:
    """Yield counters of those names that grew while the probe ran."""
    seconds = host.counter_interval_s
    during = "between two readings" if seconds is None else f"in {seconds:g} s"
    for nic in host.nics:
        for name, growth in nic.counter_growth or ():
            if name in names:
                yield f"{nic.hca}: {name} grew by {growth} {during}"


def _flaps(host: Host) -> Evidence:
    yield from _grown(host, FLAP_COUNTERS)
    for nic in active_ports(host):
        for name, value in nic.counters:
            if name in FLAP_COUNTERS and value > MAX_FLAPS:
                yield f"{nic.hca}: {name} is {value} since boot"


def _bit_errors(host: Host) -> Evidence:
    for nic in active_ports(host):
        if nic.effective_ber is not None and nic.effective_ber > MAX_EFFECTIVE_BER:
            yield f"{nic.hca}: {nic.effective_ber:.0e} bit errors a bit after error correction"
        elif nic.raw_ber is not None and nic.raw_ber > MAX_RAW_BER:
            yield f"{nic.hca}: {nic.raw_ber:.0e} bit errors a bit before error correction, near its limit"


def _rails_below_peers(peers: Sequence[Host]) -> PeerEvidence:
    """Compare the rates of rails of one model. Hosts with other cards are another class, not a fault."""
    models = sorted({nic.hca_type for host in peers for nic in rails_of(host) if nic.hca_type})
    for model in models:
        yield from below(peers, f"rails ({model})", functools.partial(_rate_gbps, model), "{:g} Gbit/s".format)
    yield from below(peers, "netdev of the fabric", _netdev_rate, format_rate)


def _rate_gbps(model: str, host: Host) -> float | None:
    """Return the rate of the host's slowest rail of that model."""
    return min((nic.rate_gbps for nic in rails_of(host) if nic.hca_type == model and nic.rate_gbps), default=None)


def _netdev_rate(host: Host) -> float | None:
    """Return the bytes per second of the netdev of a host without rails."""
    netdev = None if rails_of(host) else fabric_of(host).netdev
    return netdev.speed_bytes_per_s if netdev else None


def _fewer_rails(peers: Sequence[Host]) -> PeerEvidence:
    """Yield hosts with fewer rails than most: a lost card leaves no trace on its own host.

    If `gpus:` names a part of the GPUs, a rail for each of them is enough.
    """
    rails = {host.name: rails_of(host) for host in peers}
    usual = majority(len(found) for found in rails.values() if found) or 0
    for host in peers:
        models = {rail.hca_type for rail in rails[host.name]} - {None}
        wanted = usual if host.gpus_stated is None else min(usual, len(host.gpus))
        if 0 < len(rails[host.name]) < wanted:
            left = [nic for nic in active_ports(host) if nic not in rails[host.name] and nic.hca_type in models]
            why = "".join(f"; {nic.hca}: {nic.rail_why or nic.why}" for nic in left)
            yield (host.name,), f"rails: {len(rails[host.name])} here, {usual:g} on most hosts of the cluster{why}"


_SLOW_REMEDY = (
    "reseat or change the cable; look at the speed that is set at the switch and by `mlxlink` or `ethtool`; " + NO_RAIL
)

_OUTLIER_SOURCE = "stas00/ml-engineering, network; NCCL user guide, environment variables (NCCL_IB_HCA)"

HOST_RULES = (
    Rule(
        "NIC-RATE-OUTLIER",
        "W",
        "an Active port beside a GPU (PIX or PXB), no bond, is of another rate than the rails and left out of them",
        "if it is to be a rail, the GPU has none so near",
        LEFT_OUT,
        _OUTLIER_SOURCE,
        lambda host: (seen for nic, seen in _outliers(host) if _is_near_a_gpu(host, nic)),
    ),
    Rule(
        "NIC-RATE-OUTLIER",
        "I",
        "an Active port, no bond and beside no GPU, is of another rate than the rails and left out of them",
        "none: a front end or storage",
        LEFT_OUT,
        _OUTLIER_SOURCE,
        lambda host: (seen for nic, seen in _outliers(host) if not _is_near_a_gpu(host, nic)),
    ),
    Rule(
        "NIC-RATE-BELOW-CLASS",
        "F",
        "a port beside a GPU (PIX or PXB) is slower than other ports of its board model on the host",
        "a ring is as fast as its slowest rail",
        _SLOW_REMEDY,
        "NCCL user guide, networking troubleshooting (no unexpected downshift); NVIDIA/nccl#307",
        lambda host: (seen for nic, seen in _below_class(host) if _is_near_a_gpu(host, nic)),
    ),
    Rule(
        "NIC-RATE-BELOW-CLASS",
        "W",
        "a port is slower than others of its board model and where it stands is not known, or a GB10 port is below 200",
        "if it is to be a rail: a ring is as fast as its slowest",
        _SLOW_REMEDY,
        "NCCL user guide, networking troubleshooting (no unexpected downshift); NVIDIA/dgx-spark-playbooks",
        _slow_ports,
    ),
    Rule(
        "NIC-RATE-CONFLICT",
        "W",
        "the RDMA port and its netdev, or two tools, name different rates",
        "what the port can carry is uncertain",
        "trust the netdev for Ethernet; for bonds count the members",
        "deepseek-ai/DeepEP#671; Azure/azhpc-diagnostics",
        _rate_conflicts,
    ),
    Rule(
        "NIC-FLAP",
        "W",
        "link_downed or link_error_recovery grew during the probe, or is above 3 since boot",
        "NCCL jobs hang or abort when a link goes down",
        "check the cable and optic; drain the host",
        "NCCL user guide, networking troubleshooting (port error counters); leptonai/gpud",
        _flaps,
    ),
    Rule(
        "NIC-ERRORS",
        "W",
        "error counters of a port grew during the probe",
        "packets are lost and sent again; error 12 (retries exceeded) follows",
        "check the cable, the optic and, for congestion, the switch port, PFC and ECN",
        "NCCL user guide, networking troubleshooting (RDMA protocol statistics); NVIDIA/nccl#426",
        lambda host: _grown(host, ERROR_COUNTERS),  # counts since boot may be years old
    ),
    Rule(
        "NIC-BIT-ERRORS",
        "W",
        "a port's bit error rate is above 1e-12 after error correction, or above 1e-5 before it",
        "packets are lost and sent again, and the link may go down under load",
        "clean or change the cable and optics at both ends; `mlxlink -d DEVICE -m -c -e` shows levels and eyes",
        "InfiniBand architecture (bit error rate); NVIDIA MFT documentation, mlxlink (--show_counters)",
        _bit_errors,
    ),
)

PEER_RULES = (
    PeerRule(
        "NIC-FEC-DIFFERS",
        "I",
        "rails of a cluster's hosts use different error correction",
        "similar links behave differently: one without it loses packets that others repair",
        "the same FEC at all ports and switches: `mlxlink -d DEVICE --fec AU` lets both ends agree",
        "NVIDIA MFT documentation, mlxlink (--fec)",
        lambda hosts: differing(
            hosts, "error correction of the rails", lambda host: distinct(nic.fec for nic in rails_of(host))
        ),
    ),
    PeerRule(
        "NIC-RATE-BELOW-CLASS",
        "W",
        "all rails of a host are slower than rails of the same card on most hosts of its cluster",
        "a ring is as fast as its slowest host",
        _SLOW_REMEDY,
        "NCCL user guide, networking troubleshooting (no unexpected downshift)",
        _rails_below_peers,
    ),
    PeerRule(
        "NIC-COUNT-DIFFERS",
        "W",
        "a host has fewer rails than most hosts of its cluster",
        "a card or port disappeared without a trace, and every ring only has the rails of the host with the fewest",
        "`lspci -d 15b3:` (by vendor) and the kernel log there: a card may have fallen off the bus; where a "
        "port is left out that should be a rail, name the rails by `rails:` in hosts.yaml",
        "NVIDIA/NVSentinel, NIC health monitor; Azure/azurehpc-health-checks (expected counts by machine)",
        _fewer_rails,
    ),
)
