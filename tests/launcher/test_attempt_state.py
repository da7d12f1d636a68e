"""What follows from what nodes say, and from what they do not say, with the time given."""

from __future__ import annotations

import pytest

from holmes_core.records.access import Access
from holmes_core.records.plan import Plan
from holmes_core.remote.slurm.slurm_word import SlurmWord
from holmes_runtime.config.messages import (
    Alive,
    Exited,
    Message,
    RankFailed,
    RankPosition,
    RankPrinted,
    RankState,
    RankStates,
    RanksUp,
    Refused,
    Stacks,
    Started,
    Stuck,
)
from holmes_runtime.config.rank_metrics import AppliedOuterSync, GroupRecord, RankNotice, RankOuterSync
from holmes_runtime.config.verdicts import HostIsSlow
from launcher.journal.run_events import LogLine, NodeState, Notice
from launcher.journal.step_metrics import FinishedStep
from launcher.nodes.node_link import LinkBroken, LinkClosed, LinkState, LinkWord, NodeMessage, Unreadable
from launcher.prepare.prepare import SILENCE_LIMIT_S
from launcher.supervise.attempt_state import (
    CAUSE_WINDOW_S,
    JOIN_S,
    KEPT_LINES,
    MAX_LINE_CHARACTERS,
    NOT_JOINED,
    ONLY_PEERS_WINDOW_S,
    STALLED_S,
    AttemptState,
    Effect,
    GiveUp,
    NotifyAll,
    Reconnect,
)
from launcher.supervise.hang import ASK_S, MIN_S
from tests.launcher.plans import cpu_plan, with_access
from tests.launcher.test_step_metrics import report
from tests.launcher.trainer_job import trainer_plan

PLAN = cpu_plan()  # a rank on each of a1, a2, b1, b2
UNIX_S = 1_000_000.0


def attempt(detached: bool = False, plan: Plan = PLAN) -> AttemptState:
    return AttemptState(plan, detached, started_s=0.0, unix_offset_s=UNIX_S)


def say(state: AttemptState, node_rank: int, message: Message, now_s: float = 0.0) -> list[Effect]:
    """An agent's message."""
    return state.take(NodeMessage(node_rank, message, now_s, number=state.seen.get(node_rank, 0) + 1), now_s)


def link_says(state: AttemptState, node_rank: int, message: LinkWord) -> list[Effect]:
    return state.take(NodeMessage(node_rank, message, 0.0), 0.0)


def wait(state: AttemptState, from_s: float, to_s: float, speaking: tuple[int, ...] = ()) -> list[Effect]:
    """A second after the other goes by, in which nothing is heard but of the nodes that are `speaking`."""
    effects: list[Effect] = []
    for now_s in range(int(from_s) + 1, int(to_s) + 1):
        for node_rank in speaking:
            effects += say(state, node_rank, Alive(), float(now_s))
        effects += state.tick(float(now_s))
    return effects


def step(state: AttemptState, now_s: float = 0.0) -> list[Effect]:
    """All ranks finish a step."""
    return [effect for rank in range(4) for effect in say(state, rank, report(PLAN, rank, step_s=0.5), now_s)]


def test_node_goes_from_state_to_state_each_shown_once() -> None:
    state = attempt()
    effects = [*say(state, 0, Started()), *say(state, 0, RanksUp()), *say(state, 0, RanksUp())]
    effects += say(state, 0, RankPrinted(0, "rank 0 on a1: stage 0"))
    effects += [*say(state, 0, report(PLAN, 0, 0.5)), *say(state, 0, Exited(0))]
    states = [effect.state for effect in effects if isinstance(effect, NodeState)]
    assert states == ["starting ranks", "ranks up", "rendezvous", "stepping", "ended"]


def test_line_is_that_of_the_rank_with_its_local_rank_there() -> None:
    assert say(attempt(), 2, RankPrinted(0, "hello")) == [LogLine("b1", "b", 2, "hello")]


def test_step_is_told_when_its_last_rank_has_finished_it_with_what_is_slow() -> None:
    (finished,) = [effect for effect in step(attempt()) if isinstance(effect, FinishedStep)]
    assert (finished.metrics.step, finished.verdicts) == (4, (HostIsSlow("x", 2.0),))


def test_attempt_is_over_when_every_node_has_ended() -> None:
    state = attempt()
    for node_rank in range(3):
        say(state, node_rank, Exited(0))
    assert not state.is_over(0.0)
    say(state, 3, Exited(0))
    assert state.is_over(0.0)
    assert state.cause is None


