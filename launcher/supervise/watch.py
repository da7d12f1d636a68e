"""Watch an attempt to its end: pass messages and the time to its state, and carry out the state's orders."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.journal.rank_files import FilePart
from launcher.journal.run_events import RunEvent
from launcher.journal.step_metrics import FinishedStep
from launcher.nodes.start import POLL_S, RunningNodes
from launcher.supervise.attempt_state import AttemptState, Effect, ForMeeting, GiveUp, NotifyAll, Reconnect

AttemptEvent = RunEvent | FinishedStep | FilePart


def watch(
    state: AttemptState, nodes: RunningNodes, take: Callable[[AttemptEvent], None], tick: Callable[[float], None]
) -> None:
    """Watch until the attempt is over. Call `take` with each event, and `tick` regularly with the time.

    That is the time when the last message arrived, however late it is processed. Otherwise a node would seem silent
    while another node's many lines are processed. Raises KeyboardInterrupt.
    """
    now_s = time.monotonic()
    while not state.is_over(now_s):
        effects: list[Effect] = []
        heard = nodes.hear(POLL_S)
        if heard is None:
            now_s = time.monotonic()
        else:
            now_s = max(now_s, heard.heard_s)
            effects = state.take(heard, now_s)
        for effect in (*effects, *state.tick(now_s)):
            _carry_out(effect, nodes, take)
            if isinstance(effect, ForMeeting) and (why := nodes.meet(effect.node_rank, effect.message)) is not None:
                for consequence in state.take_refusal(effect.node_rank, why, now_s):
                    _carry_out(consequence, nodes, take)
        tick(now_s)


def _carry_out(effect: Effect, nodes: RunningNodes, take: Callable[[AttemptEvent], None]) -> None:
    if isinstance(effect, NotifyAll):
        nodes.send(effect.command)
    elif isinstance(effect, Reconnect):
        nodes.links[effect.node_rank].drop()
    elif isinstance(effect, GiveUp):
        nodes.links[effect.node_rank].lost = True
    elif not isinstance(effect, ForMeeting):
        take(effect)
