"""A run without progress is called hung in time, and the rank that holds up the others is named if that is seen."""

from __future__ import annotations

import pytest

from holmes_core.records.plan import Plan
from holmes_runtime.config.messages import GroupProgress, RankPosition
from holmes_runtime.config.rank_metrics import GroupRecord
from launcher.prepare.prepare import run_config_of
from launcher.supervise.hang import ASK_S, MIN_MOVED_BYTES, MIN_S, HangDetector, HangReport
from tests.launcher.plans import cpu_plan, gpu_plan
from tests.launcher.trainer_job import trainer_plan

STACK = ('File "run_steps.py", line 50, in run_steps', 'File "user.py", line 7, in spin')
DUMP = (
    "Thread 0x1 (most recent call first):",
    '  File "threading.py", line 1 in wait',
    "",
    "Current thread 0x2 (most recent call first):",
    '  File "user.py", line 7 in spin',
    *(f'  File "torch.py", line {number} in call' for number in range(30)),
)


def hung(steps: tuple[int, ...] = (3, 3, 3, 3), plan: Plan | None = None) -> tuple[HangDetector, float]:
    """Ranks that have been asked where they are after those steps, and when they are to be judged."""
    detector = HangDetector(plan or cpu_plan(), now_s=0.0)
    for rank, step in enumerate(steps):
        detector.take_progress(rank, step, now_s=0.0)
    asked_s = detector.limit_s + 1
    assert detector.asks_now(asked_s)
    assert not detector.asks_now(asked_s)
    return detector, asked_s + ASK_S


def rank_of(found: HangReport | None) -> int | None:
    assert found is not None
    return found.rank


def test_limit_is_sooner_than_the_jobs_timeout_and_later_than_many_steps() -> None:
    detector = HangDetector(cpu_plan(compute={"flops_per_s": 1e13}), now_s=0.0)
    for rank in range(4):
        detector.take_progress(rank, 0, now_s=0.0)
    assert detector.limit_s == MIN_S
    detector.take_step(10.0)
    assert detector.limit_s == 200.0
    detector.take_step(1000.0)
    assert detector.limit_s == 300.0  # timeout_s is 600


def test_before_every_rank_took_a_step_the_jobs_timeout_counts() -> None:
    detector = HangDetector(cpu_plan(timeout_s=20), now_s=0.0)
    detector.take_progress(0, 0, now_s=5.0)
    assert not detector.asks_now(24.0)
    assert detector.asks_now(25.1)


def test_an_island_may_wait_for_others_that_are_on_their_way() -> None:
    section = {"inner_steps": 500, "codec": "int4", "fragments": 2, "delay_steps": 0, "grace_s": 30.0}
    detector = HangDetector(cpu_plan(compute={"flops_per_s": 1e13}, islands=section, steps=1000), now_s=0.0)
    detector.take_step(10.0)
    assert detector.limit_s == pytest.approx(600 + 30 + 600 + 2 * 250 * 10)
    for rank in range(4):
        detector.take_progress(rank, 0, now_s=0.0)
    assert detector.limit_s == pytest.approx(200 + 30 + 600 + 2 * 250 * 10)


EXAMINING = "evaluation, examination or checkpoint after step 20"


def test_a_run_is_not_hung_as_long_as_a_slow_wire_carries_what_ranks_wait_for() -> None:
    """An examination of 37 s over a trunk of 3 Mbit/s, where half of `timeout_s` is 30 s."""
    detector, now_s = hung(plan=cpu_plan(timeout_s=60))
    for _ in range(3):
        for rank, moved_bytes in enumerate((0, 180_000, 180_000, 0)):
            detector.take_position(RankPosition(rank, EXAMINING, False, (), moved_bytes))
        assert detector.verdict({}, now_s) is None
        asked_s = now_s + detector.limit_s
        assert not detector.asks_now(asked_s - 0.1)
        assert detector.asks_now(asked_s + 0.1)
        now_s = asked_s + 0.1 + ASK_S
    detector.take_position(RankPosition(2, EXAMINING, False, (), 0))
    assert detector.verdict({}, now_s) is not None


def test_what_one_rank_moves_is_progress_though_another_does_not_answer() -> None:
    detector, now_s = hung()
    detector.take_position(RankPosition(1, "meeting the other islands", False, (), MIN_MOVED_BYTES))
    assert detector.verdict({}, now_s) is None


def test_ranks_that_only_look_at_a_store_are_hung() -> None:
    detector, now_s = hung()
    for rank in range(4):
        detector.take_position(RankPosition(rank, "step 4", False, (), 600))
    assert detector.verdict({}, now_s) is not None


def test_a_first_step_that_no_rank_takes_ends_with_what_each_was_doing() -> None:
    detector = HangDetector(cpu_plan(timeout_s=20), now_s=0.0)
    assert detector.asks_now(20.1)
    for rank in range(4):
        detector.take_position(RankPosition(rank, "building the model", True, ()))
    found = detector.verdict({}, 25.0)
    assert found == HangReport(
        None,
        "no first step on every rank after 25 s (timeout_s in job.yaml); the rank at fault is not known: "
        "ranks 0 (a1), 1 (a2), 2 (b1), 3 (b2): building the model",
    )


def test_a_rank_that_builds_while_others_wait_for_it_holds_them_up() -> None:
    detector = HangDetector(cpu_plan(timeout_s=20), now_s=0.0)
    assert detector.asks_now(20.1)
    for rank in range(4):
        alone = rank == 2
        doing = "building the model" if alone else "making group dp-0 (dp on a1, a2)"
        detector.take_position(RankPosition(rank, doing, alone, ()))
    found = detector.verdict({}, 25.0)
    assert rank_of(found) == 2
    assert found is not None
    assert found.text.endswith("rank 2 holds up the others: it is still building the model")


