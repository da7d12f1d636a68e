"""The change that would help most: each network twice as fast and one more host in each cluster, all priced.

A faster network is priced on the plan's own placement, which is quick. An added host needs a new plan. If time is left,
so do the best networks, since another placement may gain more. The time for a new plan grows with the number of
candidates, so replanning stops once all changes together have as many candidates as a small fleet. The usual order is
never replanned: the gain of another order would be mistaken for the gain of the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf
from operator import attrgetter
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Order, Plan
from holmes_runtime.config.codec import CODECS, Codec
from planner.advice.changes import Change, FabricRate, LinkRate, MoreHost, TrunkRate
from planner.advice.engine_price import engine_sentence, long_context_sentence, trained_sentence
from planner.advice.other_batch import BatchGain, faster_batch
from planner.background import BackgroundCall
from planner.cost.packing import allowed_codecs
from planner.layout.edge_codecs import WORTH as WORTH_LOSING
from planner.layout.reprice import repacked_step_s, reprice_step_s
from planner.make_plan import planned_step_s
from planner.problem.candidates import enumerate_candidates
from planner.problem.context_groups import context_degrees
from planner.problem.networks import Networks
from planner.problem.problem import read_problem
from planner.time_left import TimeLeft

MAX_HOSTS = 64  # with more, even pricing all changes would take longer than the plan
REPLANNED = 2  # the most faster networks that are replanned
WORTH = 1.005  # a gain below half a percent is not advised


@dataclass(frozen=True)
class Effort:
    """Limits on replanning: candidates in all, and seconds on a machine of any speed.

    `limit_s` are seconds for each added host, and for all faster networks together; `in_all_s` for all of `advise`.
    """

    candidates: int = 4000  # a second or less
    limit_s: float = 5.0
    in_all_s: float = inf


@dataclass(frozen=True)
class Advice:
    """A change, its description, and the resulting seconds of the step."""

    change: Change
    words: str
    step_s: float


class CodecGain(NamedTuple):
    """Seconds of the step if job.yaml allowed this codec and the milder ones."""

    codec: Codec
    step_s: float


@dataclass(frozen=True)
class Advised:
    """The changes that would make the job faster, best first, and the names of those that no time was left for.

    Also codecs that job.yaml does not allow but that would make the step faster, mildest first, and a faster batch; and
    sentences about the price of the engine and the gain of frozen parameters.
    """

    found: tuple[Advice, ...]
    untried: tuple[str, ...]
    codecs: tuple[CodecGain, ...] = ()
    batch: BatchGain | None = None
    engine: tuple[str, ...] = ()


@contextmanager
def trying_more_hosts(
    inventory: Inventory, job: Job, order: Order, effort: Effort
) -> Iterator[Mapping[MoreHost, BackgroundCall[float | None]]]:
    """Plan with one more host in each cluster in the background, while the plan is made without. Leaving ends it.

    The calls return the step in seconds, or None if it would take too long. Nothing is tried if the expert or context
    parallel degree is free: the best one is not known before the plan is.
    """
    is_free = (job.model.experts is not None and job.parallel.ep is None) or len(context_degrees(job)) > 1
    tried = order == "holmes" and len(inventory.hosts) <= MAX_HOSTS and not is_free
    changes = [change for change, _ in _more_hosts(inventory)] if tried else []
    works = (
        partial(_one_more_host_s, inventory, job, change, number, effort) for number, change in enumerate(changes, 1)
    )
    with ExitStack() as stack:
        yield {change: stack.enter_context(BackgroundCall(work)) for change, work in zip(changes, works, strict=True)}


def _one_more_host_s(inventory: Inventory, job: Job, change: MoreHost, number: int, effort: Effort) -> float | None:
    """Return the seconds of the step with the `number`-th change; None if all so far have too many candidates."""
    if number * len(enumerate_candidates(job, read_problem(inventory, job).fleet)) > effort.candidates:
        return None
    return _searched_s(change.applied_to(inventory), job, effort.limit_s)


def advise(
    inventory: Inventory, plan: Plan, with_more_hosts_s: Mapping[MoreHost, float | None], effort: Effort
) -> Advised:
    """Return changes that make `plan`'s job faster; `with_more_hosts_s` are the results of `trying_more_hosts`."""
    if len(inventory.hosts) > MAX_HOSTS:
        of_trained = trained_sentence(inventory, plan, 0.0)
        return Advised((), (f"any change on more than {MAX_HOSTS} hosts",), engine=of_trained)
    left, found, untried = TimeLeft(effort.in_all_s), list[Advice](), list[str]()
    for change, words in _more_hosts(inventory):
        step_s = with_more_hosts_s.get(change)
        if step_s is None:
            untried.append(str(change))
        else:
            found.append(Advice(change, words, step_s))
    networks, unpriced = _price_networks(inventory, plan, effort, len(found) + len(untried), left)
    found, untried = found + networks, untried + unpriced
    worth = [advice for advice in found if advice.step_s * WORTH <= plan.prediction.step_s]
    codecs = tuple(_price_codecs(inventory, plan, effort, left))
    batch = faster_batch(inventory, plan, min(effort.limit_s, left.seconds))
    engine = engine_sentence(inventory, plan, min(effort.limit_s, left.seconds))
    engine += long_context_sentence(inventory, plan, min(effort.limit_s, left.seconds))
    engine += trained_sentence(inventory, plan, min(effort.limit_s, left.seconds))
    return Advised(tuple(sorted(worth, key=attrgetter("step_s"))), tuple(untried), codecs, batch, engine)


