"""End a run everywhere: ask every agent, wait for each, then end by recorded ids those that do not answer."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from holmes_core.errors import HolmesError
from holmes_core.remote.connect import connect
from holmes_runtime.config.messages import Stop, Stuck
from launcher.nodes.node_link import REMOVE_TIMEOUT_S, NodeLink
from launcher.nodes.start import AT_ONCE, RunningNodes
from launcher.prepare.bundle import NodeBundle
from launcher.prepare.prepare import SILENCE_LIMIT_S

STOP_LIMIT_S = 8.0


def stop(nodes: RunningNodes) -> tuple[str, ...]:
    """End all ranks and connections, in bounded time. Return a line for each host where processes are left.

    An agent ends its ranks on command (TERM, then KILL). An agent that does not answer is ended with everything it
    started, by the process ids it recorded. No process is looked up by name.
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


def forget_states(bundles: Iterable[NodeBundle]) -> None:
    """Remove the checkpoints that ranks kept in those hosts' memory. An unreachable host's agent does so itself."""

    def forget(bundle: NodeBundle) -> None:
        with contextlib.suppress(HolmesError, OSError, EOFError), contextlib.ExitStack() as after:
            connection = connect(bundle.node.host, bundle.node.access)
            after.callback(connection.close)
            connection.run(bundle.forget_command, b"", REMOVE_TIMEOUT_S)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(forget, bundles))


def _clean(link: NodeLink, stuck: dict[str, str]) -> None:
    host = link.bundle.node.host
    if link.lost:
        stuck[host] = f"unreachable; its agent ends its ranks {SILENCE_LIMIT_S:g} s after it loses the controller"
        return
    if link.opened and not link.ended and (left := link.end()) is not None:
        stuck[host] = left
    link.remove_files()