def test_stopped_process_holds_up_the_others() -> None:
    detector, now_s = hung()
    detector.take_states({0: "S", 1: "S", 2: "T", 3: "S"})
    found = detector.verdict({}, now_s)
    assert rank_of(found) == 2
    assert found is not None
    assert "its process is stopped by a signal" in found.text


def test_rank_behind_the_others_holds_them_up() -> None:
    detector, now_s = hung((3, 2, 3, 3))
    assert rank_of(detector.verdict({}, now_s)) == 1


def test_of_several_behind_none_is_named_for_that() -> None:
    detector, now_s = hung((3, 2, 2, 3))
    assert rank_of(detector.verdict({}, now_s)) is None


def say_where(detector: HangDetector, working_in: dict[int, str | None]) -> None:
    for rank, where in working_in.items():
        detector.take_position(RankPosition(rank, "step 4", False, (), 0, STACK, where))


WORKING = "user.py line 7 in spin"


@pytest.mark.parametrize("culprit", range(4))
def test_rank_that_works_while_others_wait_holds_them_up(culprit: int) -> None:
    detector, now_s = hung()
    say_where(detector, {rank: WORKING if rank == culprit else None for rank in range(4)})
    found = detector.verdict({}, now_s)
    assert found is not None
    assert (found.rank, found.stack) == (culprit, STACK)
    assert WORKING in found.text


def test_of_two_that_work_the_other_is_named_too() -> None:
    detector, now_s = hung()
    say_where(detector, {0: None, 1: WORKING, 2: None, 3: WORKING})
    found = detector.verdict({}, now_s)
    assert found is not None
    assert found.rank == 1
    assert "rank 3 likewise" in found.text


def test_where_every_rank_works_none_is_named() -> None:
    detector, now_s = hung()
    say_where(detector, dict.fromkeys(range(4), WORKING))
    assert rank_of(detector.verdict({}, now_s)) is None


def test_rank_that_cannot_answer_holds_up_the_others_and_its_innermost_calls_are_shown() -> None:
    detector, now_s = hung()
    say_where(detector, {0: None, 1: None, 3: None})
    detector.take_states({0: "S", 1: "S", 2: "R", 3: "S"})
    found = detector.verdict({2: DUMP}, now_s)
    assert found is not None
    assert (found.rank, found.stack) == (2, DUMP[3:23])


def test_rank_that_is_only_late_to_answer_is_not_named() -> None:
    detector, now_s = hung()
    say_where(detector, {0: None, 1: None, 3: None})
    detector.take_states(dict.fromkeys(range(4), "S"))
    assert rank_of(detector.verdict({2: DUMP}, now_s)) is None


def test_of_several_that_do_not_answer_none_is_named() -> None:
    detector, now_s = hung()
    say_where(detector, {0: None, 1: None})
    assert rank_of(detector.verdict({2: DUMP, 3: DUMP}, now_s)) is None


def test_on_gpus_no_rank_is_named_for_where_its_host_waits() -> None:
    detector, now_s = hung(plan=gpu_plan())
    say_where(detector, {0: None, 1: None, 2: None, 3: WORKING})
    assert rank_of(detector.verdict({}, now_s)) is None


def test_on_gpus_the_rank_whose_last_collective_lags_is_named() -> None:
    plan = gpu_plan()
    detector, now_s = hung(plan=plan)
    group = plan.groups[0]
    for rank in group.ranks:
        done = 4 if rank == group.ranks[-1] else 5
        progress = GroupProgress(group.name, False, enqueued=done, started=4, completed=4)
        detector.take_position(RankPosition(rank, "step 4", False, (progress,)))
    found = detector.verdict({}, now_s)
    assert rank_of(found) == group.ranks[-1]
    assert found is not None
    assert f"has not reached collective 5 of group {group.name}" in found.text


def test_on_gpus_the_rank_that_lags_in_a_group_of_a_trainer_is_named() -> None:
    """Groups of a trainer are known by torch's names of them, and many are described alike."""
    detector, now_s = hung(plan=trainer_plan())
    for rank in range(4):
        members = (0, 1) if rank < 2 else (2, 3)
        detector.take_group(GroupRecord(rank, f"hash-{rank // 2}", "TENSOR_GROUP", "nccl", members, "a", "ib0", "IB"))
        done = 4 if rank == 3 else 5
        progress = GroupProgress(f"hash-{rank // 2}", False, enqueued=done, started=4, completed=4 if rank > 1 else 5)
        detector.take_position(RankPosition(rank, "in the trainer's command", False, (progress,)))
    found = detector.verdict({}, now_s)
    assert rank_of(found) == 3
    assert found is not None
    assert "has not reached collective 5 of group TENSOR_GROUP, in which rank 2 waits for it" in found.text


def test_progress_takes_the_question_back() -> None:
    detector, now_s = hung()
    detector.take_progress(0, 4, now_s)
    assert detector.verdict({}, now_s) is None


def test_no_rank_gives_up_before_the_culprit_can_be_named() -> None:
    plan = cpu_plan()
    detector, margin_s = HangDetector(plan, now_s=0.0), 5.0  # the controller looks once a second, and may be busy
    named_s = detector.limit_s + ASK_S
    assert run_config_of(plan, "run").timeout_s > named_s + margin_s
