"""Slots chosen so that ranks that communicate over the NICs share a rail, if rails do not reach one another.

NCCL keeps rings on their rails only if a group has GPUs of the same rails on all its hosts. It connects two ranks
by the rails nearest to them. Source: NCCL's maintainers in NVIDIA/nccl#836 and #1933.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from planner.problem.fleet import Fleet
from planner.problem.rails import Rail, Rails
from planner.schedule.assign_hosts import GroupSlot, GroupSlots, group_slots_of

SWEEPS = 3  # over all stages: the second one sees neighbours on both sides, later ones rarely gain more

Tasklet = tuple[int, int]
"""(Stage, replica)."""
Place = tuple[tuple[Rail, ...], int]
"""The rails of a group slot's GPUs, and its number among its host's group slots on these rails."""


class RailMismatches(NamedTuple):
    """Numbers of stages with replicas, and of edges between hosts with ends, on GPUs of different rails."""

    stages: int
    edges: int


def match_rails(
    group_slots: GroupSlots, fleet: Fleet, rails: Rails, tp: int, wraps: bool
) -> Mapping[Tasklet, GroupSlot]:
    """Return the same tasklets on the same hosts, with slots that mismatch fewer rails; unchanged if none helps.

    Gradients have priority over messages between stages, since they are larger. Shards of a tensor group communicate by
    position. `wraps`: the last stage also sends to the first.
    """
    given = {key: where for key, where in group_slots.items() if where.host in rails.of_hosts}
    if not given:
        return group_slots
    exchange = _Exchange(given, fleet, rails, tp, wraps)
    best, fewest = dict(exchange.taken), exchange.apart()
    for _ in range(SWEEPS):
        if fewest == RailMismatches(0, 0):
            break
        exchange.sweep()
        now = exchange.apart()
        if now >= fewest:
            break
        best, fewest = dict(exchange.taken), now
    return {**group_slots, **{key: exchange.slots[given[key].host][place] for key, place in best.items()}}


class _Exchange:
    """The places of the tasklets on hosts with separate rails, and the places that are free meanwhile."""

    def __init__(self, given: GroupSlots, fleet: Fleet, rails: Rails, tp: int, wraps: bool) -> None:
        self.slots = {
            host: _places(group_slots_of(fleet.hosts[host], tp), rails)
            for host in dict.fromkeys(where.host for where in given.values())
        }
        self._first_slot = {place: slot.first_slot for of in self.slots.values() for place, slot in of.items()}
        self._hosts_with = Counter(place for of in self.slots.values() for place in of)
        where_is = {(host, slot.first_slot): place for host, of in self.slots.items() for place, slot in of.items()}
        self.host = {key: where.host for key, where in given.items()}
        self.taken = {key: where_is[where.host, where.first_slot] for key, where in given.items()}
        self._original = dict(self.taken)
        self._free = {host: set(of) for host, of in self.slots.items()}
        for key, place in self.taken.items():
            self._free[self.host[key]].discard(place)
        self._cluster = {key: where.cluster for key, where in given.items()}
        self._last = max(stage for stage, _ in given) if wraps else None
        blocks: dict[tuple[int, str], list[Tasklet]] = {}
        for key in sorted(given):
            blocks.setdefault((key[0], given[key].cluster), []).append(key)
        self._blocks = sorted(blocks.values(), key=lambda block: -len({self.host[key] for key in block}))
        self._placed_anew: set[Tasklet] = set()

    def apart(self) -> RailMismatches:
        """Return the current numbers of stages and edges on different rails."""
        stages = 0
        for block in self._blocks:
            rails: dict[str, set[tuple[Rail, ...]]] = {}
            for key in block:
                rails.setdefault(self.host[key], set()).add(self.taken[key][0])
            stages += len({frozenset(each) for each in rails.values()}) > 1
        edges = sum(self.taken[key][0] != self.taken[peer][0] for key in self.taken for peer in self._peers(key))
        return RailMismatches(stages, edges // 2)

    def sweep(self) -> None:
        """Reassign the places of all blocks, those on most hosts first. A block is a stage's replicas in one cluster.

        In the first sweep, a block considers only the blocks placed before it; later, all its neighbours.
        """
        first = not self._placed_anew
        if first:
            for key, place in self.taken.items():
                self._free[self.host[key]].add(place)
        for block in self._blocks:
            if not first:
                for key in block:
                    self._free[self.host[key]].add(self.taken[key])
            self._place(block)
            self._placed_anew.update(block)

    def _place(self, block: list[Tasklet]) -> None:
        """Take the places that are free on most of its hosts first, then those that suit neighbours on other hosts."""
        wanted = {key: [self.taken[peer][0] for peer in self._peers(key) if peer in self._placed_anew] for key in block}
        on_host: dict[str, list[Tasklet]] = {}
        for key in block:
            on_host.setdefault(self.host[key], []).append(key)
        free_on = Counter(place for host in on_host for place in self._free[host])
        pulls = Counter(rails for each in wanted.values() for rails in each)
        kept = Counter(self._original[key] for key in block)
        order = sorted(
            free_on,
            key=lambda p: (-free_on[p], -pulls[p[0]], -self._hosts_with[p], -kept[p], self._first_slot[p]),
        )
        for host, keys in on_host.items():
            chosen = [place for place in order if place in self._free[host]][: len(keys)]
            self._free[host].difference_update(chosen)
            self._hand_out(keys, chosen, wanted)

    def _hand_out(
        self, keys: list[Tasklet], chosen: list[Place], wanted: Mapping[Tasklet, list[tuple[Rail, ...]]]
    ) -> None:
        """Give a host's chosen places to its replicas: first to match a neighbour's rails, then as they were before."""
        left = sorted(chosen)
        waiting = []
        for key in keys:
            meeting = [place for place in left if place[0] in wanted[key]]
            if meeting:
                count = Counter(wanted[key])
                self.taken[key] = max(meeting, key=lambda p: (count[p[0]], p == self._original[key]))
                left.remove(self.taken[key])
            else:
                waiting.append(key)
        for key in [key for key in waiting if self._original[key] in left]:
            self.taken[key] = self._original[key]
            left.remove(self.taken[key])
            waiting.remove(key)
        for key, place in zip(waiting, left, strict=True):
            self.taken[key] = place

    def _peers(self, key: Tasklet) -> Iterable[Tasklet]:
        """Yield the neighbours in the pipeline that are on other hosts of the cluster."""
        stage, replica = key
        near = {stage - 1, stage + 1}
        if self._last is not None and stage in (0, self._last):
            near.add(self._last - stage)
        for other in sorted(near - {stage}):
            peer = (other, replica)
            if self._cluster.get(peer) == self._cluster[key] and self.host[peer] != self.host[key]:
                yield peer


def _places(slots: Iterable[GroupSlot], rails: Rails) -> dict[Place, GroupSlot]:
    """Return the group slots of a host by their rails, with a number for each on the same rails."""
    found: dict[Place, GroupSlot] = {}
    seen: Counter[tuple[Rail, ...]] = Counter()
    for slot in slots:
        of_slot = rails.of_slots(slot.host, slot.gpus)
        found[of_slot, seen[of_slot]] = slot
        seen[of_slot] += 1
    return found
