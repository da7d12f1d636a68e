"""Findings on hints in hosts.yaml, such as a scheduler's labels, that contradict the facts. Clusters ignore hints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holmes_core.records.inventory import Cluster, Finding, Host
from holmes_core.units import format_names
from prober.fabrics.nvlink_domains import clique_of
from prober.fabrics.union_find import UnionFind
from prober.rule_text import PIN, RuleText

MAX_NAMES = 4

_RULE = "CLUSTER-HINT-CONTRADICTS"
_REMEDY = f"find out which is right: `holmes probe --links` measures; then correct `hints:`, or {PIN}"
_SOURCE = "Holmes, docs/integrations.md (hosts from labels)"

ONE_SWITCH = RuleText(
    _RULE,
    "W",
    "hints put hosts on one switch, but the probe found them in several clusters",
    "none on the plan, which follows the probe; one of these hosts may have lost its connection to the fabric",
    _REMEDY,
    _SOURCE,
)
OTHER_FABRIC = RuleText(
    _RULE,
    "W",
    "a hint names another kind of fabric than the probe found",
    "none on the plan, which follows the probe; the host may have ports that are down or without a driver",
    _REMEDY,
    _SOURCE,
)
NO_SWITCH = RuleText(
    _RULE,
    "I",
    "hints of several levels give hosts of one cluster no switch in common",
    "none on the plan, which follows the probe; RDMA between two fabrics would fail",
    _REMEDY,
    _SOURCE,
)
ONE_NVLINK = RuleText(
    _RULE,
    "W",
    "hints put hosts into one NVLink domain, but their GPUs report several",
    "none on the plan, which counts on NVLink between hosts only where the GPUs say so",
    "compare `nvidia-smi -q` (ClusterUUID) of these hosts, then correct `hints:` in hosts.yaml",
    _SOURCE,
)
TEXTS = (ONE_SWITCH, OTHER_FABRIC, NO_SWITCH, ONE_NVLINK)


def hint_findings(hosts: Sequence[Host], clusters: Sequence[Cluster]) -> Iterator[Finding]:
    """Yield a finding for every switch, kind of fabric, cluster and NVLink domain that hints contradict."""
    reachable = {host.name: host for host in hosts if host.reachable}
    yield from _split_switches(reachable, clusters)
    for cluster in clusters:
        members = [reachable[name] for name in cluster.hosts]
        yield from _other_fabrics(cluster, members)
        yield from _without_switch(cluster, members)
    yield from _split_domains(reachable.values())


def _split_switches(hosts: Mapping[str, Host], clusters: Sequence[Cluster]) -> Iterator[Finding]:
    """Return findings on switches with hosts in several clusters. Only the nearest counts: others may join fabrics."""
    found: dict[str, dict[str, list[str]]] = {}
    for cluster in clusters:
        for name in cluster.hosts:
            for switch in hosts[name].hints.network[:1]:
                found.setdefault(switch, {}).setdefault(cluster.name, []).append(name)
    return _split(ONE_SWITCH, found)


def _split(text: RuleText, groups: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Finding]:
    """Yield a finding on each hinted group whose hosts are in several places. `groups` has hosts by group and place."""
    for group, members in groups.items():
        if len(members) > 1:
            where = "; ".join(f"{format_names(names, MAX_NAMES)} in {place}" for place, names in members.items())
            yield text.finding([name for names in members.values() for name in names], f"{group}: {where}")


def _other_fabrics(cluster: Cluster, members: Sequence[Host]) -> Iterator[Finding]:
    hinted: dict[str, list[str]] = {}
    for host in members:
        if host.hints.fabric not in (None, cluster.fabric.kind):
            hinted.setdefault(str(host.hints.fabric), []).append(host.name)
    for kind, names in hinted.items():
        yield OTHER_FABRIC.finding(names, f"the hint is {kind}; found: {cluster.fabric.kind}, cluster {cluster.name}")


def _without_switch(cluster: Cluster, members: Sequence[Host]) -> Iterator[Finding]:
    """Yield a cluster without a common switch. A single level is a leaf, and one fabric has many."""
    labelled = {host.name: host.hints.network for host in members if len(host.hints.network) > 1}
    sets: UnionFind[str] = UnionFind(labelled)
    first_on: dict[str, str] = {}
    for name, switches in labelled.items():
        sets.join([name, *(first_on.setdefault(switch, name) for switch in switches)])
    groups = sets.groups()
    if len(groups) > 1:
        seen = "; ".join(f"{format_names(group, MAX_NAMES)} below {labelled[group[0]][-1]}" for group in groups[:3])
        more = f"; and {len(groups) - 3} groups more" if len(groups) > 3 else ""
        yield NO_SWITCH.finding(list(labelled), f"cluster {cluster.name}: {seen}{more}")


def _split_domains(hosts: Iterable[Host]) -> Iterator[Finding]:
    found: dict[str, dict[str, list[str]]] = {}
    for host in hosts:
        clique = clique_of(host)
        if host.hints.nvlink is not None and clique is not None:
            found.setdefault(host.hints.nvlink, {}).setdefault(clique[0], []).append(host.name)
    return _split(ONE_NVLINK, found)
