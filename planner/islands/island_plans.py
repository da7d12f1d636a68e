"""The ways to train as islands: the plan of each island, and the round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.measured_networks import relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, SourceFile
from holmes_core.units import format_memory
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_settings import ChosenIslands, IslandsSettings
from planner.cluster_subset import only_clusters, training_clusters
from planner.cost.counts import outer_bytes
from planner.islands.island_rounds import IslandRound, make_round
from planner.islands.outer_sync_cost import price_exchange
from planner.islands.setting_choice import choose_round, open_settings
from planner.layout.reprice import reprice_step_s
from planner.make_plan import make_plan
from planner.problem.memory_room import usable_host_bytes
from planner.problem.networks import Networks
from planner.time_left import TimeLeft

Planned = dict[tuple[tuple[str, ...], int], Plan | HolmesError]
"""The plan of an island, or its error, by the island's clusters and the number of islands."""


@dataclass(frozen=True)
class IslandPlans:
    """The groupings of clusters that may be islands, each with its plans, and the reasons against all others."""

    inventory: Inventory
    job: Job
    found: tuple[tuple[Grouping, tuple[Plan, ...]], ...]
    refused: tuple[str, ...]

    def best_round(self) -> IslandRound | str:
        """Return the round of the best setting on the present networks, or the reason why there is none."""
        return self.best_round_on(self.inventory)

    def best_round_on(self, inventory: Inventory) -> IslandRound | str:
        """Return the same on the networks of `inventory`, with the same plans."""
        rounds, refused = self.own_rounds if inventory is self.inventory else self.rounds_on(inventory)
        best = choose_round(rounds)
        if best is None and rounds and self.job.islands is not None:
            refused = (
                *refused,
                *(each.misfit for each in rounds if each.misfit),
                f"no setting is known to cost max_loss_penalty {self.job.islands.max_loss_penalty} or less",
            )
        return best or "; ".join(dict.fromkeys(refused))

    @cached_property
    def own_rounds(self) -> tuple[tuple[IslandRound, ...], tuple[str, ...]]:
        """The rounds on the present networks, and the reasons why groupings have none."""
        return self.rounds_on(self.inventory)

    def rounds_on(self, inventory: Inventory) -> tuple[tuple[IslandRound, ...], tuple[str, ...]]:
        """Return the fastest round of each setting that the job allows, and the reasons why groupings have none."""
        networks, settings, refused = Networks(inventory, self.job), self._settings, list(self.refused)
        best = dict[ChosenIslands, IslandRound]()
        if not settings:
            refused.append(f"no round of up to half of the job's {self.job.steps} steps fits what `islands` fixes")
        for grouping, plans in self.found:
            steps_s = [self._step_s(inventory, *each) for each in zip(grouping, plans, strict=True)]
            priced = {
                codec: price_exchange(networks, self.job, codec, plans) for codec in {each.codec for each in settings}
            }
            made = [make_round(each, self.job, plans, steps_s, priced[each.codec]) for each in settings]
            fitting = [each for each in made if isinstance(each, IslandRound)]
            refused += [each for each in made[:1] if isinstance(each, str) and not fitting]
            for each in fitting:
                each = replace(each, misfit=self._misfit(each.settings, grouping, plans))
                if each.settings not in best or _rank(each) > _rank(best[each.settings]):
                    best[each.settings] = each
        return tuple(best.values()), tuple(refused)

    def _misfit(self, settings: ChosenIslands, grouping: Grouping, plans: Sequence[Plan]) -> str:
        """Return the reason why an island has no room for the settings; empty if all have. Its plan then takes less."""
        for clusters, plan in zip(grouping, plans, strict=True):
            if plan.job.islands is not None and outer_bytes(plan.job.islands) < outer_bytes(settings):
                needed = format_memory(_outer_memory(self.job, settings))
                return f"{needed} of host memory, too much for {' and '.join(clusters)}"
        return ""

    @cached_property
    def _settings(self) -> tuple[ChosenIslands, ...]:
        return open_settings(self.job)

    def _step_s(self, inventory: Inventory, clusters: Sequence[str], plan: Plan) -> float:
        """Return the seconds of an island's step. Networks between clusters change them only if it is on several."""
        if len(clusters) == 1 or inventory is self.inventory:
            return plan.prediction.step_s
        return reprice_step_s(only_clusters(inventory, clusters), plan)


def plan_islands(
    inventory: Inventory,
    job: Job,
    sources: tuple[SourceFile, SourceFile],
    time_limit_s: float,
    tell: Callable[[str], None],
) -> IslandPlans:
    """Return an ordinary plan for each island of each grouping, with its share of the batch."""
    refusal = _refusal(inventory, job)
    names, relayed = training_clusters(inventory), relayed_pairs(inventory)
    ways = [
        each
        for each in (groupings(names) if not refusal else ())
        if own_data(job) <= {*each} and not any(pair.issubset(island) for pair in relayed for island in each)
    ]
    wanted = dict.fromkeys((clusters, len(way)) for way in ways for clusters in way)
    planned, left = Planned(), TimeLeft(time_limit_s)
    for clusters, num_islands in wanted:
        tell(f"planning {' and '.join(clusters)} as one of {num_islands} islands")
        within_s = left.seconds / (len(wanted) - len(planned))
        planned[clusters, num_islands] = _plan_island(inventory, job, sources, clusters, num_islands, within_s)
    found, refused = list[tuple[Grouping, tuple[Plan, ...]]](), [refusal] if refusal else []
    for way in ways:
        answers = [planned[clusters, len(way)] for clusters in way]
        plans = tuple(answer for answer in answers if isinstance(answer, Plan))
        if len(plans) == len(way):
            found.append((way, plans))
        for clusters, answer in zip(way, answers, strict=True):
            if isinstance(answer, HolmesError):
                refused.append(f"{' and '.join(clusters)}: {answer.what}")
    return IslandPlans(inventory, job, tuple(found), tuple(dict.fromkeys(refused)))


