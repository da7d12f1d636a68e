"""Sentences about facts of hosts that a plan assumes because the inventory lacks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from holmes_core.records.inventory import Host, Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_memory, format_names
from planner.cost.slot import assumed_links

MAX_NAMED = 8  # hosts in a sentence
MIN_NAMED_BYTES = 2**30  # any host that trains is assumed to have more


def unknown_host_sentences(plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Yield sentences about hosts whose memory the plan needs but the inventory lacks, and GPUs with assumed links."""
    hosts = [inventory.host(node.host) for node in plan.nodes]
    remedy = "`holmes probe` again, or look there" if plan.sketch is None else "set `memory_gib` in the sketch's YAML"
    yield from _memory_sentence(plan, hosts, remedy)
    if plan.job.device == "cuda":
        yield from _link_sentence(plan, hosts)


def _memory_sentence(plan: Plan, hosts: Iterable[Host], remedy: str) -> Iterator[str]:
    needed = plan.prediction.host_memory_bytes
    unknown = {host.name for host in hosts if host.memory_bytes is None}
    if not needed or not unknown:
        return
    by_host = dict.fromkeys(unknown, 0)
    for rank in plan.ranks:
        if rank.host in unknown:
            by_host[rank.host] += needed[rank.pp_rank]
    most = max(by_host.values())
    if most >= MIN_NAMED_BYTES:
        yield (
            f"The plan needs up to {format_memory(most)} of a host's own memory. The inventory lacks its size for "
            f"{format_names(sorted(unknown), MAX_NAMED)}: {remedy}."
        )


def _link_sentence(plan: Plan, hosts: Iterable[Host]) -> Iterator[str]:
    ranks = Counter(rank.host for rank in plan.ranks)
    assumed: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        for name, links in {gpu.name: assumed_links(gpu) for gpu in host.for_job().gpus if gpu.name}.items():
            if links is not None and ranks[host.name] > 1:
                assumed.setdefault((name, links), []).append(host.name)
    for (name, links), names in assumed.items():
        yield (
            f"The links between GPUs of {format_names(names, MAX_NAMED)} are not known, and the name {name} does not "
            f"show them: {links} is assumed. Run `nvidia-smi nvlink --status` there, then `holmes probe` again."
        )