def test_cause_may_be_told_after_its_consequence() -> None:
    state = attempt()
    say(state, 0, RankFailed(0, 1, "Connection closed by peer", time_s=1.0))
    say(state, 2, RankFailed(2, -9, "Signal 9", time_s=2.0), now_s=1.0)
    assert not state.is_over(CAUSE_WINDOW_S)
    assert state.is_over(CAUSE_WINDOW_S + 0.1)
    assert state.cause is not None
    assert (state.cause.host, state.cause.rank) == ("b1", 2)


def test_cause_is_waited_for_while_only_peers_have_spoken() -> None:
    state = attempt()
    say(state, 0, RankFailed(0, 1, "Connection closed by peer", time_s=1.0))
    say(state, 1, RankFailed(1, -15, "Signal 15 (SIGTERM) received", time_s=1.0))
    assert not state.is_over(ONLY_PEERS_WINDOW_S)
    assert state.is_over(ONLY_PEERS_WINDOW_S + 0.1)
    say(state, 2, RankFailed(None, 1, "the ranks were ended\nNo space left on device: /h", time_s=3.0), now_s=3.0)
    assert state.is_over(3.0)
    assert state.cause is not None
    assert state.cause.host == "b1"


def test_host_that_went_away_is_the_cause_though_its_peers_spoke_first() -> None:
    state = attempt()
    say(state, 0, RankFailed(0, 1, "Connection reset by peer", time_s=1.0), now_s=1.0)
    wait(state, 1, SILENCE_LIMIT_S + 1, speaking=(0, 1, 2))
    assert state.is_over(SILENCE_LIMIT_S + 2)
    assert state.cause is not None
    assert (state.cause.host, state.cause.host_lost) == ("b2", True)


def test_failed_rank_has_its_last_lines() -> None:
    state = attempt()
    for number in range(30):
        say(state, 1, RankPrinted(0, f"line {number}"))
    say(state, 1, RankFailed(1, 1, "ValueError: bad", time_s=1.0))
    assert state.failures[0].last_lines == tuple(f"line {number}" for number in range(10, 30))


def test_silent_host_of_an_attached_run_is_given_up_and_lost() -> None:
    state = attempt()
    effects = wait(state, 0, SILENCE_LIMIT_S + 1, speaking=(0, 1, 2))
    assert effects == [Reconnect(3), GiveUp(3), NodeState("b2", "b", "lost")]
    (failure,) = state.failures
    assert (failure.host, failure.host_lost, failure.time_s) == ("b2", True, UNIX_S + SILENCE_LIMIT_S + 1)
    assert failure.message == "the node agent has been silent for 16 s: the host or its network is down"
    assert state.lost_hosts == ("b2",)


def test_silent_host_of_a_detached_run_is_looked_for_again() -> None:
    state = attempt(detached=True)
    effects = wait(state, 0, SILENCE_LIMIT_S + 1, speaking=(0, 1, 2))
    assert effects == [Reconnect(3), Notice("host b2: silent for 16 s; reconnecting"), Reconnect(3)]
    assert state.failures == []


def test_connection_over_which_nothing_comes_is_made_anew_once_and_again_when_the_host_has_spoken() -> None:
    state = attempt()
    assert wait(state, 0, STALLED_S, speaking=(0, 1, 2)) == []
    assert wait(state, STALLED_S, SILENCE_LIMIT_S, speaking=(0, 1, 2)) == [Reconnect(3)]
    assert state.unheard_s(SILENCE_LIMIT_S) == SILENCE_LIMIT_S
    say(state, 3, Alive(), SILENCE_LIMIT_S)
    assert state.unheard_s(SILENCE_LIMIT_S) == 0.0
    later_s = SILENCE_LIMIT_S + STALLED_S
    assert wait(state, SILENCE_LIMIT_S, later_s, speaking=(0, 1, 2)) == []
    assert wait(state, later_s, later_s + 1, speaking=(0, 1, 2)) == [Reconnect(3)]


def test_a_step_of_slurm_or_a_local_shell_is_not_begun_anew() -> None:
    state = attempt(plan=with_access(PLAN, Access(transport="slurm", python="python3")))
    assert wait(state, 0, SILENCE_LIMIT_S, speaking=(0, 1, 2)) == []


def test_controller_that_was_asleep_finds_no_host_silent() -> None:
    state = attempt()
    assert [*state.tick(1.0), *state.tick(500.0)] == []


def test_words_of_the_link_are_no_words_of_the_host() -> None:
    state = attempt()
    wait(state, 0, SILENCE_LIMIT_S, speaking=(0, 1, 2))
    link_says(state, 3, LinkState("connection lost"))
    assert GiveUp(3) in wait(state, SILENCE_LIMIT_S, SILENCE_LIMIT_S + 1, speaking=(0, 1, 2))


