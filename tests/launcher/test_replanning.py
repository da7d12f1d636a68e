"""With which plan a run goes on, as the settings ask: planner, hosts and screen are stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, Settings
from holmes_runtime.config.codec import EdgeSettings
from holmes_runtime.config.verdicts import AllHostsSlow, EdgeAdapted, HostIsSlow, LinkIsSlow, SlowPart, Verdict
from launcher.nodes.interrupts import Interrupts
from launcher.supervise.lost_hosts import LostHosts
from launcher.supervise.replanning import Replanning, next_step
from tests.launcher.plans import cpu_plan

SAVING = cpu_plan(checkpoint={"path": "/checkpoints", "every_steps": 5})
NOT_SAVING = cpu_plan()
SLOWER = SAVING.model_copy(
    update={"prediction": SAVING.prediction.model_copy(update={"step_s": 2 * SAVING.prediction.step_s})}
)
SLOW_HOST = HostIsSlow("b2", 2.0)
SLOW_LINK = LinkIsSlow("a1", "b1", ratio=3.0, taken_s=0.3, planned_s=0.1, trunk=("a", "b"))


@dataclass
class FakePlanner:
    """Makes the plan it is given, or refuses; remembers what it was asked."""

    plan: Plan | None = SAVING
    asked: list[object] = field(default_factory=list)

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        self.asked.append(hosts)
        return self._answer(plan)

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        self.asked.append((verdict, hosts))
        return self._answer(plan)

    def _answer(self, first: Plan) -> Plan:
        assert first in (SAVING, NOT_SAVING)
        if self.plan is None:
            raise HolmesError("the job needs 4 hosts", "probe more")
        return self.plan


@dataclass
class Run:
    """A run's decisions, and what they said."""

    settings: Settings
    plan: Plan = SAVING
    planner: FakePlanner | None = field(default_factory=FakePlanner)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lost = LostHosts(answers=lambda node: True, in_background=lambda work: work())  # noqa: ARG005
        self.decides = Replanning(self.plan, self.settings, self.planner, self.said.append, lost, Interrupts())

    def fails(self, *lost: str, message: str = "Traceback\nbad") -> Plan | None:
        cause = Failure(host="b2", cluster="b", rank=3, exit_code=1, message=message, last_lines=(), time_s=0)
        return self.decides.after_failure(self.plan, cause, lost)

    def judged(self, *verdicts: Verdict, times_planned_s: float = 2.0) -> Plan | None:
        """The plan to go on with after steps that took that many times as long as planned."""
        self.decides.take_verdicts(verdicts, times_planned_s * self.plan.prediction.step_s)
        return self.decides.next_plan


@pytest.mark.parametrize(
    ("settings", "restarts_done", "lost", "expected"),
    [
        (Settings(), 0, (), "end"),
        (Settings(restarts=2), 1, (), "restart"),
        (Settings(restarts=2), 2, (), "end"),
        (Settings(restarts=2), 0, ("b2",), "end"),
        (Settings(on_loss="replan"), 0, ("b2",), "replan"),
        (Settings(on_loss="wait", restarts=1), 1, ("b2",), "wait"),
        (Settings(on_loss="replan"), 0, (), "end"),
    ],
)
def test_next_step(settings: Settings, restarts_done: int, lost: tuple[str, ...], expected: str) -> None:
    assert next_step(settings, restarts_done, lost) == expected


def test_failed_rank_costs_a_restart_as_often_as_asked_for() -> None:
    run = Run(Settings(restarts=1))
    assert run.fails() is SAVING
    assert run.said == ["host b2: bad", "restart 1 of 1 on the same hosts"]
    assert run.fails() is None


def test_rank_that_failed_without_a_word_is_restarted_too() -> None:
    run = Run(Settings(restarts=1))
    assert run.fails(message=" ") is SAVING
    assert run.said[0] == "host b2: exit code 1"


def test_a_run_that_nobody_held_up_is_restarted_without_a_host_that_is_none() -> None:
    run = Run(Settings(restarts=1))
    cause = Failure(host=None, cluster=None, rank=None, exit_code=1, message="stood still", last_lines=(), time_s=0)
    assert run.decides.after_failure(run.plan, cause, ()) is SAVING
    assert run.said[0] == "stood still"


def test_lost_host_is_waited_for_and_the_plan_stays() -> None:
    run = Run(Settings(on_loss="wait"))
    assert run.fails("b2") is SAVING
    assert run.said[-1] == "waiting for b2"


def test_lost_hosts_add_up_and_every_plan_is_made_from_the_first() -> None:
    run = Run(Settings(on_loss="replan"))
    run.fails("b2")
    run.fails("a1")
    assert run.planner is not None
    assert run.planner.asked == [("b2",), ("a1", "b2")]
    assert run.said[-1].startswith("plan without a1, b2: tp=1 pp=2 dp=2 on a1, ")


def test_the_sentence_of_a_new_plan_has_the_degrees_of_experts_and_sequences() -> None:
    parallel = SAVING.job.with_parallel(cp=2, ep=4)
    run = Run(Settings(on_loss="replan"), planner=FakePlanner(SAVING.model_copy(update={"job": parallel})))
    run.fails("b2")
    assert "pp=2 dp=1 cp=2 ep=4 on" in run.said[-1]


