"""The live view of a run: one redrawn screen on a terminal, lines elsewhere; or events as JSON."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import err, out, print_err
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes, format_duration, format_loss, format_memory, format_seconds
from holmes_runtime.config.rank_metrics import NoticeTopic, RankNotice
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent, to_line
from launcher.journal.step_metrics import StepMetrics

MAX_NODES = 16
LAST_LINES = 8
MAX_HELD = 1000  # lines of a rank
HELD_S = 30.0  # steps taken before a rank died may arrive after its traceback; a failed run ends sooner
PACE_STEPS = 50  # their median predicts the time of the remaining steps
BAR_WIDTH = 40
_TRACEBACK = "Traceback (most recent call last):"


def step_in_words(plan: Plan, step: StepMetrics) -> str:
    """Return a line on a step: its losses and its speed against the plan."""
    evaluated = f"  validation {step.eval_loss:.4f}" if step.eval_loss is not None else ""
    return (
        f"step {step.step + 1}/{plan.job.steps}  loss {format_loss(step.loss)}{evaluated}  "
        f"{step.tokens_per_s:.0f} tokens/s  {format_seconds(step.step_s)} "
        f"(predicted {format_seconds(plan.prediction.step_s)})"
    )


class RunView:
    """A context that draws the screen while it is open. `now_s` gives Unix time.

    When a rank dies, its peers die with it, each with a page of traceback. From a rank's traceback on, its lines are
    held back until later steps show that it lives. The verdict explains a failure, and the logs have every line.
    """

    def __init__(
        self,
        plan: Plan,
        as_json: bool = False,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._plan, self._as_json, self._now_s = plan, as_json, now_s
        self._run_id, self._started_at_s = "", now_s()
        self._states: dict[str, NodeState] = {}
        self._step: StepMetrics | None = None
        self._pace_s: deque[float] = deque(maxlen=PACE_STEPS)
        self._lines: deque[Text] = deque(maxlen=LAST_LINES)
        self._held: dict[int, deque[LogLine]] = {}
        self._held_since_s = 0.0
        self._notices: deque[str] = deque(maxlen=LAST_LINES)
        self._of_rank_0: dict[NoticeTopic, str] = {}  # sentences on its data and weights
        drawn = err.is_terminal and not as_json
        self._live = Live(console=err, get_renderable=self.screen, refresh_per_second=4) if drawn else None

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
        """Show an event."""
        if self._as_json:
            out.file.write(to_line(event) + "\n")
            out.file.flush()
        elif isinstance(event, NodeState):
            self._show_state(event)
        elif isinstance(event, StepMetrics):
            self._show_step(event)
        elif isinstance(event, LogLine):
            self._show_line(event)
        elif isinstance(event, Notice):
            self._notices.append(event.text)
            self._print(event.text)
        elif isinstance(event, RankNotice):  # rank 0 has printed it, too
            self._of_rank_0[event.topic] = event.sentence

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Take the id of the run and its start in Unix time."""
        self._run_id, self._started_at_s = run_id, started_at_s
        if not self._as_json:
            self._print(f"run {run_id}: {self._plan.world_size} ranks on {len(self._plan.nodes)} hosts")

    def take_plan(self, plan: Plan) -> None:
        """Take the plan that the run follows from now on."""
        self._plan, self._states, self._held, self._of_rank_0 = plan, {}, {}, {}
        self._pace_s.clear()

    def _print(self, text: str) -> None:
        if self._live is None:
            print_err(text)

    def _show_state(self, event: NodeState) -> None:
        """Record a node's state; print a line once the last node has reached it."""
        self._states[event.host] = event
        count = sum(seen.state == event.state for seen in self._states.values())
        if count == len(self._plan.nodes):
            self._print(f"{count} of {count} nodes: {event.state}")

    def _show_step(self, step: StepMetrics) -> None:
        if self._step is None:
            self._lines.clear()  # the ranks' descriptions of themselves
        if self._now_s() - self._held_since_s > HELD_S:
            for lines in self._held.values():
                for line in lines:
                    self._print_line(line)
            self._held.clear()
        self._step = step
        self._pace_s.append(step.step_s)
        self._print(f"{self._step_text(step)}  {self._to_go()}")

    def _show_line(self, line: LogLine) -> None:
        """Print a line, or hold it back if the rank seems to have failed."""
        if line.rank in self._held or line.line.endswith(_TRACEBACK):
            if not self._held:
                self._held_since_s = self._now_s()
            self._held.setdefault(line.rank, deque(maxlen=MAX_HELD)).append(line)
        else:
            self._print_line(line)

    def _print_line(self, line: LogLine) -> None:
        host = f"{line.cluster}/{line.host}" if line.cluster else line.host
        text = f"{host} rank {line.rank} | {line.line}"
        self._lines.append(Text(text))
        self._print(text)

    def _step_text(self, step: StepMetrics) -> str:
        used = f"  MFU {step.mfu:.1%}" if step.mfu else ""
        held = f"  {format_memory(step.memory_bytes)}" if step.memory_bytes is not None else ""
        waited = f"  waiting for the network {format_seconds(step.exposed_s)}" if step.exposed_s is not None else ""
        return f"{step_in_words(self._plan, step)}{used}{held}{waited}"

    def _to_go(self) -> str:
        """Return the time of the remaining steps, at the pace of the last ones."""
        if self._step is None:
            return f"{self._plan.job.steps} steps to go"
        left = max(0, self._plan.job.steps - self._step.step - 1)
        return f"{format_duration(left * statistics.median(self._pace_s))} to go" if left else "the last step"

    def screen(self) -> Group:
        """Return the current screen."""
        elapsed = format_duration(max(0.0, self._now_s() - self._started_at_s))
        done = self._step.step + 1 if self._step else 0
        filled = BAR_WIDTH * done // self._plan.job.steps
        parts: list[RenderableType] = [
            Text(f"run {self._run_id}  {elapsed} so far, {self._to_go()}", style="bold"),
            Text("█" * filled + "░" * (BAR_WIDTH - filled)),
        ]
        if self._step is not None:
            parts.append(Text(self._step_text(self._step)))
        parts += [Text(sentence) for sentence in self._of_rank_0.values()]
        parts.append(self._nodes_table())
        parts += [Text(notice, style="yellow") for notice in self._notices]
        return Group(*parts, *self._lines)

    def _nodes_table(self) -> Table:
        """Return a row per node; if there are too many, only the nodes furthest behind."""
        nodes = sorted(self._plan.nodes, key=lambda node: self._states.get(node.host) is not None)
        rows = []
        for node in sorted(nodes[:MAX_NODES], key=lambda node: node.node_rank):
            state = self._states.get(node.host)
            sent = self._sent(node.host)
            rows.append((str(node.node_rank), node.host, node.cluster, state.state if state else "", sent))
        if len(nodes) > MAX_NODES:
            rows.append(("", f"and {len(nodes) - MAX_NODES} more", "", "", ""))
        return fitted_table(("node", "host", "cluster", "state", "bytes sent a step"), rows, err.width)

    def _sent(self, host: str) -> str:
        ports = self._step.interfaces if self._step else ()
        sending = (port for port in ports if port.host == host and port.sent_bytes)
        return ", ".join(f"{port.netdev} {format_bytes(port.sent_bytes)}" for port in sending)
