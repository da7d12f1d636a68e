"""Every placement of one candidate in blocks, by brute force or dynamic programming; random candidates to compare."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import inf

from planner.cost.collectives import PassTimes
from planner.problem.candidates import Candidate
from planner.problem.coefficients import FREE, Coefficients, Crossing
from planner.problem.exchange_rates import Site, replicas_by_cluster, rings_on_nic, sync_s_per_byte
from planner.search.closed_form import (
    NO_EDGE,
    Edge,
    NicUse,
    PortName,
    SiteBlock,
    blocks_step_s,
    edge_of,
    exposed_sync_s,
    nic_use,
    pace_of,
    shared_wires_s,
    site_stage_s,
)
from planner.search.program_spec import make_sites


def compositions(total: int, parts: int, least: int) -> Iterator[tuple[int, ...]]:
    """All tuples of `parts` integers, none below `least`, that add up to `total`."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        for rest in compositions(total - first, parts - 1, least):
            yield (first, *rest)


def best_by_enumeration(
    coeffs: Coefficients, crossing: bool = False, fixed_layers: tuple[int, ...] | None = None
) -> float | None:
    """The least closed-form seconds of all placements in blocks, None if there is none.

    `crossing`: with a stage over several clusters, else without. `fixed_layers`, by stage: of this cut alone.
    """
    best = None
    for blocks in all_blocks(coeffs, crossing, fixed_layers):
        seconds = blocks_step_s(coeffs, blocks)
        best = seconds if best is None or seconds < best else best
    return best


def all_blocks(
    coeffs: Coefficients, crossing: bool, fixed_layers: tuple[int, ...] | None = None
) -> Iterator[tuple[SiteBlock, ...]]:
    """Every sequence of blocks on different sites, with every cut, that group slots and memory allow."""
    pp = coeffs.candidate.pp
    sites = make_sites(coeffs, crossing)
    for count in range(1, min(pp, len(sites)) + 1):
        for order in permutations(sites, count):
            crosses = [len({coeffs.cluster[c] for c in site}) > 1 for site in order]
            if any(crosses) != crossing:
                continue
            for lengths in compositions(pp, count, 1):
                if any(crossed and length > 1 for crossed, length in zip(crosses, lengths, strict=True)):
                    continue
                for even in product(*(_evenness(coeffs, site) for site in order)):
                    if has_group_slots(coeffs, order, lengths, even):
                        yield from _cuts(coeffs, order, lengths, even, fixed_layers)


def _evenness(coeffs: Coefficients, site: Site) -> tuple[bool, ...]:
    """Whether the clusters of a site may hold equally many replicas of a stage, or must not be taken to."""
    return (False,) if replicas_by_cluster(coeffs, site) is None else (True, False)


def _cuts(
    coeffs: Coefficients,
    order: Sequence[Site],
    lengths: Sequence[int],
    even: Sequence[bool],
    fixed_layers: tuple[int, ...] | None,
) -> Iterator[tuple[SiteBlock, ...]]:
    sites = [site for site, length in zip(order, lengths, strict=True) for _ in range(length)]
    for layers in [fixed_layers] if fixed_layers else compositions(coeffs.num_layers, len(sites), 1):
        fits = all(layers[s] <= coeffs.capacity[s][c] for s, site in enumerate(sites) for c in site)
        if fits and layers[0] >= coeffs.first_dense:
            starts = [sum(lengths[:index]) for index in range(len(lengths))]
            yield tuple(
                SiteBlock(site, layers[start : start + length], is_even)
                for site, start, length, is_even in zip(order, starts, lengths, even, strict=True)
            )


