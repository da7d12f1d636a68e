"""Seconds on links against numbers worked by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from holmes_runtime.config.model_shape import ModelShape
from planner.cost.collectives import (
    Path,
    all_reduce_s,
    shard_exchange_bytes,
    shard_exchange_s,
    tcp_payload_share,
    tensor_parallel_s,
    times_as_long,
)
from planner.cost.counts import Execution

TINY = ModelShape(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)


def test_tcp_gets_what_ethernet_and_its_own_headers_leave() -> None:
    # 1448 of 1538 bytes on the wire; 8948 of 9038 with jumbo frames. Below IPv4's least there is no frame.
    assert tcp_payload_share(1500) == tcp_payload_share(None) == pytest.approx(0.94148, abs=1e-5)
    assert tcp_payload_share(9000) == pytest.approx(0.99004, abs=1e-5)
    assert tcp_payload_share(1) == tcp_payload_share(68) > 0


def test_each_member_sends_all_parts_but_its_own() -> None:
    # Four ranks, 800 bytes: three quarters.
    assert shard_exchange_bytes(800, 4) == 600
    assert shard_exchange_bytes(800, 1) == 0


def test_no_rank_cannot_exchange() -> None:
    with pytest.raises(ValueError, match="got 0"):
        shard_exchange_bytes(1, 0)


def test_a_ring_takes_its_bytes_and_its_hops() -> None:
    # 600 bytes at 100 bytes/s and three hops of 0.1 s; an all-reduce is two of them.
    assert shard_exchange_s(800, 4, Path(100, 0.1)) == pytest.approx(6.3)
    assert all_reduce_s(800, 4, Path(100, 0.1)) == pytest.approx(12.6)


def test_one_rank_exchanges_for_free() -> None:
    assert all_reduce_s(800, 1, Path(100, 0.1)) == 0


@pytest.mark.parametrize(("recompute", "backward_s"), [("none", 4.32), ("selective", 4.32), ("full", 8.64)])
def test_tensor_parallel_is_four_all_reduces_and_two_more_when_all_is_recomputed(
    recompute: str, backward_s: float
) -> None:
    # 4 x 3 x 6 x 4 = 288 bytes on 2 ranks at 400/3 bytes/s: an all-reduce sends 288 bytes, 2.16 s; two in the forward.
    execution = Execution(tp=2, dp=1, micro_batch_size=3, value_bytes=4, recompute=recompute)  # type: ignore[arg-type]
    seconds = tensor_parallel_s(TINY, execution, Path(400 / 3))
    assert (seconds.forward_s, seconds.backward_s) == pytest.approx((4.32, backward_s))


def test_of_exchanges_that_share_a_link_the_smaller_leaves_it_to_the_larger() -> None:
    # 1 and 3 bytes: half the link each until the first is done, at 2; then the other sends its last 2 alone, to 4.
    assert times_as_long([1.0, 3.0]) == {1.0: 2 / 1, 3.0: 4 / 3}
    assert times_as_long([2.0, 2.0, 2.0]) == {2.0: 3.0}
    assert times_as_long([]) == {}


def ends_followed(sizes: Sequence[float]) -> list[float]:
    """When each is through a link of 1 byte/s, of which whatever is left has equal parts, followed from end to end."""
    left, ends, now_s = dict(enumerate(sizes)), [0.0] * len(sizes), 0.0
    while left:
        least = min(left.values())
        now_s += least * len(left)
        for number in [number for number, size in left.items() if size == least]:
            ends[number] = now_s
            del left[number]
        left = {number: size - least for number, size in left.items()}
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_sharing_is_no_slower_than_even_parts_and_no_faster_than_all_bytes(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [float(draw.randint(1, 9)) for _ in range(draw.randint(1, 6))]
    ends_s = [size * times_as_long(sizes)[size] for size in sizes]
    assert ends_s == pytest.approx(ends_followed(sizes))
    assert all(size <= end_s <= len(sizes) * size * (1 + 1e-9) for size, end_s in zip(sizes, ends_s, strict=True))
    assert max(ends_s) == pytest.approx(sum(sizes))