def _price_networks(
    inventory: Inventory, plan: Plan, effort: Effort, num_hosts: int, left: TimeLeft
) -> tuple[list[Advice], list[str]]:
    """Return advice for each network twice as fast, and the changes that no time was left for.

    The best are replanned if `effort` allows it after `num_hosts` more hosts.
    """
    replanning, networks, unpriced = TimeLeft(effort.limit_s), list[Advice](), list[str]()
    for change, words in faster_networks(inventory, plan.job):
        if left.seconds:
            networks.append(Advice(change, words, reprice_step_s(change.applied_to(inventory), plan)))
        else:
            unpriced.append(str(change))
    networks.sort(key=attrgetter("step_s"))
    affordable = max(0, min(REPLANNED, effort.candidates // plan.solve.candidates - num_hosts))
    if plan.order == "usual":
        affordable = 0
    for at, advice in enumerate(networks[:affordable]):
        left_s = min(replanning.seconds, left.seconds)
        if left_s > 0:
            anew_s = _searched_s(advice.change.applied_to(inventory), plan.job, left_s, advice.step_s)
            networks[at] = replace(advice, step_s=min(anew_s, advice.step_s))
    return networks, unpriced


def _price_codecs(inventory: Inventory, plan: Plan, effort: Effort, left: TimeLeft) -> Iterator[CodecGain]:
    """Yield the gain of allowing each lossier codec, if any, replanned within the limits of `effort`.

    The plan's own messages are packed only if removing all that they and exchanges add to its step would be worth it.
    """
    if plan.order == "usual" or len(inventory.hosts) == 1 or not plan.job.is_bundled:
        return
    job, now = plan.job, plan.prediction
    packs = (now.step_s - now.exposed_edge_s - now.exposed_dp_s) * WORTH_LOSING <= now.step_s
    replanning, affordable = TimeLeft(effort.limit_s), effort.candidates // max(1, plan.solve.candidates)
    for codec in CODECS[CODECS.index(job.wire.edges) + 1 :]:
        allowing = job.model_copy(update={"wire": job.wire.model_copy(update={"edges": codec})})
        if allowed_codecs(allowing) == allowed_codecs(job) or not left.seconds:
            continue
        step_s = repacked_step_s(inventory, plan, allowing) if packs else now.step_s
        left_s = min(replanning.seconds, left.seconds)
        if affordable > 0 and left_s > 0:
            affordable -= 1
            step_s = min(step_s, _searched_s(inventory, allowing, left_s, step_s))
        if step_s * WORTH_LOSING <= now.step_s:
            yield CodecGain(codec, step_s)


def _searched_s(inventory: Inventory, job: Job, limit_s: float, within_s: float = inf) -> float:
    """Return the step of a new plan, in seconds.

    Infinite if none was found in time, or none takes less than `within_s`: then the old placement still stands.
    """
    try:
        return planned_step_s(inventory, job, limit_s, within_s)
    except HolmesError:
        return inf


def faster_networks(inventory: Inventory, job: Job) -> Iterator[tuple[LinkRate | TrunkRate | FabricRate, str]]:
    """Yield each pair of clusters, trunk and fabric at twice its rate: the measured or the slowest port's, if known."""
    networks = Networks(inventory, job)
    if inventory.shared is not None:
        rates = {port.host: port.bandwidth_bytes_per_s for port in inventory.shared.ports}
        for a, b in combinations(inventory.clusters, 2):
            connection = networks.connection(a.name, b.name)
            median = connection.median.bytes_per_s
            measured = [networks.line_rate(median)] if median else []
            twice = _twice(measured or [rates[host] for host in (*a.hosts, *b.hosts)])
            if twice is not None:
                yield LinkRate((a.name, b.name), twice), f"twice the bandwidth between {a.name} and {b.name}"
            if connection.trunk_bytes_per_s is not None:
                twice = 2 * networks.line_rate(connection.trunk_bytes_per_s)
                yield TrunkRate((a.name, b.name), twice), f"twice the trunk between {a.name} and {b.name}"
    for cluster in inventory.clusters:
        if cluster.name in networks.uplinks:
            twice = 2 * networks.line_rate(networks.uplinks[cluster.name])
            yield TrunkRate((cluster.name,), twice), f"twice the uplink of {cluster.name}"
        ports = cluster.fabric.ports
        rdma = any(port.rdma_bandwidth_bytes_per_s is not None for port in ports)
        if rdma and job.device == "cpu":
            continue  # Gloo uses the netdevs instead
        twice = _twice([port.rdma_bandwidth_bytes_per_s if rdma else port.bandwidth_bytes_per_s for port in ports])
        if twice is not None and len(cluster.hosts) > 1:
            yield FabricRate(cluster.name, twice), f"twice the bandwidth inside {cluster.name}"


def _twice(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate]
    return 2 * min(known) if known and len(known) == len(rates) else None


def _more_hosts(inventory: Inventory) -> Iterator[tuple[MoreHost, str]]:
    """Yield, for each cluster, one more host like its last one."""
    taken = {host.name for host in inventory.hosts}
    for cluster in inventory.clusters:
        like = cluster.hosts[-1]
        name = next(name for number in range(1, len(taken) + 2) if (name := f"new-{number}") not in taken)
        yield MoreHost(name, like), f"one more host like {like} in {cluster.name}"