def has_group_slots(coeffs: Coefficients, order: Sequence[Site], lengths: Sequence[int], even: Sequence[bool]) -> bool:
    """Whether every replica of every stage finds a group slot, each class of a site with one replica at least."""
    dp, free, shared = coeffs.candidate.dp, list(coeffs.group_slots), list[tuple[Site, bool]]()
    for site, length, is_even in zip(order, lengths, even, strict=True):
        if len(site) == 1:
            if length > coeffs.most_stages[site[0]]:
                return False
            free[site[0]] -= dp * length
        else:
            shared += [(site, is_even)] * length
    if min(free) < 0:
        return False
    for rows in product(*(_shares(coeffs, site, is_even) for site, is_even in shared)):
        left = list(free)
        for (site, _), row in zip(shared, rows, strict=True):
            for c, replicas in zip(site, row, strict=True):
                left[c] -= replicas
        if min(left) >= 0:
            return True
    return False


def _shares(coeffs: Coefficients, site: Site, is_even: bool) -> Iterator[tuple[int, ...]]:
    """Replicas of a stage by class of its site; if even, equally many in each cluster."""
    for row in compositions(coeffs.candidate.dp, len(site), 1):
        held = Counter[int]()
        for c, replicas in zip(site, row, strict=True):
            held[coeffs.cluster[c]] += replicas
        if not is_even or len(set(held.values())) == 1:
            yield row


def random_cut(coeffs: Coefficients, seed: int) -> tuple[int, ...]:
    """Layers of each stage, drawn."""
    return random.Random(seed).choice(list(compositions(coeffs.num_layers, coeffs.candidate.pp, 1)))


def random_coefficients(seed: int) -> Coefficients:
    """A candidate on two or three unequal classes, with limits on memory that sometimes leave no placement."""
    draw, ports = random.Random(seed), random.Random(seed + 0.75)
    num_classes, dp = draw.choice((2, 2, 3)), draw.randint(1, 3)
    pp = draw.randint(1, 4 if num_classes == 2 else 3)
    num_layers = draw.randint(pp, 6)
    per_host = [draw.randint(1, 4) for _ in range(num_classes)]
    group_slots = [each * draw.randint(1, 3) for each in per_host]
    while sum(group_slots) < pp * dp:
        grown = draw.randrange(num_classes)
        group_slots[grown] += per_host[grown]
    speed = [draw.uniform(0.5, 2) for _ in range(num_classes)]
    fabric = [draw.uniform(0, 0.5) for _ in range(num_classes)]
    shared = [draw.uniform(0, 4) for _ in range(num_classes)]
    most = draw.choice((num_layers, 3, 2))
    middle = sorted(tuple(draw.randint(1, max(1, most)) for _ in group_slots) for _ in range(pp))
    rising = [tuple(max(row[c] for row in middle[: stage + 1]) for c in range(num_classes)) for stage in range(pp)]
    ends = {0, pp - 1}
    return Coefficients(
        candidate=Candidate(1, pp, dp, 1),
        num_layers=num_layers,
        total_microbatches=_random_total(seed, dp, draw.choice((1, 2, 4, 9))),
        cluster=draw.choice(((0, 0, 1), (0, 1, 2), (0, 1, 2)))[:num_classes],
        group_slots=tuple(group_slots),
        group_slots_per_host=tuple(per_host),
        memory_bytes=(None,) * num_classes,
        capacity=tuple(
            tuple(draw.randint(1, most) for _ in group_slots) if stage in ends else rising[stage] for stage in range(pp)
        ),
        layer=tuple(PassTimes(seconds / 3, 2 * seconds / 3) for seconds in speed),
        head=tuple(PassTimes(0.2 * seconds, 0.5 * seconds) for seconds in speed),
        net_names=tuple(draw.choice(("IB", "IB", "Socket")) for _ in group_slots),
        fabric_edge_s=tuple(fabric),
        shared_edge_s=tuple(fabric[c] + shared[c] for c in range(num_classes)),
        fabric_port_s=tuple(fabric),
        shared_port_s=tuple((fabric[c] + shared[c]) * ports.choice((0.1, 1.0)) for c in range(num_classes)),
        has_one_nic=tuple(ports.random() < 0.3 for _ in range(num_classes)),
        fabric_sync_s_per_byte=tuple(draw.uniform(0, 0.5) for _ in group_slots),
        shared_sync_s_per_byte=tuple(draw.uniform(0.5, 2) for _ in group_slots),
        inside_sync_s_per_byte=tuple(draw.uniform(0.05, 1) for _ in group_slots),
        layer_sync_bytes=2,
        first_sync_bytes=1,
        last_sync_bytes=3,
        action_s=(0.0,) * num_classes,
        hides_edges=draw.random() < 0.7,
        fill_share=random.Random(seed + 0.5).choice((1.0, 0.4)),
        crossings=(crossings := _random_crossings(random.Random(-1 - seed))),
        uplink_edge_s=_random_uplinks(random.Random(seed + 0.25), crossings),
    )


