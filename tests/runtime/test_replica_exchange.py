"""What follows an operation starts when that is done; the exchanges themselves are held by test_parity.py."""

from __future__ import annotations

from threading import Event

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.replica_exchange import Pending, ReplicaExchange, ThreadChain

LIMIT_S = 60


class Operations:
    """Operations that are done when the test says so."""

    def __init__(self, number: int) -> None:
        self.done = [Event() for _ in range(number)]
        self.followed: list[float] = []

    def first(self, number: int) -> Pending:
        def wait() -> Tensor:
            assert self.done[number].wait(LIMIT_S)
            return torch.tensor(float(number))

        return wait

    def following(self, result: Tensor) -> Pending:
        self.followed.append(result.item())
        return lambda: result + 100


def test_what_follows_gets_the_result_and_is_waited_for_in_turn() -> None:
    operations, chain = Operations(1), ThreadChain()
    pending = chain.then(operations.first(0), operations.following)
    before = list(operations.followed)
    operations.done[0].set()

    assert (before, pending().item(), operations.followed) == ([], 100.0, [0.0])


def test_what_follows_starts_in_the_order_asked_for_whichever_is_done_first() -> None:
    operations, chain = Operations(3), ThreadChain()
    pending = [chain.then(operations.first(number), operations.following) for number in range(3)]
    for number in (2, 1, 0):
        operations.done[number].set()

    assert [wait().item() for wait in reversed(pending)] == [102.0, 101.0, 100.0]
    assert operations.followed == [0.0, 1.0, 2.0]


def test_what_follows_has_started_before_anybody_waits() -> None:
    started, chain = Event(), ThreadChain()

    def following(result: Tensor) -> Pending:
        started.set()
        return lambda: result

    chain.then(lambda: torch.zeros(1), following)

    assert started.wait(LIMIT_S)


def test_a_lost_peer_is_an_error_where_the_result_is_waited_for() -> None:
    chain = ThreadChain()

    def lost() -> Tensor:
        raise RuntimeError("Connection closed by peer")

    pending = chain.then(lost, lambda _: lost)

    with pytest.raises(RuntimeError, match="closed by peer"):
        pending()


@pytest.mark.parametrize(("inside", "across"), [(2, 2), (2, 3), (4, 2), (1, 3)])
def test_each_replica_has_a_shard_of_its_own_in_the_part_its_cluster_leaves_it(inside: int, across: int) -> None:
    positions = {
        (i, j): ReplicaExchange([ProcessGroup(i, inside), ProcessGroup(j, across)]).position  # type: ignore[call-arg]
        for i in range(inside)
        for j in range(across)
    }

    assert sorted(positions.values()) == list(range(inside * across))
    assert all(position // across == i for (i, _), position in positions.items())
