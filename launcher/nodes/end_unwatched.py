"""End a run whose controller is gone: its agents by their recorded ids, and their folders."""

from __future__ import annotations

import time

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import write_signed
from launcher.journal.run_folder import RUN_FILE
from launcher.journal.run_store import StoredRun
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.node_link import NodeLink
from launcher.nodes.start import RunningNodes
from launcher.nodes.stop import forget_states
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables


def end_unwatched(stored: StoredRun, plan: Plan) -> tuple[str, ...]:
    """End the run everywhere and record it as stopped. Return a line for each host where processes are left."""
    attempt = Attempt(stored.run.run_id, stored.run.attempt, stored.run.settings.detached)
    nodes = RunningNodes(prepare(plan, attempt, UserVariables({}, {})), True, Interrupts())
    left = nodes.each(_end)
    forget_states(link.bundle for link in nodes.links)
    nodes.close()
    record_stopped(stored)
    hosts = (link.bundle.node.host for link in nodes.links)
    return tuple(f"host {host}: {what}" for host, what in zip(hosts, left, strict=True) if what)


def record_stopped(stored: StoredRun) -> None:
    """Record a run whose controller is gone as stopped."""
    ended = {"state": "stopped", "exit_code": 130, "ended_at_s": time.time(), "controller": None}
    run = stored.run.model_copy(update={**ended, "steps_done": stored.steps_done})
    write_signed(stored.folder / RUN_FILE, run, private=True)


def _end(link: NodeLink) -> str | None:
    left = link.end()
    link.remove_files()
    return left