def test_host_whose_connection_ends_is_lost_and_its_errors_are_shown() -> None:
    state = attempt()
    link_says(state, 1, LinkClosed(255, "kex_exchange: reset\n", agent_ended=False))
    (failure,) = state.failures
    assert (failure.host, failure.host_lost, failure.last_lines) == ("a2", True, ("kex_exchange: reset",))


def test_agent_that_ends_before_its_ranks_was_told_to_and_its_host_is_there() -> None:
    state = attempt()
    link_says(state, 1, LinkClosed(0, "", agent_ended=True))
    (failure,) = state.failures
    assert "asked to stop by someone else" in failure.message
    assert not failure.host_lost


def test_connection_that_ends_after_the_ranks_is_no_failure() -> None:
    state = attempt()
    say(state, 1, Exited(0))
    link_says(state, 1, LinkClosed(0, "", agent_ended=True))
    assert state.failures == []


def test_ranks_that_make_no_progress_are_asked_and_the_stopped_one_is_the_cause() -> None:
    state = attempt(plan=cpu_plan(compute={"flops_per_s": 1e13}))
    step(state)
    asked = wait(state, 0, MIN_S + 1, speaking=(0, 1, 2, 3))
    assert asked == [NotifyAll(Stacks())]
    for node_rank in range(4):
        say(state, node_rank, RankStates((RankState(0, "T" if node_rank == 2 else "S"),)), MIN_S + 1)
    wait(state, MIN_S + 1, MIN_S + 1 + ASK_S, speaking=(0, 1, 2, 3))
    assert state.cause is not None
    assert (state.cause.host, state.cause.rank) == ("b1", 2)
    assert "stopped by a signal" in state.cause.message


def test_ranks_that_never_take_a_first_step_end_the_run_and_nobody_is_blamed_without_evidence() -> None:
    state = attempt(plan=cpu_plan(timeout_s=20))
    asked = wait(state, 0, 21, speaking=(0, 1, 2, 3))
    assert asked == [NotifyAll(Stacks())]
    for node_rank in range(4):
        say(state, node_rank, RankStates((RankState(0, "S"),)), 21.0)
        say(state, node_rank, RankPosition(node_rank, "building the model", True, ()), 21.0)
    wait(state, 21, 21 + ASK_S, speaking=(0, 1, 2, 3))
    (failure,) = state.failures
    assert (failure.host, failure.rank, failure.host_lost) == (None, None, False)
    assert failure.message.endswith("ranks 0 (a1), 1 (a2), 2 (b1), 3 (b2): building the model")
    assert state.lost_hosts == ()


def test_process_that_cannot_be_ended_is_named() -> None:
    assert say(attempt(), 0, Stuck(("7 python (state D)",))) == [Notice("host a1: cannot be ended: 7 python (state D)")]


def test_messages_are_counted_for_a_controller_that_takes_over() -> None:
    state = attempt()
    for _ in range(3):
        say(state, 2, Alive())
    link_says(state, 2, LinkState("connection lost"))
    assert state.seen == {2: 3}