def own_data(job: Job) -> set[tuple[str, ...]]:
    """Return the required islands: each cluster that has its own data forms one."""
    return {(name,) for name in job.islands.data} if job.islands is not None else set()


def _refusal(inventory: Inventory, job: Job) -> str:
    """Return the reason why no islands are possible; empty if some may be."""
    assert job.islands is not None
    clusters, quorum = len(training_clusters(inventory)), job.islands.quorum
    if clusters < 2:
        return "the inventory has one cluster"
    if quorum > clusters:
        return f"islands.quorum is {quorum}, there are {clusters} clusters"
    return ""


def _plan_island(
    inventory: Inventory,
    job: Job,
    sources: tuple[SourceFile, SourceFile],
    clusters: Sequence[str],
    num_islands: int,
    time_limit_s: float,
) -> Plan | HolmesError:
    assert job.islands is not None
    batch = island_batch(job, num_islands)
    if batch < 1:
        size = job.parallel.micro_batch_size or 1
        return HolmesError(
            f"global_batch_size {job.global_batch_size} is less than a micro-batch of {size} for {num_islands} islands",
            "make global_batch_size larger",
        )
    if job.islands.quorum > num_islands:
        return HolmesError(f"islands.quorum is {job.islands.quorum}, of {num_islands} islands", "make it smaller")
    data = job.data and job.islands.data_on(clusters, job.data)
    own = job.model_copy(update={"global_batch_size": batch, "data": data})
    hosts = only_clusters(inventory, clusters)
    left = TimeLeft(time_limit_s)

    def make(islands: IslandsSettings) -> Plan | HolmesError:
        """Return the plan of an island with the host memory that `islands` take."""
        if short := _too_little_host_memory(hosts, own, islands):
            return short
        try:
            held = own.model_copy(update={"islands": islands})
            return make_plan(hosts, held, *sources, time_limit_s=left.seconds)
        except HolmesError as error:
            return error

    # Open keys count as the choice that takes most memory. If that does not fit, the next smaller one is tried.
    most, *less = _by_memory(job)
    made = make(most)
    if isinstance(made, Plan) or not less:
        return made
    least = make(less[-1])
    if isinstance(least, HolmesError):
        return least
    return next((plan for each in less[:-1] if isinstance(plan := make(each), Plan)), least)


def _by_memory(job: Job) -> list[IslandsSettings]:
    """Return the job's section and the settings that it allows, one per number of bytes, most bytes first."""
    assert job.islands is not None
    sections = (*(each.as_settings() for each in open_settings(job)), job.islands)
    return sorted({outer_bytes(each): each for each in sections}.values(), key=outer_bytes, reverse=True)


def _rank(made: IslandRound) -> tuple[bool, float]:
    return not made.misfit, made.cost.tokens_per_s


def _outer_memory(job: Job, islands: IslandsSettings) -> int:
    """Return the bytes of host memory that an island with these settings takes on all its hosts together."""
    return outer_bytes(islands) * stage_parameters(job.model, job.model.num_layers, True, True, 1)


def _too_little_host_memory(inventory: Inventory, job: Job, islands: IslandsSettings) -> HolmesError | None:
    """Return the error if all hosts together lack room for the bytes that an island keeps; None if they fit."""
    known = [usable_host_bytes(host) for host in inventory.hosts]
    needed, room = _outer_memory(job, islands), sum(size for size in known if size is not None)
    if None in known or needed <= room:
        return None
    return HolmesError(
        f"anchor and momentum take {format_memory(needed)} of host memory, the hosts have room for "
        f"{format_memory(room)}",
        "add hosts to the cluster",
        ANSWER_IS_NO,
    )


MAX_JOINED = 3  # clusters from which several may form one island together
MAX_LEFT_OUT = 5  # clusters: with more, at most one is left out

Grouping = tuple[tuple[str, ...], ...]
"""The clusters of each island."""


def groupings(clusters: Sequence[str]) -> Iterator[Grouping]:
    """Yield the ways to form two or more islands: first one per cluster, then with clusters left out or joined."""
    least = 2 if len(clusters) <= MAX_LEFT_OUT else max(2, len(clusters) - 1)
    for size in range(len(clusters), least - 1, -1):
        for some in combinations(clusters, size):
            yield tuple((name,) for name in some)
            if len(clusters) <= MAX_JOINED and size > 2:
                yield from (joined for joined in _partitions(some) if 1 < len(joined) < size)


def _partitions(clusters: Sequence[str]) -> Iterator[Grouping]:
    if len(clusters) == 1:
        yield ((clusters[0],),)
        return
    for rest in _partitions(clusters[1:]):
        yield ((clusters[0],), *rest)
        for at, group in enumerate(rest):
            yield (*rest[:at], (clusters[0], *group), *rest[at + 1 :])


def island_batch(job: Job, num_islands: int) -> int:
    """Return an island's samples per step: its share of the job's batch, in whole micro-batches."""
    size = job.parallel.micro_batch_size or 1
    return job.global_batch_size // num_islands // size * size
