"""The modes in which all hosts train as one: their traffic between clusters, and their cost on other networks.

On the present networks, a search finds few placements of the modes that are slow there. So it is repeated with all
clusters joined at rates from slow to fast, and every placement found is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holmes_core.errors import HolmesError
from holmes_core.measured_networks import relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import Mode, ModePrice
from holmes_core.records.job import Job
from holmes_core.records.plan import Crossing, Plan, Prediction
from holmes_core.units import bytes_per_s_from_mbps, format_seconds
from planner.islands.uniform_links import with_uniform_links
from planner.layout.layout import Layout
from planner.layout.predict import predict, predict_step_s
from planner.layout.reprice import layout_of
from planner.layout.traffic import across_bytes
from planner.layout.write_out import lay_out_again, lay_out_contender
from planner.make_plan import contenders_of
from planner.problem.problem import Problem, read_problem, require_rates
from planner.search.branch_and_bound import search
from planner.time_left import TimeLeft

MODE_OF: dict[Crossing, Mode] = {"nothing": "one cluster", "pipeline": "pipeline", "data": "data", "both": "both"}
LOOKED_AT_MBPS = (1.0, 100.0, 1_000.0, 10_000.0, 100_000.0)  # between all clusters, a host
LOOKED_AT_LATENCY_S = 1e-3


@dataclass(frozen=True)
class ModePlacement:
    """A placement that was the best of its mode on some network."""

    mode: Mode
    layout: Layout

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters it uses."""
        return tuple(dict.fromkeys(rank.cluster for rank in self.layout.ranks))


def find_placements(
    inventory: Inventory, job: Job, planned: Plan | None, time_limit_s: float, tell: Callable[[str], None]
) -> tuple[ModePlacement, ...]:
    """Return the best placements of each mode on the present networks and on others; the plan's comes first."""
    left, found = TimeLeft(time_limit_s), list[ModePlacement]()
    if planned is not None:
        layout = layout_of(read_problem(inventory, job), planned)
        found.append(ModePlacement(MODE_OF[planned.solve.crossing], layout))
    networks = [inventory]
    if len(inventory.clusters) > 1 and inventory.shared is not None:
        rates = (bytes_per_s_from_mbps(each) for each in LOOKED_AT_MBPS)
        networks += [with_uniform_links(inventory, rate, LOOKED_AT_LATENCY_S) for rate in rates]
    for number, each in enumerate(networks):
        tell(f"looking for placements on other networks, {number} of {len(networks)}")
        placements = _placements_on(each, job, left.seconds / (len(networks) - number))
        found += (
            placement for placement in placements if placement.mode == "one cluster" or not relayed_pairs(inventory)
        )
    return tuple(
        {
            (each.layout.ranks, each.layout.microbatches, each.layout.mode._replace(step_s=0.0)): each for each in found
        }.values()
    )


def _placements_on(inventory: Inventory, job: Job, time_limit_s: float) -> Iterator[ModePlacement]:
    try:
        problem = read_problem(inventory, job)
        require_rates(problem)
        contenders = contenders_of(problem, search(problem, time_limit_s))
    except HolmesError:  # the plan itself says why
        return
    seen = set[Crossing]()
    for each in contenders:
        if each.crossing not in seen:
            seen.add(each.crossing)
            yield ModePlacement(MODE_OF[each.crossing], lay_out_contender(problem, each))


def fastest_of_each(problem: Problem, placements: Sequence[ModePlacement]) -> dict[Mode, tuple[float, ModePlacement]]:
    """Return, for each mode with a placement, the fastest step on the networks of `problem`, and that placement."""
    best = dict[Mode, tuple[float, ModePlacement]]()
    for placement in placements:
        step_s = predict_step_s(problem, lay_out_again(problem, placement.layout))
        if placement.mode not in best or step_s < best[placement.mode][0]:
            best[placement.mode] = step_s, placement
    return best


def price_placement(problem: Problem, placement: ModePlacement) -> ModePrice:
    """Return the price of `placement`, with the longest part of its step."""
    layout = lay_out_again(problem, placement.layout)
    prediction = predict(problem, layout)
    return ModePrice(
        mode=placement.mode,
        clusters=placement.clusters,
        seconds=prediction.step_s,
        tokens_per_s=prediction.tokens_per_s,
        across_bytes=across_bytes(problem.job, layout),
        why=_what_it_waits_for(prediction),
    )


def _what_it_waits_for(prediction: Prediction) -> str:
    """Return a description of the longest part of the step."""
    parts = (
        (prediction.compute_s + prediction.exposed_tp_s, "it computes"),
        (prediction.bubble_s, "ranks wait for one another"),
        (prediction.exposed_edge_s, "it waits for messages between stages"),
        (prediction.exposed_dp_s, "it waits for gradients"),
    )
    seconds, what = max(parts)
    return f"{what} for {format_seconds(seconds)} of {format_seconds(prediction.step_s)}"
