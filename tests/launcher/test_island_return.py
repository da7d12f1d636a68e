"""A lost island starts again on its own hosts once they answer, and not for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holmes_core.records.plan import Node
from holmes_core.records.run import Failure
from holmes_runtime.config.messages import NOT_FINITE, RankFailed
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from launcher.islands.island_return import IslandReturn
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Fault
from launcher.supervise.failure import failure_of
from tests.launcher.plans import cpu_plan

PLAN = cpu_plan()
LOST = Failure(host="a1", cluster="a", rank=None, exit_code=1, message="gone", last_lines=(), time_s=0.0)


def coming_back(
    answering: list[bool], tries: int = 2, interrupts: Interrupts | None = None
) -> tuple[IslandReturn, list[str]]:
    """One whose hosts answer so, one after the other, and what it says."""
    said: list[str] = []

    def answers(_: Node) -> bool:
        return answering.pop(0) if answering else True

    return IslandReturn(tries, interrupts or Interrupts(), said.append, answers, pause_s=0.0), said


def test_it_starts_again_with_the_same_plan_once_its_hosts_answer() -> None:
    island, said = coming_back([False, True, False])
    assert island.after_failure(PLAN, LOST, ("a1",)) is PLAN
    assert said == [
        "lost: host a1: gone; it restarts when its hosts answer, try 1 of 2",
        "its hosts answer; it restarts",
    ]


def test_it_is_lost_after_so_many_starts_in_a_row_without_a_step() -> None:
    island, said = coming_back([])
    tried = [island.after_failure(PLAN, LOST, ()), island.after_refusal(PLAN, [Fault("disk", "a1", "full")])]
    assert tried == [PLAN, PLAN]
    assert island.after_failure(PLAN, LOST, ()) is None
    assert said[-1] == "lost: host a1: gone; not restarted: 2 starts in a row reached no step"


def test_a_step_forgives_what_was_before() -> None:
    island, _ = coming_back([])
    for _ in range(5):
        assert island.is_living
        assert island.after_failure(PLAN, LOST, ()) is PLAN
        assert not island.is_living
        island.take_step()


@pytest.mark.parametrize(
    ("then", "starts"),
    [
        pytest.param(lambda start: synced(3 * start, has_joined=True), 2, id="it only receives what others have"),
        pytest.param(lambda _: synced(7), 3, id="alone it holds the same outer sync again"),
        pytest.param(lambda start: synced(start), 10, id="it has a part in further ones"),
    ],
)
def test_steps_do_not_forgive_numbers_that_are_not_finite_before_a_further_outer_sync(
    then: Callable[[int], AppliedOuterSync], starts: int
) -> None:
    island, said = coming_back([])
    message = f"step 9, stage 0 of replica 0 (rank 0 on a1): the loss is nan, {NOT_FINITE}"
    diverged = failure_of(PLAN.nodes[0], RankFailed(0, 1, message, 0.0), host_lost=False)
    came_back = 0
    while came_back < 10 and island.after_failure(PLAN, diverged, ()) is PLAN:
        assert not island.is_living
        island.take_outer_sync(then(came_back))
        island.take_step()
        assert island.is_living
        came_back += 1
    assert came_back == starts
    if starts < 10:
        assert said[-1].startswith(f"lost: host a1: {message}; not restarted: 2 starts in a row reached no")
        assert "no outer sync; " in said[-1]
        assert "lower the learning rate" in said[-1]


def synced(number: int, has_joined: bool = False) -> AppliedOuterSync:
    return AppliedOuterSync(number, has_joined, (0, 1), 640, 10, 20, 0.5, 0.25, "00")


def test_waiting_for_hosts_ends_when_it_is_told() -> None:
    interrupts = Interrupts()
    island, _ = coming_back([False] * 1000, interrupts=interrupts)
    interrupts.tell()
    with pytest.raises(KeyboardInterrupt):
        island.after_failure(PLAN, LOST, ())
    interrupts.heed()  # each time it is told ends one thing
