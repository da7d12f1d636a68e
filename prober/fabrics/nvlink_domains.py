"""Find hosts whose GPUs share one NVLink fabric (MNNVL), such as the trays of an NVL72 rack, and report on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import Cluster, Finding, Host, NvlinkDomain
from prober.rule_text import RuleText

IMEX_DOWN = RuleText(
    "NVLINK-IMEX-DOWN",
    "W",
    "hosts are one NVLink domain, and nvidia-imex does not run on one of them",
    "NCCL would stop at NVLink between hosts; the plan sets NCCL_MNNVL_ENABLE=0, and their NICs carry all",
    "the hosts' addresses in /etc/nvidia-imex/nodes_config.cfg, `systemctl enable --now nvidia-imex` on each; "
    "`nvidia-imex-ctl -N` shows whether they found one another",
    "NVIDIA IMEX service guide; NCCL, src/mnnvl.cc",
)
IMEX_NOT_KNOWN = RuleText(
    "NVLINK-IMEX-NOT-KNOWN",
    "I",
    "hosts are one NVLink domain, and whether nvidia-imex runs on all of them is not known",
    "the plan counts on the NICs between these hosts; NCCL takes NVLink where it works",
    "`systemctl is-active nvidia-imex` on each; in a container, a channel in /dev/nvidia-caps-imex-channels",
    "NVIDIA IMEX service guide",
)
NOT_ONE_CLUSTER = RuleText(
    "NVLINK-NOT-ONE-CLUSTER",
    "I",
    "the hosts of an NVLink domain are in several clusters, or in one with others",
    "the plan prices links that leave the domain or the cluster as NICs', and those inside a larger cluster too",
    "if NVLink weighs more than the NICs' fabric to the others: one `cluster:` of their own in hosts.yaml",
    "docs/planning.md of this project",
)
TEXTS = (IMEX_DOWN, IMEX_NOT_KNOWN, NOT_ONE_CLUSTER)

Clique = tuple[str, int]
"""Cluster UUID and clique id. Neither alone is unique, because a rack may be split into several cliques."""


def clique_of(host: Host) -> Clique | None:
    """Return the clique of the host's GPUs; None if they are in none or in several, or a GPU is not set up yet."""
    if any(gpu.fabric_state not in (None, "Completed") for gpu in host.gpus):
        return None
    found = {(gpu.nvlink_cluster, gpu.nvlink_clique) for gpu in host.gpus}
    cluster, clique = next(iter(found)) if len(found) == 1 else (None, None)
    return None if cluster is None or clique is None else (cluster, clique)


def find_nvlink_domains(hosts: Sequence[Host]) -> tuple[NvlinkDomain, ...]:
    """Return the cliques that have several hosts, in order of their first hosts."""
    members: dict[Clique, list[str]] = {}
    for host in hosts:
        if host.reachable and (clique := clique_of(host)) is not None:
            members.setdefault(clique, []).append(host.name)
    several = [(clique, names) for clique, names in members.items() if len(names) > 1]
    return tuple(
        NvlinkDomain(name=f"nvlink-{number}", hosts=tuple(names), cluster_uuid=clique[0], clique=clique[1])
        for number, (clique, names) in enumerate(several, 1)
    )


def domain_findings(
    domains: Iterable[NvlinkDomain], hosts: Sequence[Host], clusters: Sequence[Cluster]
) -> Iterable[Finding]:
    """Yield a finding for each domain whose NVLink plans cannot use: IMEX may not run, or it is not one cluster."""
    by_name = {host.name: host for host in hosts}
    cluster_of = {name: cluster.name for cluster in clusters for name in cluster.hosts}
    for domain in domains:
        seen = f"{domain.name}, clique {domain.clique} of {domain.cluster_uuid}"
        states = {name: by_name[name].imex for name in domain.hosts}
        stopped = [name for name, state in states.items() if state not in (None, "active")]
        unknown = [name for name, state in states.items() if state is None]
        if stopped:
            yield IMEX_DOWN.finding(
                stopped, f"{seen}: nvidia-imex is {', '.join(str(states[name]) for name in stopped)}"
            )
        elif unknown:
            yield IMEX_NOT_KNOWN.finding(unknown, seen)
        around = sorted({cluster_of[name] for name in domain.hosts})
        others = [name for name, cluster in cluster_of.items() if cluster in around and name not in domain.hosts]
        if len(around) > 1 or others:
            more = f", with {len(others)} other hosts" if others else ""
            yield NOT_ONE_CLUSTER.finding(domain.hosts, f"{domain.name}: clusters {', '.join(around)}{more}")
