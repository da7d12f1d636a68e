"""Seconds on links against numbers worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.published_steps.predict_row import hierarchical_exchange_s
from holmes_core.records.job import Model
from planner.cost.collectives import (
    Path,
    all_reduce_s,
    shard_exchange_bytes,
    shard_exchange_s,
    tcp_payload_share,
    tensor_parallel_s,
)
from planner.cost.counts import Execution

TINY = Model(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)


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


def test_members_of_a_host_share_its_nics() -> None:
    # Two hosts of two members, 800 bytes. Inside: half of 800 at 200 bytes/s, 2 s. Across: each member half of its 400
    # bytes, both over the host's 100 bytes/s: 200 / 50 = 4 s.
    assert hierarchical_exchange_s(800, 2, 2, Path(200), Path(100)) == pytest.approx(6)


@pytest.mark.parametrize(("recompute", "backward_s"), [("none", 4.32), ("selective", 4.32), ("full", 8.64)])
def test_tensor_parallel_is_four_all_reduces_and_two_more_when_all_is_recomputed(
    recompute: str, backward_s: float
) -> None:
    # 4 x 3 x 6 x 4 = 288 bytes on 2 ranks at 400/3 bytes/s: an all-reduce sends 288 bytes, 2.16 s; two in the forward.
    execution = Execution(tp=2, dp=1, micro_batch_size=3, value_bytes=4, recompute=recompute)  # type: ignore[arg-type]
    seconds = tensor_parallel_s(TINY, execution, Path(400 / 3))
    assert (seconds.forward_s, seconds.backward_s) == pytest.approx((4.32, backward_s))
