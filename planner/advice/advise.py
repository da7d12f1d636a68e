"""Which change would help most: every network twice as fast and one host more in each cluster, really priced.

A faster network is priced on the plan's own placement, which is quick; an added host takes planning anew, and so do the
best networks where there is time left, since another placement may gain more. What planning anew takes grows with the
candidates, so as many changes are planned anew as look at no more candidates than a small fleet has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from planner.advice.changes import Change, FabricRate, LinkRate, MoreHost
from planner.background import BackgroundCall
from planner.layout.reprice import reprice_step_s
from planner.make_plan import planned_step_s
from planner.problem.candidates import enumerate_candidates
from planner.problem.problem import read_problem

MOST_HOSTS = 64  # on more, even pricing all changes would take longer than the plan
MOST_CANDIDATES = 4000  # of all planning anew together: a second or less
REPLANNED = 2  # faster networks planned anew at most
LIMIT_S = 5.0  # for planning anew with each more host, and with all faster networks, on a machine however slow
WORTH = 1.005  # a gain below half a percent is no advice


@dataclass(frozen=True)
class Advice:
    """A change, what it means in words, and the seconds of the step it would give."""

    change: Change
    words: str
    step_s: float


@dataclass(frozen=True)
class Advised:
    """The changes that would make the job faster, best first, and in words those there was no time to try."""

    found: tuple[Advice, ...]
    untried: tuple[str, ...]


def try_more_hosts(inventory: Inventory, job: Job) -> Mapping[MoreHost, BackgroundCall[float | None]]:
    """By change, the step with one more host in a cluster, planned in the background; None where that takes too long.

    Needs no plan, so that it can be worked out while one is made.
    """
    if len(inventory.hosts) > MOST_HOSTS:
        return {}
    changes = [change for change, _ in _more_hosts(inventory)]
    return {
        change: BackgroundCall(partial(_one_more_host_s, inventory, job, change, number))
        for number, change in enumerate(changes, 1)
    }


def _one_more_host_s(inventory: Inventory, job: Job, change: MoreHost, number: int) -> float | None:
    """Seconds of the step with that change, the `number`-th tried; None where all so far have too many candidates."""
    if number * len(enumerate_candidates(job, read_problem(inventory, job).fleet)) > MOST_CANDIDATES:
        return None
    return _planned_anew_s(inventory, job, change, LIMIT_S)


def advise(
    inventory: Inventory, plan: Plan, with_more_hosts_s: Mapping[MoreHost, float | None], limit_s: float = LIMIT_S
) -> Advised:
    """What would make `plan`'s job faster; `with_more_hosts_s` is what `try_more_hosts` came to."""
    deadline_s, step_s = time.monotonic() + limit_s, plan.prediction.step_s
    if len(inventory.hosts) > MOST_HOSTS:
        return Advised((), (f"any change on more than {MOST_HOSTS} hosts",))
    found, untried = [], []
    hosts = list(_more_hosts(inventory))
    for change, words in hosts:
        with_host_s = with_more_hosts_s.get(change)
        if with_host_s is None:
            untried.append(str(change))
        else:
            found.append(Advice(change, words, with_host_s))
    networks = [
        Advice(change, words, reprice_step_s(change.applied_to(inventory), plan))
        for change, words in _faster_networks(inventory)
    ]
    networks.sort(key=_step_s)
    affordable = min(REPLANNED, MOST_CANDIDATES // plan.solve.candidates - len(hosts))
    for at, advice in enumerate(networks):
        left_s = deadline_s - time.monotonic()
        if at < affordable and left_s > 0:
            anew_s = _planned_anew_s(inventory, plan.job, advice.change, left_s)
            advice = replace(advice, step_s=min(anew_s, advice.step_s))
        found.append(advice)
    worth = sorted((advice for advice in found if advice.step_s * WORTH <= step_s), key=_step_s)
    return Advised(tuple(worth), tuple(untried))


def _planned_anew_s(inventory: Inventory, job: Job, change: Change, limit_s: float) -> float:
    """The step of a new plan; infinite where none was found in time, as then the old placement still stands."""
    try:
        return planned_step_s(change.applied_to(inventory), job, limit_s)
    except HolmesError:
        return inf


def _faster_networks(inventory: Inventory) -> Iterator[tuple[LinkRate | FabricRate, str]]:
    """Each pair of clusters, and each fabric, at twice its slowest port's rate, where that is known."""
    if inventory.shared is not None:
        rates = {port.host: port.bandwidth_bytes_per_s for port in inventory.shared.ports}
        for a, b in combinations(inventory.clusters, 2):
            twice = _twice([rates[host] for host in (*a.hosts, *b.hosts)])
            if twice is not None:
                yield LinkRate((a.name, b.name), twice), f"twice the bandwidth between {a.name} and {b.name}"
    for cluster in inventory.clusters:
        ports = cluster.fabric.ports
        rdma = any(port.rdma_bandwidth_bytes_per_s is not None for port in ports)
        twice = _twice([port.rdma_bandwidth_bytes_per_s if rdma else port.bandwidth_bytes_per_s for port in ports])
        if twice is not None and len(cluster.hosts) > 1:
            yield FabricRate(cluster.name, twice), f"twice the bandwidth inside {cluster.name}"


def _twice(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return 2 * min(known) if known and len(known) == len(rates) else None


def _more_hosts(inventory: Inventory) -> Iterator[tuple[MoreHost, str]]:
    """One host more like the last of each cluster."""
    taken = {host.name for host in inventory.hosts}
    for cluster in inventory.clusters:
        like = cluster.hosts[-1]
        name = next(name for number in range(1, len(taken) + 2) if (name := f"new-{number}") not in taken)
        yield MoreHost(name, like), f"one more host like {like} in {cluster.name}"


def _step_s(advice: Advice) -> float:
    return advice.step_s
