"""The live view of a run of islands: lines, each with its island; or events as JSON."""

from __future__ import annotations

import json

from holmes_cli.screen.run_view import step_in_words
from holmes_cli.screen.terminal import out, print_err
from holmes_core.records.plan import IslandsPlan
from holmes_core.units import format_bytes, format_seconds
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent, to_line
from launcher.journal.step_metrics import StepMetrics


class LinesOfIslands:
    """One line for each step of an island, for each notice, and for each line that its ranks print before they step."""

    def __init__(self, plan: IslandsPlan, as_json: bool = False) -> None:
        self._plan, self._as_json = plan, as_json
        self._states: dict[int, dict[str, str]] = {}

    def take_run(self, run_id: str, _started_at_s: float) -> None:
        """Take the run that is shown."""
        if not self._as_json:
            hosts = sum(len(plan.nodes) for plan in self._plan.islands)
            ranks = sum(plan.world_size for plan in self._plan.islands)
            print_err(f"run {run_id}: {len(self._plan.islands)} islands, {ranks} ranks on {hosts} hosts")

    def show(self, island: int, event: RunEvent) -> None:
        """Show an event of an island."""
        if self._as_json:
            out.file.write(json.dumps({"island": island, **json.loads(to_line(event))}) + "\n")
            out.file.flush()
        elif isinstance(event, NodeState):
            self._show_state(island, event)
        elif isinstance(event, StepMetrics):
            print_err(f"island {island}: {step_in_words(self._plan.islands[island], event)}")
        elif isinstance(event, AppliedOuterSync):
            print_err(f"island {island}: {exchange_in_words(event)}")
        elif isinstance(event, LogLine):
            print_err(f"island {island}: {event.host} rank {event.rank} | {event.line}")
        elif isinstance(event, Notice):
            print_err(f"island {island}: {event.text}")

    def _show_state(self, island: int, event: NodeState) -> None:
        """Print a state once the island's last node has reached it."""
        states, count = self._states.setdefault(island, {}), len(self._plan.islands[island].nodes)
        states[event.host] = event.state
        if sum(state == event.state for state in states.values()) == count:
            print_err(f"island {island}: {count} of {count} nodes: {event.state}")


def exchange_in_words(exchange: AppliedOuterSync) -> str:
    """Return a sentence on an outer sync: its members, bytes and seconds."""
    names = ", ".join(map(str, exchange.islands))
    took = f"{format_seconds(exchange.duration_s)}, waited for {format_seconds(exchange.waited_s)}"
    if exchange.has_joined:
        return (
            f"outer sync {exchange.exchange + 1}: joined late, received the state of islands {names} and dropped its "
            f"own progress since the last one; {took}"
        )
    return f"outer sync {exchange.exchange + 1} of islands {names}: {format_bytes(exchange.sent_bytes)} sent in {took}"
