"""What the user should know of how hosts were put into clusters: what was proved, and what no fact decides."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence

from holmes_core.records.inventory import Finding
from prober.islands.fabric import Fabric
from prober.islands.placing import Placing
from prober.islands.same_fabric import Alike, contradict, find_islands

PIN = "pin `cluster:` in hosts.yaml"


def pin_findings(placing: Placing) -> Iterable[Finding]:
    """A finding for every pinned host that shows another fabric than the first of its label of which most is known."""
    fabrics = placing.fabrics
    for label, names in placing.groups:
        if label is None:
            continue
        islands = find_islands({name: fabrics[name] for name in names}).groups
        main = next((group for group in islands if any(fabrics[name].networks for name in group)), islands[0])
        known = next((fabrics[name] for name in main if fabrics[name].networks), fabrics[main[0]])
        for name in (name for group in islands if group is not main for name in group):
            if name in placing.pinned and contradict(known, fabrics[name]):
                yield Finding(
                    rule="CLUSTER-PIN-CONTRADICTS",
                    severity="W",
                    hosts=(name,),
                    evidence=f"pinned to {label}: it shows {_shown(fabrics[name])}, the cluster {_shown(known)}",
                    effect="groups inside this cluster may have no common fabric",
                    remedy="correct `cluster:` in hosts.yaml, or leave it out and let the probe find it",
                )


def island_findings(placing: Placing, answered: Collection[str]) -> Iterable[Finding]:
    """Findings about hosts that hosts.yaml leaves to the probe; no question about those of which it is `answered`."""
    fabrics = placing.fabrics
    for alike in placing.islands.looked_alike:
        if not set(alike.hosts) <= set(placing.pinned):
            yield _looked_alike(alike, [name for name in placing.not_placed(alike) if name not in answered])
    questions = (
        (placing.fits_several, _fits_several),
        (placing.without_network, _not_known),
        (placing.nothing_in_common, _nothing_in_common),
    )
    for names, question in questions:
        yield from (question(name, fabrics[name]) for name in names if name not in answered)


def _looked_alike(alike: Alike, not_placed: Sequence[str]) -> Finding:
    if not not_placed:
        return Finding(
            rule="CLUSTER-LOOKS-ALIKE",
            severity="I",
            hosts=alike.hosts,
            evidence=f"{alike.proof}: these hosts are on fabrics that look alike",
            effect="none: they are clusters of their own",
            remedy=f"nothing; if it is one fabric all the same, correct what is set twice, or {PIN}",
        )
    return Finding(
        rule="CLUSTER-LOOKS-ALIKE",
        severity="W",
        hosts=alike.hosts,
        evidence=f"{alike.proof}, so this is more than one fabric; with whom are {', '.join(not_placed)}?",
        effect="each of those is a cluster of its own, as RDMA between two fabrics fails",
        remedy=f"{PIN}; `sminfo` on two hosts shows the same GUID if their InfiniBand fabric is the same",
    )


def _fits_several(name: str, fabric: Fabric) -> Finding:
    return Finding(
        rule="CLUSTER-NOT-KNOWN",
        severity="W",
        hosts=(name,),
        evidence=f"it shows {_shown(fabric)}, which fits several clusters",
        effect="which hosts share its fabric cannot be told, so it is a cluster of its own",
        remedy=PIN,
    )


def _not_known(name: str, fabric: Fabric) -> Finding:
    return Finding(
        rule="CLUSTER-NOT-KNOWN",
        severity="W",
        hosts=(name,),
        evidence=f"no IPv4 network is known of its {fabric.kind} interfaces",
        effect="which hosts share its fabric cannot be told, so it is a cluster of its own",
        remedy="give the interfaces addresses, or pin `cluster:` in hosts.yaml",
    )


def _nothing_in_common(name: str, fabric: Fabric) -> Finding:
    asked = "leads anywhere by default" if fabric.routed_anywhere else "leads to another host's"
    address = min(fabric.addresses, key=lambda text: (ipaddress.ip_address(text).version, text))
    return Finding(
        rule="CLUSTER-NOT-KNOWN",
        severity="W",
        hosts=(name,),
        evidence=f"its rails are in {_networks(fabric)}, where no other host is; "
        + (
            f"a route of theirs {asked}, which proves no way"
            if fabric.routed_anywhere
            else f"no route of theirs {asked}"
        ),
        effect="it is a cluster of its own, and other hosts are reached by sockets",
        remedy=f"if `ping -I {address}` reaches another host's rail, {PIN}; otherwise nothing",
    )


def _shown(fabric: Fabric) -> str:
    sms = "".join(f", SM lid {lid}" for lid in sorted(fabric.sm_lids))
    return f"{fabric.kind} on {_networks(fabric) or 'no network'}{sms}"


def _networks(fabric: Fabric) -> str:
    """The first few networks."""
    known = sorted(fabric.networks)
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
