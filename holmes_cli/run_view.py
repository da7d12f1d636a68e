"""What a launch shows while it runs: log lines with their origin, and a progress bar of steps.

Where standard error is no terminal there is no bar; each step is a line instead.
"""

from __future__ import annotations

from types import TracebackType

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from holmes_cli.terminal import err
from holmes_core.plan import Plan
from launcher.step_metrics import StepMetrics


class RunView:
    """A context: the bar is drawn inside it."""

    def __init__(self, plan: Plan) -> None:
        self._steps = plan.job.steps
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal, transient=True)
        self._task = self._bar.add_task("starting", total=self._steps)

    def __enter__(self) -> RunView:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, host: str, state: str) -> None:
        """A node came one stage further on its way to ready."""
        self._bar.update(self._task, description=escape(f"{host}: {state}"))

    def log(self, cluster: str, host: str, rank: int, line: str) -> None:
        """A line a rank printed."""
        err.print(f"{cluster}/{host} rank {rank} | {line}", markup=False, soft_wrap=True)

    def step(self, step: StepMetrics) -> None:
        """A finished step."""
        text = f"step {step.step + 1}/{self._steps}  loss {step.loss:.4f}  {step.tokens_per_s:.0f} tokens/s"
        self._bar.update(self._task, completed=step.step + 1, description=text)
        if not err.is_terminal:
            err.print(text, markup=False, soft_wrap=True)
