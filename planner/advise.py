"""Which change would help most: every network twice as fast and one host more in each cluster, really priced.

A faster network is priced on the plan's own placement, which is quick; an added host takes planning anew, and so do the
best networks where there is time left, since another placement may gain more. What planning anew takes grows with the
candidates, so as many changes are planned anew as look at no more candidates than a small fleet has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from holmes_core.errors import HolmesError
from holmes_core.inventory import Inventory
from holmes_core.plan import Plan, Prediction
from planner.make_plan import best_prediction
from planner.reprice import reprice
from planner.what_if import rate_text, what_if

MOST_HOSTS = 64  # on more, even pricing all changes would take longer than the plan
MOST_CANDIDATES = 2000  # of all planning anew together: a second or less
REPLANNED = 2  # faster networks planned anew at most
LIMIT_S = 5.0  # for all planning anew, on a machine however slow
WORTH = 1.005  # a gain below half a percent is no advice


@dataclass(frozen=True)
class Advice:
    """A change as `--what-if` takes it, in words, and the step it would give."""

    change: str
    words: str
    prediction: Prediction


@dataclass(frozen=True)
class Advised:
    """The changes that would make the job faster, best first, and those there was no time to try."""

    found: tuple[Advice, ...]
    untried: tuple[str, ...]


def advise(inventory: Inventory, plan: Plan, limit_s: float = LIMIT_S) -> Advised:
    """What would make `plan`'s job faster."""
    deadline_s = time.monotonic() + limit_s
    if len(inventory.hosts) > MOST_HOSTS:
        return Advised((), (f"any change on more than {MOST_HOSTS} hosts",))
    networks = [
        Advice(change, words, reprice(what_if(inventory, change), plan))
        for change, words in _faster_networks(inventory)
    ]
    networks.sort(key=_speed, reverse=True)
    hosts = [Advice(change, words, plan.prediction) for change, words in _more_hosts(inventory)]
    affordable = MOST_CANDIDATES // plan.solve.candidates
    found, untried = networks[REPLANNED:], []
    for at, advice in enumerate((*hosts, *networks[:REPLANNED])):
        left_s = deadline_s - time.monotonic()
        tried = at < affordable and left_s > 0
        found.append(_replanned(inventory, plan, advice, left_s) if tried else advice)
        untried += [advice.change] if not tried and at < len(hosts) else []
    least = plan.prediction.tokens_per_s * WORTH
    worth = sorted((advice for advice in found if _speed(advice) >= least), key=_speed, reverse=True)
    return Advised(tuple(worth), tuple(untried))


def _replanned(inventory: Inventory, plan: Plan, advice: Advice, limit_s: float) -> Advice:
    """`advice` with the better of its own prediction and that of a new plan."""
    try:
        anew = best_prediction(what_if(inventory, advice.change), plan.job, limit_s)
    except HolmesError:  # no plan was found in time: the old placement still stands
        return advice
    better = max(anew, advice.prediction, key=lambda prediction: prediction.tokens_per_s)
    return Advice(advice.change, advice.words, better)


def _faster_networks(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """Each pair of clusters, and each fabric, at twice its slowest port's rate, where that is known."""
    if inventory.shared is not None:
        rates = {port.host: port.bandwidth_bytes_per_s for port in inventory.shared.ports}
        for a, b in combinations(inventory.clusters, 2):
            twice = _twice([rates[host] for host in (*a.hosts, *b.hosts)])
            if twice is not None:
                yield f"link:{a.name}-{b.name}={twice}", f"twice the bandwidth between {a.name} and {b.name}"
    for cluster in inventory.clusters:
        ports = cluster.fabric.ports
        rdma = any(port.rdma_bandwidth_bytes_per_s is not None for port in ports)
        twice = _twice([port.rdma_bandwidth_bytes_per_s if rdma else port.bandwidth_bytes_per_s for port in ports])
        if twice is not None and len(cluster.hosts) > 1:
            yield f"fabric:{cluster.name}={twice}", f"twice the bandwidth inside {cluster.name}"


def _twice(rates: list[float | None]) -> str | None:
    known = [rate for rate in rates if rate is not None]
    return rate_text(2 * min(known)) if known and len(known) == len(rates) else None


def _more_hosts(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """One host more like the last of each cluster."""
    taken = {host.name for host in inventory.hosts}
    for cluster in inventory.clusters:
        like = cluster.hosts[-1]
        name = next(name for number in range(1, len(taken) + 2) if (name := f"new-{number}") not in taken)
        yield f"+host:{name}=like:{like}", f"one more host like {like} in {cluster.name}"


def _speed(advice: Advice) -> float:
    return advice.prediction.tokens_per_s
