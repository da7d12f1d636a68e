"""Rates and errors: whether a port is as fast as it should be, and loses nothing."""

from __future__ import annotations

from collections.abc import Collection

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from holmes_core.units import bytes_per_s_from_gbps, format_rate
from prober.clusters import fabric_of
from prober.rules.port_rules import LEFT_OUT, active_ports
from prober.rules.rule import Evidence, Rule

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


def _rate_outliers(host: Host) -> Evidence:
    rails = fabric_of(host).rails
    for nic in active_ports(host):
        if rails and nic not in rails and nic.rate_gbps and rails[0].rate_gbps and nic.rate_gbps != rails[0].rate_gbps:
            yield f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, the rails {rails[0].rate_gbps:g} Gbit/s"


def _rate_below_class(host: Host) -> Evidence:
    best: dict[tuple[str, str], float] = {}
    for nic in active_ports(host):
        if nic.hca_type and nic.rate_gbps:
            key = (nic.hca_type, nic.kind)
            best[key] = max(best.get(key, 0.0), nic.rate_gbps)
    for nic in active_ports(host):
        top = best.get((nic.hca_type or "", nic.kind), 0.0)
        if nic.rate_gbps and nic.rate_gbps < top:
            yield f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, other {nic.hca_type} ports here {top:g} Gbit/s"
        elif nic.rate_gbps and nic.rate_gbps < GB10_PORT_GBPS and _is_gb10_face(host, nic):
            yield f"{nic.hca} has {nic.rate_gbps:g} Gbit/s, a port of this machine {GB10_PORT_GBPS} Gbit/s"


def _is_gb10_face(host: Host, nic: Nic) -> bool:
    """GB10 shows each port of its ConnectX-7 in two PCI domains, and the device names say so: p1s0f0, P2p1s0f0."""
    first = nic.device.replace("roceP2p", "rocep")
    second = first.replace("rocep", "roceP2p")
    return first != second and {first, second} <= {other.device for other in host.nics}


def _rate_conflicts(host: Host) -> Evidence:
    named = {conflict.subject for conflict in host.conflicts if conflict.fact == "rate_gbps"}
    speeds = {netdev.name: netdev.speed_bytes_per_s for netdev in host.netdevs}
    for nic in active_ports(host):
        if nic.hca in named:
            continue
        speed = speeds.get(nic.netdev or "")
        if nic.kind == "RoCE" and nic.rate_gbps and speed and speed != bytes_per_s_from_gbps(nic.rate_gbps):
            yield f"{nic.hca} says {nic.rate_gbps:g} Gbit/s, its netdev {nic.netdev} {format_rate(speed)}"
    for conflict in host.conflicts:
        if conflict.fact == "rate_gbps":
            both = f"{conflict.source_a} says {conflict.value_a}, {conflict.source_b} {conflict.value_b}"
            yield f"{conflict.subject}: {both} Gbit/s"


def _grown(host: Host, names: Collection[str]) -> Evidence:
    """Counters of that name that grew while the probe ran."""
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
            if name in FLAP_COUNTERS and value > MOST_FLAPS:
                yield f"{nic.hca}: {name} is {value} since boot"


def _errors(host: Host) -> Evidence:
    """What was counted since boot may be years old; only growth shows a fault that is there now."""
    yield from _grown(host, ERROR_COUNTERS)


HOST_RULES = (
    Rule("NIC-RATE-OUTLIER", "W", "NCCL would use the slow port as a rail", LEFT_OUT, _rate_outliers),
    Rule(
        "NIC-RATE-BELOW-CLASS",
        "F",
        "a ring is as fast as its slowest rail",
        "reseat or change the cable; set the speed at the switch",
        _rate_below_class,
    ),
    Rule(
        "NIC-RATE-CONFLICT",
        "W",
        "what the port can carry is uncertain",
        "trust the netdev for Ethernet; for bonds count the members",
        _rate_conflicts,
    ),
    Rule("NIC-FLAP", "W", "NCCL jobs hang or abort when a link goes", "cable or optic; drain the host", _flaps),
    Rule(
        "NIC-ERRORS",
        "W",
        "packets are lost and sent again; error 12 (retries exceeded) follows",
        "cable or optic, or congestion: look at the switch port, PFC and ECN",
        _errors,
    ),
)