def _random_total(seed: int, dp: int, busiest: int) -> int:
    """Micro-batches of which the busiest of `dp` replicas runs `busiest`, and all others one at least."""
    return dp * busiest - (random.Random(seed + 0.25).randrange(dp) if busiest > 1 else 0)


def _random_crossings(draw: random.Random) -> dict[tuple[int, int], Crossing]:
    """Between some clusters and inside some: nothing measured, only latency, or rates too."""
    pairs = [(x, y) for x in range(3) for y in range(x, 3)]
    measured = [pair for pair in pairs if draw.random() < 0.5]
    return {(x, y): Crossing(*(draw.uniform(0, most) for most in (5 * (x != y), 0, 1, 1, 2))) for x, y in measured}


def _random_uplinks(draw: random.Random, crossings: dict[tuple[int, int], Crossing]) -> dict[int, float]:
    """Draw uplinks, as seconds of an edge by cluster, and add trunks and no faster edges to `crossings`."""
    uplinks = {x: draw.uniform(0, 5) for x in range(3) if draw.random() < 0.3}
    for x, y in ((0, 1), (0, 2), (1, 2)):
        measured = crossings.get((x, y), FREE)
        trunk_s = draw.uniform(0, 5) if draw.random() < 0.3 else 0.0
        edge_s = max(measured.edge_s, trunk_s, uplinks.get(x, 0.0), uplinks.get(y, 0.0))
        if edge_s:
            crossings[x, y] = replace(measured, edge_s=edge_s, trunk_edge_s=trunk_s)
    return uplinks


State = tuple[frozenset[int], int, int, int, NicUse | None]
"""Classes of the blocks before, class of the current one and its stages so far, layers so far, and the use of a NIC by
the edge into the current host."""


@dataclass(frozen=True)
class Partial:
    """What the closed form needs to know of the first stages: sums and maxima, in seconds."""

    total_s: float
    stage_s: float
    edge_s: float
    nic_s: float
    sync_s: float
    wires_s: Mapping[PortName, float] = field(default_factory=dict)

    def grown(
        self,
        stage_s: float,
        share: float,
        hop: Edge,
        paced_s: tuple[float, float],
        sync_s: float,
        wires_s: Mapping[PortName, float],
    ) -> Partial:
        """With one stage more, behind an edge that bounds the pace by itself and with others on a NIC and on wires; the
        fill counts `share` of the stage."""
        return Partial(
            self.total_s + share * stage_s + 2 * hop.fill_s,
            max(self.stage_s, stage_s),
            max(self.edge_s, paced_s[0]),
            max(self.nic_s, paced_s[1]),
            max(self.sync_s, sync_s),
            {name: self.wires_s.get(name, 0.0) + wires_s.get(name, 0.0) for name in {*self.wires_s, *wires_s}},
        )

    def beats(self, other: Partial) -> bool:
        """No worse in anything."""
        return (
            self.total_s <= other.total_s
            and self.stage_s <= other.stage_s
            and self.edge_s <= other.edge_s
            and self.nic_s <= other.nic_s
            and self.sync_s <= other.sync_s
            and all(taken_s <= other.wires_s.get(name, 0.0) for name, taken_s in self.wires_s.items())
        )


