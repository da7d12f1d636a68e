"""End a run everywhere: ask every agent, wait for each, then end by recorded ids what did not answer."""

from __future__ import annotations

import contextlib
import queue
import time

from holmes_runtime.config.messages import Stop, Stuck
from launcher.nodes.node_link import NodeLink
from launcher.nodes.start import RunningNodes
from launcher.prepare.prepare import SILENCE_LIMIT_S

STOP_LIMIT_S = 8.0


def stop(nodes: RunningNodes) -> tuple[str, ...]:
    """End all ranks and connections, in bounded time. Returns, in words, what could not be ended and where.

    An agent ends its ranks when told (TERM, then KILL). One that does not answer is ended with all it started by the
    process ids it wrote down. Nothing is found by name.
    """
    nodes.send(Stop())
    stuck: dict[str, str] = {}
    deadline = time.monotonic() + STOP_LIMIT_S
    while any(link.may_answer for link in nodes.links) and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            heard = nodes.heard.get(timeout=0.1)
            if isinstance(heard.message, Stuck):
                stuck[nodes.host(heard.node_rank)] = ", ".join(heard.message.processes)
    nodes.each(lambda link: _clean(link, stuck))
    nodes.close()
    return tuple(f"host {host}: {what}" for host, what in stuck.items())


def _clean(link: NodeLink, stuck: dict[str, str]) -> None:
    host = link.bundle.node.host
    if link.lost:
        stuck[host] = f"out of reach; its agent ends its ranks within {SILENCE_LIMIT_S:g} s of losing us"
        return
    if link.opened and not link.ended and (left := link.end()) is not None:
        stuck[host] = left
    link.remove_files()
