"""The loop around an attempt's state: what is heard is taken in order, until the attempt is over."""

from __future__ import annotations

from holmes_runtime.config.islands.rendezvous_messages import ToMeeting
from holmes_runtime.config.messages import Alive, Exited
from launcher.journal.run_events import NodeState
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.node_link import LinkClosed, NodeMessage
from launcher.nodes.start import RunningNodes
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from launcher.supervise.attempt_state import CAUSE_WINDOW_S, AttemptState
from launcher.supervise.watch import AttemptEvent, watch
from tests.launcher.plans import cpu_plan

PLAN = cpu_plan()


class Refusing:
    """A meeting of islands that takes nothing of anybody."""

    def take(self, reply: object, message: ToMeeting) -> str | None:  # noqa: ARG002
        return "set of '!!!x'" if message.line else None


def watched(heard: list[NodeMessage]) -> tuple[AttemptState, list[AttemptEvent]]:
    """The state when all that was heard has been taken, and what was told of it. No node can be sent anything."""
    bundles = prepare(PLAN, Attempt("20260101-000000-abcd"), UserVariables({}, {}))
    nodes, told = RunningNodes(bundles, False, Interrupts(), meeting=Refusing()), list[AttemptEvent]()
    for each in heard:
        nodes.heard.put(each)
    state = AttemptState(PLAN, False, started_s=0.0, unix_offset_s=0.0)
    watch(state, nodes, told.append, lambda _: None)
    assert nodes.heard.empty()
    return state, told


def test_watch_ends_with_the_last_node() -> None:
    state, told = watched([NodeMessage(node_rank, Exited(0), 1e9, number=1) for node_rank in range(4)])
    assert told == [NodeState(node.host, node.cluster, "ended") for node in PLAN.nodes]
    assert state.failures == []


def test_time_is_when_a_message_came_and_not_when_it_is_taken() -> None:
    closed = NodeMessage(1, LinkClosed(255, "", agent_ended=False), 1e9 + 5)
    state, _ = watched(
        [NodeMessage(0, Alive(), 1e9, number=1), closed, NodeMessage(0, Alive(), 1e9 + 5 + 2 * CAUSE_WINDOW_S)]
    )
    assert [failure.time_s for failure in state.failures] == [1e9 + 5]


def test_island_whose_rank_asks_the_meeting_for_what_cannot_be_fails_by_host_and_reason() -> None:
    ends = [NodeMessage(node_rank, Exited(0), 1e9, number=1) for node_rank in (0, 2, 3)]
    left = NodeMessage(1, ToMeeting(7, ""), 1e9, number=1)
    state, _ = watched([left, NodeMessage(1, ToMeeting(7, "{}"), 1e9, number=2), *ends])
    (failure,) = state.failures
    assert failure.host == PLAN.nodes[1].host
    assert failure.message.endswith("sent the rendezvous of islands an invalid request: set of '!!!x'")
    assert not failure.host_lost
