"""End a run everywhere: ask every agent, wait for each, then clean up after those that did not answer."""

from __future__ import annotations

import queue
import time

from launcher.start import RunningNodes

STOP_LIMIT_S = 8.0


def stop(nodes: RunningNodes, already_gone: set[int]) -> tuple[str, ...]:
    """End all ranks and connections; at most `STOP_LIMIT_S` plus one clean-up. Returns hosts that never answered.

    An agent ends its ranks when its input ends (TERM, then KILL), removes its folder and goes; an agent that was
    killed has taken its ranks along, and its folder is removed from here. Nothing is found by name.
    """
    nodes.end_input()
    waiting = set(nodes.started) - already_gone
    deadline = time.monotonic() + STOP_LIMIT_S
    while waiting and time.monotonic() < deadline:
        try:
            event = nodes.events.get(timeout=0.2)
        except queue.Empty:
            continue
        if event.kind == "gone":
            waiting.discard(event.node_rank)
    nodes.remove_files()
    nodes.close()
    return tuple(nodes.bundles[node_rank].node.host for node_rank in sorted(waiting))
