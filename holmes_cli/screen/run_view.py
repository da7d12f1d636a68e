"""What a run shows while it lasts: on a terminal one screen that is drawn anew, elsewhere lines; or events as JSON."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holmes_cli.screen.terminal import err, out
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes, format_seconds
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent, to_line
from launcher.journal.step_metrics import StepMetrics

MOST_NODES = 16
LAST_LINES = 8


class RunView:
    """A context: the screen is drawn inside it."""

    def __init__(self, plan: Plan, as_json: bool = False) -> None:
        self._plan, self._as_json = plan, as_json
        self._states: dict[str, NodeState] = {}
        self._step: StepMetrics | None = None
        self._lines: deque[Text] = deque(maxlen=LAST_LINES)
        self._notices: deque[str] = deque(maxlen=LAST_LINES)
        drawn = err.is_terminal and not as_json
        self._live = Live(console=err, get_renderable=self._screen, refresh_per_second=4) if drawn else None

    def __enter__(self) -> RunView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, event: RunEvent) -> None:
        """Show what happened."""
        if self._as_json:
            out.file.write(to_line(event) + "\n")
            out.file.flush()
        elif isinstance(event, NodeState):
            self._show_state(event)
        elif isinstance(event, StepMetrics):
            self._step = event
            self._print(self._step_text(event))
        elif isinstance(event, LogLine):
            host = f"{event.cluster}/{event.host}" if event.cluster else event.host
            self._lines.append(Text(f"{host} rank {event.rank} | {event.line}"))
            self._print(f"{host} rank {event.rank} | {event.line}")
        elif isinstance(event, Notice):
            self._notices.append(event.text)
            self._print(event.text)

    def take_plan(self, plan: Plan) -> None:
        """From now on the run follows this plan."""
        self._plan, self._states = plan, {}

    def _print(self, text: str) -> None:
        if self._live is None:
            err.print(text, markup=False, soft_wrap=True)

    def _show_state(self, event: NodeState) -> None:
        """As lines: one when the last node has come as far."""
        self._states[event.host] = event
        count = sum(seen.state == event.state for seen in self._states.values())
        if count == len(self._plan.nodes):
            self._print(f"{count} of {count} nodes: {event.state}")

    def _step_text(self, step: StepMetrics) -> str:
        predicted = self._plan.prediction.step_s
        evaluated = f"  validation {step.eval_loss:.4f}" if step.eval_loss is not None else ""
        return (
            f"step {step.step + 1}/{self._plan.job.steps}  loss {step.loss:.4f}{evaluated}  "
            f"{step.tokens_per_s:.0f} tokens/s  {format_seconds(step.step_s)} (predicted {format_seconds(predicted)})  "
            f"waiting for the network {format_seconds(step.exposed_s)}"
        )

    def _screen(self) -> Group:
        parts: list[Table | Text] = [self._nodes_table()]
        if self._step is not None:
            parts.append(Text(self._step_text(self._step), style="bold"))
        parts += [Text(notice, style="yellow") for notice in self._notices]
        return Group(*parts, *self._lines)

    def _nodes_table(self) -> Table:
        """A line a node; of many, those that are least far."""
        table = Table()
        for heading in ("node", "host", "cluster", "state", "bytes sent a step"):
            table.add_column(heading)
        nodes = sorted(self._plan.nodes, key=lambda node: self._states.get(node.host) is not None)
        for node in sorted(nodes[:MOST_NODES], key=lambda node: node.node_rank):
            state = self._states.get(node.host)
            table.add_row(
                str(node.node_rank), node.host, node.cluster, state.state if state else "", self._sent(node.host)
            )
        if len(nodes) > MOST_NODES:
            table.add_row("", f"and {len(nodes) - MOST_NODES} more", "", "", "")
        return table

    def _sent(self, host: str) -> str:
        ports = self._step.interfaces if self._step else ()
        return ", ".join(f"{port.netdev} {format_bytes(port.sent_bytes)}" for port in ports if port.host == host)