@pytest.mark.parametrize(
    "message",
    [
        RankPrinted(7, "hello"),
        RankStates((RankState(0, "S"), RankState(-1, "T"))),
        RankPosition(2, "step 1", False, ()),
        report(PLAN, 3, step_s=0.5),
        report(PLAN, 0, step_s=0.5)._replace(rank=99),
        report(PLAN, 0, step_s=0.5)._replace(step_s=0.0),
        RankFailed(2, 1, "not mine", time_s=0.0),
        Refused("a command of the controller cannot be read: kind: expected one of"),
        Unreadable("Exited.exit_code: expected int, got 'x'"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_host_that_says_what_cannot_be_is_at_fault_and_harms_no_more(message: Message) -> None:
    state = attempt()
    assert say(state, 0, message) == []
    (failure,) = state.failures
    assert (failure.host, failure.rank, failure.host_lost) == ("a1", None, False)
    assert failure.message.startswith("agent and controller do not understand each other: ")


def test_last_stage_without_a_loss_cannot_be() -> None:
    state = attempt()
    say(state, 3, report(PLAN, 3, step_s=0.5)._replace(loss=None))
    assert [failure.host for failure in state.failures] == ["b2"]


def lost(hosts: tuple[int, ...]) -> AttemptState:
    """An attempt whose links to those nodes have ended."""
    state = attempt()
    for node_rank in hosts:
        link_says(state, node_rank, LinkClosed(1, "", agent_ended=False))
    return state


def test_a_cancelled_job_is_the_cause_and_leaves_nothing_to_start_again_on() -> None:
    state = lost((0, 1, 2, 3))
    state.take_slurm_word(SlurmWord("Slurm job 7 was cancelled (`scancel`)"))
    assert state.cause is not None
    assert (state.cause.host, state.cause.message) == (None, "Slurm job 7 was cancelled (`scancel`)")
    assert state.cannot_start_again


def test_a_node_that_is_down_is_the_cause_of_its_jobs_end() -> None:
    state = lost((0, 1))
    state.take_slurm_word(SlurmWord("Slurm job 7 was ended", {"b2": "Slurm has node b2 DOWN: power"}))
    assert state.cause is not None
    assert (state.cause.host, state.cause.host_lost) == ("b2", True)
    assert state.cause.message == "Slurm has node b2 DOWN: power; Slurm job 7 was ended"


def test_in_a_job_that_goes_on_slurms_word_counts_for_hosts_that_failed() -> None:
    state = lost((3,))
    state.take_slurm_word(SlurmWord(None, {"a1": "Slurm has node a1 DOWN: x", "b2": "Slurm has node b2 DOWN: power"}))
    assert state.cause is not None
    assert (state.cause.host, state.cause.message) == ("b2", "Slurm has node b2 DOWN: power")
    assert (state.lost_hosts, state.cannot_start_again) == (("b2",), False)


def test_slurms_word_makes_no_failure_of_an_attempt_without_one() -> None:
    state = attempt()
    state.take_slurm_word(SlurmWord("Slurm job 7 was cancelled (`scancel`)"))
    assert (state.cause, state.cannot_start_again) == (None, False)


def test_a_node_that_is_up_again_when_slurm_is_asked_is_known_by_what_its_step_said() -> None:
    state = lost((0, 1))
    assert NodeState("b2", "b", "connection lost") in link_says(state, 3, LinkBroken("srun: error: Node failure on b2"))
    state.take_slurm_word(SlurmWord("Slurm job 7 was ended because a node failed"))
    assert state.cause is not None
    assert state.cause.host == "b2"
    assert state.cause.message.endswith("; Slurm job 7 was ended because a node failed")


def test_a_cancelled_step_is_told_from_an_agent_that_was_killed() -> None:
    state = attempt()
    link_says(state, 3, LinkBroken("slurmstepd-b2: error: *** STEP 4.17 ON b2 CANCELLED AT 2026-11-23T06:18:26 ***"))
    link_says(state, 3, LinkClosed(0, "", agent_ended=True))
    assert state.cause is not None
    assert state.cause.message.endswith("its step of the Slurm job was cancelled (`scancel`)")
    assert not state.cause.host_lost


def test_a_step_that_was_killed_is_told_from_an_agent_that_was() -> None:
    state = attempt()
    link_says(
        state,
        3,
        LinkBroken("srun: cluster configuration lacks support for cpu binding\nsrun: error: b2: task 0: Killed"),
    )
    link_says(state, 3, LinkClosed(0, "", agent_ended=True))
    assert state.cause is not None
    assert state.cause.message.endswith("its step of the Slurm job was killed, as `scancel` does")
    assert not state.cause.host_lost


def unhooked(effects: list[Effect]) -> bool:
    return any(isinstance(each, Notice) and "no rank has reported a process group" in each.text for each in effects)


def test_trainer_whose_ranks_report_no_group_is_named_at_its_first_step_and_once() -> None:
    state = attempt(plan=trainer_plan())
    assert unhooked(say(state, 0, RankPrinted(0, "step 1 loss 3")))
    assert not unhooked(say(state, 0, RankPrinted(0, "step 2 loss 3")))
    assert not unhooked(say(state, 0, Exited(0)))


def test_trainer_that_prints_no_step_is_named_when_its_ranks_end_well() -> None:
    assert unhooked(say(attempt(plan=trainer_plan()), 0, Exited(0)))
    assert not unhooked(say(attempt(plan=trainer_plan()), 0, Exited(1)))  # it failed, maybe before its first group
    assert not unhooked(say(attempt(), 0, Exited(0)))


def test_trainer_whose_ranks_report_groups_is_not_named() -> None:
    state = attempt(plan=trainer_plan())
    say(state, 0, GroupRecord(0, "0", "default", "gloo", (0, 1, 2, 3), "shared", "eth0", None))
    assert not unhooked(say(state, 0, RankPrinted(0, "step 1 loss 3")))
    assert not unhooked(say(state, 0, Exited(0)))


def test_equal_notices_of_a_trainers_hooks_are_shown_once() -> None:
    state = attempt(plan=trainer_plan())
    notices = [RankNotice(rank, "warning", "NCCL made a communicator", None) for rank in (2, 3)]
    shown = [effect for notice in notices for effect in say(state, 1, notice)]
    assert shown == [Notice("rank 2: NCCL made a communicator")]


def applied(rank: int, digest: str) -> RankOuterSync:
    return RankOuterSync(rank, AppliedOuterSync(3, False, (0, 1), 640, 10, 20, 0.5, 0.25 * rank, digest))


def test_an_outer_sync_of_a_trainers_ranks_is_shown_once_the_last_of_them_has_applied_it() -> None:
    state = attempt(plan=trainer_plan())
    digests = ("ffffffffffffffff", "0000000000000003", "0000000000000001", "0000000000000000")
    shown = [effect for rank in range(4) for effect in say(state, rank // 2, applied(rank, digests[rank]))]
    assert shown == [AppliedOuterSync(3, False, (0, 1), 640, 40, 80, 0.5, 0.75, "0000000000000003")]
    assert state.failures == []
    say(state, 0, applied(3, digests[3]))  # of a rank that is on the other host
    assert [failure.host for failure in state.failures] == ["a1"]


@pytest.mark.parametrize("digest", ["", "0x1", "-1", "f" * 17, "no digest"])
def test_a_digest_of_an_outer_sync_that_is_none_is_a_fault_of_its_host(digest: str) -> None:
    state = attempt(plan=trainer_plan())
    assert say(state, 0, applied(0, digest)) == []
    assert [failure.host for failure in state.failures] == ["a1"]


def test_an_island_whose_script_takes_steps_or_ends_without_joining_is_not_started_again() -> None:
    state = attempt(plan=trainer_plan())
    assert list(state.require_island(has_begun=False, now_s=1.0)) == []
    assert state.cause is None
    say(state, 0, RankPrinted(0, "step 1 loss 3"))
    assert list(state.require_island(has_begun=True, now_s=2.0)) == []
    assert (state.cause, state.cannot_start_again) == (None, False)
    assert list(state.require_island(has_begun=False, now_s=3.0)) == []
    assert state.cause is not None
    assert (state.cause.message, state.cannot_start_again) == (NOT_JOINED, True)

    ended = attempt(plan=trainer_plan())
    for node_rank in range(2):
        say(ended, node_rank, Exited(0))
    assert list(ended.require_island(has_begun=False, now_s=1.0)) == []
    assert ended.cannot_start_again

    failed = attempt(plan=trainer_plan())
    say(failed, 0, RankFailed(0, 1, "no module named holmes_runtime", UNIX_S))
    for node_rank in range(2):
        say(failed, node_rank, Exited(1))
    assert list(failed.require_island(has_begun=False, now_s=1.0)) == []
    assert not failed.cannot_start_again


def test_an_island_that_prints_no_step_and_does_not_join_is_named_once() -> None:
    state = attempt(plan=trainer_plan())
    named = [list(state.require_island(has_begun=False, now_s=JOIN_S + late)) for late in (0.0, 1.0, 2.0)]
    assert [len(each) for each in named] == [0, 1, 0]
    assert list(attempt(plan=trainer_plan()).require_island(has_begun=True, now_s=2 * JOIN_S)) == []
    assert list(attempt().require_island(has_begun=False, now_s=2 * JOIN_S)) == []  # the bundled trainer always joins


def test_the_word_of_a_rank_that_failed_is_the_end_of_its_traceback_though_older_lines_come_after_it() -> None:
    state = attempt(plan=trainer_plan())
    for line in ("step 14 loss nan", "[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: too far"):
        say(state, 0, RankPrinted(0, line))
    say(state, 0, RankPrinted(0, "step 15 loss nan"))
    say(state, 0, RankFailed(0, 1, "To enable traceback see: https://pytorch.org", UNIX_S, ()))
    assert [each.message for each in state.failures] == ["ValueError: too far"]


def test_of_long_lines_and_reasons_a_failure_keeps_what_can_be_shown() -> None:
    state = attempt()
    for _ in range(300):
        say(state, 0, RankPrinted(0, "x" * 100_000))
    say(state, 0, RankFailed(0, 1, "y" * 1_000_000, UNIX_S))
    say(state, 1, RankFailed(1, 1, "z", UNIX_S, ("w" * 1_000_000,) * 1000))
    assert all(len(failure.message) <= MAX_LINE_CHARACTERS for failure in state.failures)
    kept = [line for failure in state.failures for line in failure.last_lines]
    assert {line[0] for line in kept} == {"x", "w"}
    assert max(map(len, kept)) == MAX_LINE_CHARACTERS
    assert len(kept) <= 2 * KEPT_LINES