def test_run_ends_where_no_plan_does_without_the_lost_host() -> None:
    run = Run(Settings(on_loss="replan"), planner=FakePlanner(None))
    assert run.fails("b2") is None
    assert run.said[-1] == "no plan without b2: the job needs 4 hosts"


def test_run_ends_where_the_inventory_is_not_at_hand() -> None:
    run = Run(Settings(on_loss="replan"), planner=None)
    assert run.fails("b2") is None
    assert run.said[-1] == "no plan without b2: the inventory that the plan was made from is not in its folder"


def test_lost_host_that_answers_again_is_planned_with() -> None:
    run = Run(Settings(on_loss="replan"))
    run.fails("b2")
    run.decides.look_for_lost_hosts(SLOWER)
    assert run.decides.next_plan is None
    run.decides.look_for_lost_hosts(SLOWER)
    assert run.decides.take_next_plan() is SAVING
    assert run.decides.next_plan is None
    assert run.planner is not None
    assert run.planner.asked == [("b2",), ()]
    assert run.said[-1] == "the ranks save after this step and continue with the new plan"


def test_host_that_answers_again_does_not_end_a_plan_that_is_as_fast_without_it() -> None:
    run = Run(Settings(on_loss="replan"))
    run.fails("b2")
    run.decides.look_for_lost_hosts(SAVING)
    run.decides.look_for_lost_hosts(SAVING)
    assert run.decides.next_plan is None
    assert run.said[-1].startswith("the run keeps its plan")


def test_without_checkpoints_no_plan_is_taken_up_under_way() -> None:
    run = Run(Settings(on_loss="replan", replan_when_slow=True), plan=NOT_SAVING)
    run.fails("b2")
    for _ in range(3):
        run.decides.look_for_lost_hosts(SLOWER)
    assert run.judged(SLOW_HOST) is None


@pytest.mark.parametrize("verdict", [SLOW_HOST, SLOW_LINK])
def test_slow_part_is_planned_around_where_that_is_asked_for_and_gains(verdict: SlowPart) -> None:
    run = Run(Settings(replan_when_slow=True))
    assert run.judged(verdict) is SAVING
    assert run.planner is not None
    assert run.planner.asked == [(verdict, ())]
    assert run.said[0] == verdict.sentence
    assert "that plan would be 2.00x as fast as the current one" in run.said


def test_verdicts_are_said_again_only_when_they_have_become_others() -> None:
    run = Run(Settings())
    run.judged(SLOW_HOST, SLOW_LINK)
    said = list(run.said)
    run.judged(SLOW_HOST._replace(ratio=2.6), SLOW_LINK._replace(sender="a2", receiver="b2", ratio=4.0))
    assert run.said == said
    run.judged(SLOW_HOST._replace(ratio=5.0))
    assert len(run.said) > len(said)


def test_gain_is_shown_and_not_taken_where_that_is_not_asked_for() -> None:
    run = Run(Settings())
    assert run.judged(SLOW_HOST) is None
    assert run.said[-1] == "that plan would be 2.00x as fast as the current one"


def test_plan_that_gains_less_than_a_restart_costs_is_not_taken() -> None:
    run = Run(Settings(replan_when_slow=True))
    assert run.judged(SLOW_HOST, times_planned_s=1.05) is None


def test_plan_that_would_be_slower_is_not_praised() -> None:
    run = Run(Settings(replan_when_slow=True))
    assert run.judged(SLOW_HOST, times_planned_s=0.49) is None
    assert run.said[-1] == "that plan would be no faster than the current one"


ADAPTED = EdgeAdapted(("a1",), ("b1",), EdgeSettings("none", "none", 0), EdgeSettings("int8", "none", 1), 0.3, 0.2)


def test_what_the_ranks_have_adapted_is_said_and_not_planned_around() -> None:
    run = Run(Settings(replan_when_slow=True))
    assert run.judged(ADAPTED) is None
    assert run.said == [ADAPTED.sentence]
    assert run.planner is not None
    assert run.planner.asked == []


def test_what_the_ranks_could_not_make_up_for_is_planned_around() -> None:
    run = Run(Settings(replan_when_slow=True))
    assert run.judged(SLOW_LINK, ADAPTED) is SAVING
    assert ADAPTED.sentence in run.said


def test_only_the_first_plan_of_several_verdicts_is_taken() -> None:
    run = Run(Settings(replan_when_slow=True))
    run.judged(SLOW_HOST, SLOW_LINK)
    assert run.planner is not None
    assert run.planner.asked == [(SLOW_HOST, ())]
    assert SLOW_LINK.sentence in run.said


def test_no_plan_is_made_where_every_prediction_is_wrong() -> None:
    run = Run(Settings(replan_when_slow=True))
    verdict = AllHostsSlow(2.0, 3.0)
    assert run.judged(verdict, SLOW_LINK) is None
    assert run.said == [verdict.sentence, SLOW_LINK.sentence]


def test_failure_comes_before_a_plan_that_was_to_be_gone_on_with() -> None:
    run = Run(Settings(replan_when_slow=True))
    run.judged(SLOW_HOST)
    assert run.fails() is None
    assert run.decides.take_next_plan() is None
