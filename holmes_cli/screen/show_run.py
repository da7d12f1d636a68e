"""How a run ended: the first failure first, or loss, speed and traffic against the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from holmes_cli.screen.terminal import err, out
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, Run
from holmes_core.units import format_bytes, format_seconds
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics, by_interface, median_step_s
from launcher.supervise.failure import first_cause


def show_run(plan: Plan, run: Run, folder: Path, stuck: Sequence[str] = ()) -> None:
    """Print how a run ended, and what could not be ended."""
    for what in stuck:
        err.print(f"not ended: {what}", markup=False, soft_wrap=True)
    if run.state == "failed":
        _show_failure(first_cause(run.failures), len(run.failures))
    if run.state == "stopped":
        err.print(f"stopped after {run.steps_done} of {plan.job.steps} steps; no rank is left running")
    if run.state == "done":
        _show_result(plan, run)
    out.print(f"run: {folder}", markup=False, soft_wrap=True)


def show_speed(plan: Plan, steps: Sequence[StepMetrics]) -> None:
    """Print the last step of a run under way, and its speed so far."""
    if not steps:
        out.print("no step is done yet")
        return
    seconds, guess = median_step_s(steps), plan.prediction
    tokens_per_s = plan.job.global_batch_size * plan.job.model.seq_length / seconds
    out.print(f"step {steps[-1].step + 1} of {plan.job.steps}, loss {steps[-1].loss:.4f}")
    out.print(
        f"step {format_seconds(seconds)} (predicted {format_seconds(guess.step_s)}), "
        f"{tokens_per_s:.0f} tokens/s (predicted {guess.tokens_per_s:.0f})"
    )


def _show_failure(failure: Failure, count: int) -> None:
    who = f"rank {failure.rank}" if failure.rank is not None else "the node"
    how = f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}"
    err.print(f"[bold red]error:[/] host {failure.host} ({failure.cluster}): {who} failed first: {how}")
    err.print(failure.message.strip().splitlines()[-1] if failure.message.strip() else "", markup=False, soft_wrap=True)
    for line in failure.last_lines:
        err.print(f"  | {line}", markup=False, soft_wrap=True)
    if failure.likely:
        err.print(f"likely: {failure.likely}", markup=False, soft_wrap=True)
    err.print(f"[bold]hint:[/] every rank's log is in the run folder; {count} ranks or nodes failed in all")


def _show_result(plan: Plan, run: Run) -> None:
    guess = plan.prediction
    if run.first_loss is None or run.last_loss is None or run.step_s is None or run.tokens_per_s is None:
        out.print("all ranks ended without an error before the first step")
        return
    out.print(f"loss {run.first_loss:.4f} -> {run.last_loss:.4f} in {run.steps_done} steps")
    out.print(
        f"step {format_seconds(run.step_s)} (predicted {format_seconds(guess.step_s)}), "
        f"{run.tokens_per_s:.0f} tokens/s (predicted {guess.tokens_per_s:.0f})"
    )
    if any(node.access.transport == "local" for node in plan.nodes):
        out.print("traffic: local hosts share one loopback, whose bytes cannot be told apart by host")
        return
    table = Table(title="Traffic a step: sent, measured against planned", title_justify="left")
    for heading in ("host", "interface", "network", "measured", "planned"):
        table.add_column(heading)
    for seen, expected in zip(run.traffic, by_interface(guess.traffic), strict=True):
        measured, planned = format_bytes(seen.sent_bytes), format_bytes(expected.sent_bytes)
        table.add_row(seen.host, seen.netdev, seen.network, measured, planned)
    out.print(table)


def state_in_words(stored: StoredRun) -> str:
    """The state, and for a run under way whether anybody watches it."""
    if stored.watched != "unwatched":
        return stored.run.state + (" (detached)" if stored.run.settings.detached else "")
    if stored.run.settings.detached:
        return "running, unwatched: `holmes attach` watches it again"
    return "its controller was killed; its ranks have ended by themselves"
