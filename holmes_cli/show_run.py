"""How a run ended: the first failure first, or loss, speed and traffic against the plan."""

from __future__ import annotations

from rich.table import Table

from holmes_cli.terminal import err, out
from holmes_core.plan import Plan
from holmes_core.run import Failure
from holmes_core.units import format_bytes, format_seconds
from launcher.launch import Ended
from launcher.step_metrics import by_interface


def show_run(plan: Plan, ended: Ended) -> None:
    """Print the outcome."""
    if ended.cause is not None:
        _show_failure(ended.cause, len(ended.run.failures))
    for host in ended.unanswered:
        err.print(f"host {host} did not confirm its end: its node agent ends its ranks by itself when left alone")
    run = ended.run
    if run.state == "stopped":
        err.print(f"stopped after {run.steps_done} of {plan.job.steps} steps; no rank is left running")
    if run.state == "done":
        _show_result(plan, ended)
    out.print(f"run: {ended.folder}", markup=False, soft_wrap=True)


def _show_failure(failure: Failure, count: int) -> None:
    who = f"rank {failure.rank}" if failure.rank is not None else "the node"
    how = f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}"
    err.print(f"[bold red]error:[/] host {failure.host} ({failure.cluster}): {who} failed first: {how}")
    err.print(failure.message.strip().splitlines()[-1] if failure.message.strip() else "", markup=False, soft_wrap=True)
    for line in failure.last_lines:
        err.print(f"  | {line}", markup=False, soft_wrap=True)
    err.print(f"[bold]hint:[/] every rank's log is in the run folder; {count} ranks or nodes failed in all")


def _show_result(plan: Plan, ended: Ended) -> None:
    run, guess = ended.run, plan.prediction
    assert run.first_loss is not None
    assert run.last_loss is not None
    assert run.step_s is not None
    assert run.tokens_per_s is not None
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
