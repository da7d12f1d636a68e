"""Hosts whose GPUs share one NVLink fabric (MNNVL), as the trays of an NVL72 rack do; and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holmes_core.records.inventory import Cluster, Finding, Host, NvlinkDomain

Clique = tuple[str, int]
"""Cluster UUID and clique id. Neither alone is unique: a rack may be cut into several cliques."""


def clique_of(host: Host) -> Clique | None:
    """The clique that all GPUs of `host` are in; None where they are in none, or in several."""
    found = {(gpu.nvlink_cluster, gpu.nvlink_clique) for gpu in host.gpus}
    cluster, clique = next(iter(found)) if len(found) == 1 else (None, None)
    return None if cluster is None or clique is None else (cluster, clique)


def find_nvlink_domains(hosts: Sequence[Host]) -> tuple[NvlinkDomain, ...]:
    """The cliques that hold several hosts, in order of their first host."""
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
    """Where IMEX does not run, or a domain is not one cluster, NVLink between hosts is not planned for."""
    by_name = {host.name: host for host in hosts}
    cluster_of = {name: cluster.name for cluster in clusters for name in cluster.hosts}
    for domain in domains:
        states = {name: by_name[name].imex for name in domain.hosts}
        stopped = {name: state for name, state in states.items() if state not in (None, "active")}
        if stopped:
            yield _imex_down(domain, stopped)
        elif None in states.values():
            yield _imex_not_known(domain, [name for name, state in states.items() if state is None])
        around = sorted({cluster_of[name] for name in domain.hosts})
        strangers = [name for name, cluster in cluster_of.items() if cluster in around and name not in domain.hosts]
        if len(around) > 1 or strangers:
            yield _not_one_cluster(domain, around, len(strangers))


def _imex_down(domain: NvlinkDomain, stopped: Mapping[str, str]) -> Finding:
    seen = ", ".join(f"{name}: {state}" for name, state in stopped.items())
    return Finding(
        rule="NVLINK-IMEX-DOWN",
        severity="W",
        hosts=tuple(stopped),
        evidence=f"{domain.name}, clique {domain.clique} of {domain.cluster_uuid}: nvidia-imex is {seen}",
        effect="NCCL would stop at NVLink between hosts; the plan sets NCCL_MNNVL_ENABLE=0, and their NICs carry all",
        remedy="the hosts' addresses in /etc/nvidia-imex/nodes_config.cfg, `systemctl enable --now nvidia-imex` on "
        "each; `nvidia-imex-ctl -N` shows whether they found one another",
    )


def _imex_not_known(domain: NvlinkDomain, names: Sequence[str]) -> Finding:
    return Finding(
        rule="NVLINK-IMEX-NOT-KNOWN",
        severity="I",
        hosts=tuple(names),
        evidence=f"{domain.name}, clique {domain.clique} of {domain.cluster_uuid}: nvidia-imex was not asked for",
        effect="the plan counts on the NICs between these hosts; NCCL takes NVLink where it works",
        remedy="`systemctl is-active nvidia-imex` on each; in a container, an IMEX channel in "
        "/dev/nvidia-caps-imex-channels",
    )


def _not_one_cluster(domain: NvlinkDomain, around: Sequence[str], strangers: int) -> Finding:
    more = f", which {'has' if len(around) == 1 else 'have'} {strangers} hosts more" if strangers else ""
    return Finding(
        rule="NVLINK-NOT-ONE-CLUSTER",
        severity="I",
        hosts=domain.hosts,
        evidence=f"{domain.name} of {len(domain.hosts)} hosts is in {', '.join(around)}{more}",
        effect="the plan prices their links as NICs', though NCCL takes NVLink inside the domain",
        remedy="pin `cluster:` of these hosts to one name of their own in hosts.yaml, if NVLink weighs more than the "
        "NICs' fabric to the others",
    )