def best_in_blocks(coeffs: Coefficients, at_most_s: float = inf) -> float | None:
    """The least closed-form seconds of placements in blocks of one class each; None if none takes `at_most_s` or less.

    Exact, and for larger instances than `best_by_enumeration`: stage by stage, by dynamic programming over the classes
    used, the class and length of the current block and the layers so far. Of partial placements with all these equal
    only those are kept that no other one beats, since the closed form rises with each of the four numbers.
    """
    pp, most, least_layer_s = coeffs.candidate.pp, coeffs.num_layers, min(coeffs.layer_s)
    states: dict[State, list[Partial]] = {(frozenset(), -1, 0, 0, None): [Partial(0.0, 0.0, 0.0, 0.0, 0.0)]}
    for stage in range(pp):
        found: dict[State, list[Partial]] = {}
        for (used, current, length, held, into), partials in states.items():
            for c, group_slots in enumerate(coeffs.most_stages):
                if c in used or (c == current and length >= group_slots) or not group_slots:
                    continue
                hop = _hop(coeffs, current, c, length)
                nic, nic_s, wires_s = into, 0.0, dict[PortName, float]()
                if hop != NO_EDGE:
                    wires_s = shared_wires_s(coeffs, (current,), (c,))
                    out = nic_use(coeffs, (current,), (c,))
                    nic, nic_s = nic_use(coeffs, (c,), (current,)), _both_s(into, out)
                paced_s = hop.paced_s(coeffs), nic_s
                before = used | {current} if c != current and current >= 0 else used
                for layers in range(1, min(coeffs.capacity[stage][c], most - held - (pp - 1 - stage)) + 1):
                    rest_s = coeffs.fill_share * (most - held - layers) * least_layer_s
                    stage_s, sync_s = _stage(coeffs, stage, c, layers)
                    share = coeffs.fill_share
                    grown = [partial.grown(stage_s, share, hop, paced_s, sync_s, wires_s) for partial in partials]
                    useful = [partial for partial in grown if _step_s(coeffs, partial) + rest_s <= at_most_s]
                    if useful:
                        state = before, c, length + 1 if c == current else 1, held + layers, nic
                        found.setdefault(state, []).extend(useful)
        states = {state: _unbeaten(partials) for state, partials in found.items()}
    whole = [partial for (_, _, _, held, _), partials in states.items() if held == most for partial in partials]
    return min((_step_s(coeffs, partial) for partial in whole), default=None)


def _step_s(coeffs: Coefficients, partial: Partial) -> float:
    pace_s = max(pace_of(coeffs, partial.stage_s, partial.edge_s), partial.nic_s, *partial.wires_s.values())
    slowest_s = (1 - coeffs.fill_share) * partial.stage_s
    return (coeffs.num_microbatches - 1) * pace_s + slowest_s + partial.total_s + partial.sync_s


def _both_s(into: NicUse | None, out: NicUse) -> float:
    """Seconds of a micro-batch on the NIC that both edges of a host use."""
    return into.use_s + out.use_s if into is not None and into.name == out.name else 0.0


def _hop(coeffs: Coefficients, before: int, after: int, length: int) -> Edge:
    """A message from a block of `length` stages so far on class `before` to a stage on class `after`."""
    if before < 0 or (before == after and length % coeffs.stages_per_host[after]):
        return NO_EDGE
    return edge_of(coeffs, (before,), (after,))


def _stage(coeffs: Coefficients, stage: int, c: int, layers: int) -> tuple[float, float]:
    """Seconds of a stage on class `c` and micro-batch, and what its exchange of gradients exposes."""
    stage_s = site_stage_s(coeffs, (c,), layers, (stage == 0, stage == coeffs.candidate.pp - 1))
    if coeffs.candidate.dp == 1:
        return stage_s, 0.0
    per_byte = sync_s_per_byte(coeffs, (c,), rings_on_nic(coeffs, (c,)))
    return stage_s, exposed_sync_s(coeffs, per_byte, coeffs.sync_bytes(stage, layers), stage_s)


def _unbeaten(partials: list[Partial]) -> list[Partial]:
    kept: list[Partial] = []
    for partial in sorted(
        partials, key=lambda each: (each.total_s, each.stage_s, each.edge_s, each.nic_s, each.sync_s)
    ):
        if not any(other.beats(partial) for other in kept):
            kept.append(partial)
    return kept
