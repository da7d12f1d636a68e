"""Report pins that facts contradict, fabrics that look alike, and hosts that no fact places."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence

from holmes_core.records.inventory import Finding
from holmes_core.units import format_names
from prober.fabrics.fabric import Fabric
from prober.fabrics.placing import Placing
from prober.fabrics.same_fabric import MistakenFabric, contradict, partition_by_fabric
from prober.rule_text import PIN, RuleText

_PROOF = "Holmes, docs/probe.md (which hosts are one cluster)"
_ASK = f"`holmes probe --links` tries it by RDMA; or {PIN}"

PIN_CONTRADICTS = RuleText(
    "CLUSTER-PIN-CONTRADICTS",
    "W",
    "hosts.yaml pins a host to a cluster with another fabric",
    "groups inside this cluster may have no common fabric",
    "correct `cluster:` in hosts.yaml, or remove it and let the probe find the cluster",
    _PROOF,
)
FITS_SEVERAL = RuleText(
    "CLUSTER-NOT-KNOWN",
    "W",
    "a host's networks fit several clusters",
    "it is unknown which hosts share its fabric, so it becomes a separate cluster",
    _ASK,
    _PROOF,
)
NO_NETWORK = RuleText(
    "CLUSTER-NOT-KNOWN",
    "W",
    "no network of a host's RDMA interfaces is known",
    FITS_SEVERAL.effect,
    f"give the interfaces addresses; {_ASK}",
    _PROOF,
)
NOTHING_IN_COMMON = RuleText(
    "CLUSTER-NOT-KNOWN",
    "W",
    "no other host's networks meet a host's by a proved route",
    "it becomes a separate cluster, and reaches other hosts by sockets",
    f"if `ping -I ADDRESS` reaches another host's rail: {_ASK}; otherwise nothing",
    _PROOF,
)
ALIKE = RuleText(
    "CLUSTER-LOOKS-ALIKE",
    "I",
    "a LID or all addresses of a host are another's too, and the networks around them tell the fabrics apart",
    "none: they are separate clusters",
    f"nothing; if it is one fabric all the same, correct what is set twice, or {PIN}",
    f"InfiniBand architecture (a LID is unique in its subnet); {_PROOF}",
)
ALIKE_NOT_PLACED = RuleText(
    "CLUSTER-LOOKS-ALIKE",
    "W",
    "a LID or all addresses of a host are another's too, and nothing tells with whom some of the hosts are",
    "each of them becomes a separate cluster, because RDMA between two fabrics fails",
    f"{_ASK}; correct an address that is set twice by mistake; on InfiniBand the probe asks `sminfo`, "
    "which tells fabrics apart, where the user may write to /dev/infiniband/umad*",
    "InfiniBand architecture (a LID is unique in its subnet); infiniband-diags, sminfo(8)",
)
TEXTS = (PIN_CONTRADICTS, FITS_SEVERAL, NO_NETWORK, NOTHING_IN_COMMON, ALIKE, ALIKE_NOT_PLACED)


def pin_findings(placing: Placing) -> Iterable[Finding]:
    """Yield a finding for every pinned host whose fabric contradicts that of its cluster's first hosts."""
    fabrics = placing.fabrics
    for label, names in placing.groups:
        if label is None:
            continue
        groups = partition_by_fabric({name: fabrics[name] for name in names}).groups
        main = next((group for group in groups if any(fabrics[name].networks for name in group)), groups[0])
        known = next((fabrics[name] for name in main if fabrics[name].networks), fabrics[main[0]])
        for name in (name for group in groups if group is not main for name in group):
            if name in placing.pinned and contradict(known, fabrics[name]):
                seen = f"pinned to {label}: it shows {_shown(fabrics[name])}, the cluster {_shown(known)}"
                yield PIN_CONTRADICTS.finding((name,), seen)


def fabric_findings(placing: Placing, answered: Collection[str]) -> Iterable[Finding]:
    """Yield findings on hosts that hosts.yaml does not pin. Ask nothing about hosts in `answered`."""
    fabrics = placing.fabrics
    for alike in placing.partition.looked_alike:
        if not set(alike.hosts) <= set(placing.pinned):
            yield _looked_alike(alike, [name for name in placing.not_placed(alike) if name not in answered])
    for name in (name for name in placing.fits_several if name not in answered):
        yield FITS_SEVERAL.finding((name,), f"it shows {_shown(fabrics[name])}, which fits several clusters")
    for name in (name for name in placing.without_network if name not in answered):
        yield NO_NETWORK.finding((name,), f"no IPv4 network is known of its {fabrics[name].kind} interfaces")
    for name in (name for name in placing.nothing_in_common if name not in answered):
        yield _nothing_in_common(name, fabrics[name])


def _looked_alike(alike: MistakenFabric, not_placed: Sequence[str]) -> Finding:
    if not not_placed:
        return ALIKE.finding(alike.hosts, f"{alike.proof}: these hosts are on fabrics that look alike")
    seen = f"{alike.proof}, which no two hosts of one fabric can; with whom are {', '.join(not_placed)}?"
    return ALIKE_NOT_PLACED.finding(not_placed, seen)


def _nothing_in_common(name: str, fabric: Fabric) -> Finding:
    way = (
        "a route of theirs leads anywhere by default, which proves no way"
        if fabric.routed_anywhere
        else "no route of theirs leads to another host's"
    )
    address = min(fabric.addresses, key=lambda text: (ipaddress.ip_address(text).version, text))
    return NOTHING_IN_COMMON.finding(
        (name,),
        f"its rails are in {_networks(fabric)}, where no other host is; {way}",
        NOTHING_IN_COMMON.remedy.replace("ADDRESS", address),
    )


def _shown(fabric: Fabric) -> str:
    sms = "".join(f", SM lid {lid}" for lid in sorted(fabric.sm_lids))
    sms += "".join(f", SM GUID {guid}" for guid in sorted(fabric.sm_guids))
    return f"{fabric.kind} on {_networks(fabric) or 'no network'}{sms}"


def _networks(fabric: Fabric) -> str:
    """Return the first few networks as text."""
    return format_names(sorted(fabric.networks), 3)
