"""Other tensor and data degrees in each cluster: their gain, where a search of the closed form finds one.

Classes of hosts join as blocks of consecutive stages, in the order of the inventory, each with its own tp and dp. All
work on the same samples at a time, a wave of dp x micro_batch_size, the same everywhere, so that every block runs the
same number of micro-batches. The bundled runtime has one tp and dp for all stages, so this is the cost of that limit
and no plan; nothing proves that there is no better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import product

from holmes_core.records.job import Job
from holmes_core.records.plan import BlockDegrees, UnequalDegrees
from planner.cost.batch_shares import MAX_SAMPLES
from planner.problem.candidates import Candidate, tensor_degrees
from planner.problem.coefficients import Coefficients, aligned_stages, slot_s
from planner.problem.fleet import Fleet
from planner.problem.problem import Problem
from planner.search.closed_form import SiteBlock, joined_blocks_step_s
from planner.search.placement import PricedPlacement, even_shares
from planner.tolerances import ROUNDING

OFFERS_PER_TP = {2: 2, 3: 1, 4: 1}  # by number of classes: offers of each that are combined; with more, too many


@dataclass(frozen=True)
class Offer:
    """One way a class can take part: its candidate, of any pp, the most stages it can hold, seconds of a layer."""

    class_index: int
    candidate: Candidate
    stages: int
    layer_s: float


def best_unequal(problem: Problem, equal: PricedPlacement) -> UnequalDegrees | None:
    """Return the fastest found with degrees that differ, where its closed form is below that of `equal`; else None.

    None also where job.yaml fixes the degrees that would differ, and for a fleet of one class or of many.
    """
    job, fleet, fixed = problem.job, problem.fleet, problem.job.parallel
    settled = (fixed.pp, fixed.dp, fixed.micro_batch_size, fixed.layers)
    if len(fleet.classes) not in OFFERS_PER_TP or any(value is not None for value in settled):
        return None
    least_s, best = equal.objective_s, None
    for wave in (size for size in range(1, job.global_batch_size + 1) if job.global_batch_size % size == 0):
        waves = job.global_batch_size // wave
        by_class = [_offers(job, fleet, c, wave, equal.placement.candidate) for c in range(len(fleet.classes))]
        for offers in product(*by_class):
            blocks = _joined(problem, offers, waves, least_s)
            if blocks is not None and (seconds := joined_blocks_step_s(blocks)) < least_s:
                least_s, best = seconds, blocks
    if best is None:
        return None
    return UnequalDegrees(blocks=tuple(_degrees(fleet, *each) for each in best), placement_s=least_s)


def _joined(
    problem: Problem, offers: Sequence[Offer], waves: int, least_s: float
) -> list[tuple[Coefficients, SiteBlock]] | None:
    """Return the blocks of `offers` with their candidates' coefficients.

    None if degrees do not differ, compute takes no time or `least_s` by itself, or memory does not hold them.
    """
    if not all(offer.layer_s for offer in offers):
        return None
    num_layers = problem.job.model.num_layers
    pace_s = num_layers / sum(offer.stages / offer.layer_s for offer in offers)
    same = len({(offer.candidate.tp, offer.candidate.dp) for offer in offers}) == 1
    held = sum(offer.stages * int(least_s / waves / offer.layer_s * (1 + ROUNDING)) for offer in offers)
    if same or waves * pace_s >= least_s or held < num_layers:
        return None
    cuts = cut_layers(num_layers, offers)
    stages_s = [held * offer.layer_s for offer, cut in zip(offers, cuts, strict=True) for held in cut]
    if waves * max(stages_s) >= least_s:
        return None
    blocks = [
        (problem.coefficients(replace(offer.candidate, pp=len(stages_s))), SiteBlock((offer.class_index,), cut))
        for offer, cut in zip(offers, cuts, strict=True)
        if cut
    ]
    return blocks if len(blocks) > 1 and fits(blocks) else None


def _offers(job: Job, fleet: Fleet, class_index: int, wave: int, like: Candidate) -> list[Offer]:
    """Return the fastest offers of a class for one wave and each tp; among equals those with fewer stages."""
    hosts = fleet.classes[class_index]
    found = []
    for tp in tensor_degrees(job, fleet):
        of_tp = []
        for dp in (dp for dp in range(1, min(wave, hosts.num_group_slots(tp)) + 1) if wave % dp == 0):
            stages = min(aligned_stages(len(hosts.hosts), hosts.group_slots_per_host(tp), dp), job.model.num_layers)
            if stages and wave // dp <= MAX_SAMPLES:
                candidate = replace(like, tp=tp, pp=1, dp=dp, micro_batch_size=wave // dp, fill="1f1b", weight_shards=1)
                slot = hosts.hardware.slot.among(fleet.num_group_slots(1))  # degrees differ to use all of them
                layer, _ = slot_s(job, slot, candidate.execution(job))
                of_tp.append(Offer(class_index, candidate, stages, layer.both_s))
        of_tp.sort(key=lambda offer: (offer.layer_s / offer.stages, offer.stages))
        found += of_tp[: OFFERS_PER_TP[len(fleet.classes)]]
    return found


def cut_layers(num_layers: int, offers: Sequence[Offer]) -> list[tuple[int, ...]]:
    """Layers of each offer's stages, each to the stage that is then fastest; stages that get none are left out."""
    held = [0] * len(offers)
    after_s = sorted((offer.layer_s, at) for at, offer in enumerate(offers))  # a heap: a stage's seconds with one more
    for _ in range(num_layers):
        _, at = after_s[0]
        held[at] += 1
        heapreplace(after_s, ((held[at] // offers[at].stages + 1) * offers[at].layer_s, at))
    return [even_shares(count, min(offer.stages, count)) for count, offer in zip(held, offers, strict=True)]


def fits(blocks: Sequence[tuple[Coefficients, SiteBlock]]) -> bool:
    """Return True if memory holds the layers of every stage under 1F1B."""
    stages = [(coeffs, block.site[0], held) for coeffs, block in blocks for held in block.layers]
    return all(held <= coeffs.capacity[stage][c] for stage, (coeffs, c, held) in enumerate(stages))


def _degrees(fleet: Fleet, coeffs: Coefficients, block: SiteBlock) -> BlockDegrees:
    candidate = coeffs.candidate
    return BlockDegrees(
        cluster=fleet.classes[block.site[0]].cluster,
        stages=len(block.layers),
        tp=candidate.tp,
        dp=candidate.dp,
        micro_batch_size=candidate.micro_batch_size,
    )
