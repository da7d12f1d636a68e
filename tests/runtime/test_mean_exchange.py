"""The mean of many islands, reduced in chunks: the same bits for all, bytes of a ring, and nothing lost by rounding."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from holmes_runtime.config.codec import OUTER_BLOCK, packed_bytes
from holmes_runtime.config.islands.reduction import is_chunked, share_to_each
from holmes_runtime.config.islands.roster import Arrival, Roster
from holmes_runtime.config.run_settings import OuterCodec
from holmes_runtime.outer.lane_exchange import OpenLane
from holmes_runtime.outer.lanes import Lane
from holmes_runtime.outer.mean_exchange import LaneChange, LaneMean, MeanExchange, chunks_of
from holmes_runtime.outer.outer_step import weighted_mean

from .test_sync_tags import Work

PATIENCE_S = 600.0


class MeshEnd(NamedTuple):
    """The group of the owner at `position`, on queues of this process."""

    queues: dict[tuple[int, int], Queue[Tensor]]
    position: int

    def send(self, parts: list[Tensor], to: int, _: int) -> Work:
        self.queues[self.position, to].put(parts[0].clone())
        return Work(lambda: None)

    def recv(self, parts: list[Tensor], sender: int, _: int) -> Work:
        return Work(partial(self._take, parts[0], sender))

    def _take(self, target: Tensor, sender: int) -> None:
        target.copy_(self.queues[sender, self.position].get(timeout=PATIENCE_S))


def roster_of(tokens: list[int]) -> Roster:
    return Roster(
        7, 4, tuple(Arrival(k, 1, 1, 4, "same", False, each, 0.0, 10.0, -1) for k, each in enumerate(tokens)), ()
    )


def exchanged(changes: list[LaneChange], tokens: list[int], codec: OuterCodec) -> list[LaneMean]:
    """The mean that each island has after an exchange of one lane."""
    queues = defaultdict[tuple[int, int], Queue[Tensor]](Queue)
    roster, lane = roster_of(tokens), Lane((0,) * len(tokens), ())

    def island(position: int) -> LaneMean:
        exchange = MeanExchange(roster, position, codec, streams=1)
        (mean,) = exchange.run([OpenLane(lane, MeshEnd(queues, position))], [changes[position]])
        return mean

    for pair in ((a, b) for a in range(len(tokens)) for b in range(len(tokens))):
        queues[pair] = Queue()
    with ThreadPoolExecutor(len(tokens)) as pool:
        return list(pool.map(island, range(len(tokens))))


def drawn(seed: int, elements: int, scale: float = 1.0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)) * scale


def mean_value(mean: LaneMean) -> Tensor:
    return weighted_mean(mean.parts, mean.tokens)


def test_few_islands_send_to_everyone_and_from_four_on_they_send_half_as_much_at_most() -> None:
    assert [is_chunked(members) for members in (1, 2, 3, 4, 5)] == [False, False, False, True, True]
    assert [share_to_each(members) for members in (2, 3, 4, 5)] == [1.0, 1.0, 0.5, 0.4]


@pytest.mark.parametrize("elements", [1, 100, 5 * OUTER_BLOCK + 3, 10_000])
@pytest.mark.parametrize("islands", [4, 5, 7])
def test_means_of_chunks_are_to_the_bit_that_of_the_whole(islands: int, elements: int) -> None:
    tokens = [100 * (each + 1) for each in range(islands)]
    changes = [LaneChange(drawn(99, elements), drawn(each, elements), None) for each in range(islands)]

    means = exchanged(changes, tokens, "none")

    whole = weighted_mean([change.parameters for change in changes], tokens)
    assert all(torch.equal(mean_value(mean), whole) for mean in means)


@pytest.mark.parametrize("codec", ["none", "int8", "int4"])
def test_each_island_sends_what_it_would_around_a_ring(codec: OuterCodec) -> None:
    elements = 100_000
    changes = [LaneChange(drawn(99, elements), drawn(each, elements), torch.zeros(elements)) for each in range(5)]

    for mean in exchanged(changes, [1] * 5, codec):
        for moved in (mean.sent, mean.received):
            size = sum(part.nbytes for parts in moved.values() for part in parts)
            assert size == pytest.approx(2 * 4 / 5 * packed_bytes(codec, elements, 4, OUTER_BLOCK), rel=0.01)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_what_rounding_takes_of_changes_and_of_their_means_is_in_later_means(codec: OuterCodec) -> None:
    """The sum of all means that arrive is never further from the sum of the changes' means than one rounding."""
    islands, elements = 5, 3000
    errors = [torch.zeros(elements) for _ in range(islands)]
    arrived, changed = torch.zeros(elements), torch.zeros(elements)
    for turn in range(20):
        anchor = torch.zeros(elements)
        parameters = [drawn(islands * turn + each, elements, 0.1) for each in range(islands)]
        changes = [LaneChange(anchor, *each) for each in zip(parameters, errors, strict=True)]
        means = exchanged(changes, [3] * islands, codec)
        assert all(torch.equal(mean_value(mean), mean_value(means[0])) for mean in means)
        arrived += mean_value(means[0])
        changed -= sum(parameters, torch.zeros(elements)) / islands
        errors = [mean.error for mean in means if mean.error is not None]
    left = sum(errors, torch.zeros(elements)) / islands
    assert float(left.abs().max()) < {"int8": 0.01, "int4": 0.15}[codec]
    torch.testing.assert_close(arrived + left, changed, atol=1e-5, rtol=0)


def test_chunks_are_whole_blocks_of_all_elements() -> None:
    chunks = chunks_of(7 * OUTER_BLOCK + 5, 5)
    assert [chunk.start % OUTER_BLOCK for chunk in chunks] == [0] * 5
    assert [chunk.stop for chunk in chunks] == [*(chunk.start for chunk in chunks[1:]), 7 * OUTER_BLOCK + 5]
