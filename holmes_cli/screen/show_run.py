"""The end of a run: the first failure first, or loss, speed and traffic against the plan."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import err, out, print_err, print_out
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, Run, SentCode
from holmes_core.units import format_bytes, format_duration, format_loss, format_seconds
from launcher.journal.run_folder import LOGS, PROFILE_FILE
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics, by_interface, median_s, rdma_interfaces
from launcher.supervise.failure import first_cause

_STEPLESS = {
    True: "before the first step",
    False: "but printed no line recognized as a step: describe one with `trainer: {step_pattern: ...}` in job.yaml",
}
MAX_SILENT_S = 600.0  # of a run whose controller is on another machine, and may be gone with it
SHOWN_COMMIT = 12  # characters that tell one from another


def show_run(plan: Plan, run: Run, folder: Path) -> None:
    """Print how a run ended, and the processes that could not be ended."""
    for what in run.not_ended:
        print_err(f"not ended: {what}")
    if run.state == "failed":
        _show_failure(first_cause(run.failures), len(run.failures), folder)
        err.print(f"failed after {run.steps_done} of {plan.job.steps} steps")
    if run.state == "stopped":
        # A run that resumed counts its own steps alone.
        done = "steps of this run" if run.settings.resume else f"of {plan.job.steps} steps"
        err.print(f"stopped after {run.steps_done} {done}; no rank is left running")
    if run.state == "done":
        _show_result(plan, run)
    for sentence in run_sentences(plan, run):
        print_out(sentence)
    if (folder / PROFILE_FILE).exists():
        print_out(f"profile: {folder / PROFILE_FILE}, predicted above measured; open it in https://ui.perfetto.dev")
    print_out(f"run: {folder}")


def show_end(plan: Plan, run: Run, folder: Path, as_json: bool) -> None:
    """Print how a watched run ended: in words, or as the last line of its events."""
    if not as_json:
        show_run(plan, run, folder)
        return
    record = run.model_dump(mode="json")
    line = {"event": "end", "time_s": time.time(), "run": record, "folder": str(folder)}
    out.file.write(json.dumps({**line, "not_ended": record["not_ended"]}) + "\n")


def show_speed(plan: Plan, steps: Sequence[StepMetrics]) -> None:
    """Print the last step of a run under way, and its speed so far."""
    if not steps:
        out.print("no step is done yet")
        return
    seconds, guess = median_s([step.step_s for step in steps]), plan.prediction
    tokens_per_s = plan.job.global_batch_size * plan.job.model.seq_length / seconds
    evaluated = next((step for step in reversed(steps) if step.eval_loss is not None), None)
    validation = f", validation loss {evaluated.eval_loss:.4f} after step {evaluated.step + 1}" if evaluated else ""
    out.print(f"step {steps[-1].step + 1} of {plan.job.steps}, loss {format_loss(steps[-1].loss)}{validation}")
    out.print(
        f"step {format_seconds(seconds)} (predicted {format_seconds(guess.step_s)}), "
        f"{tokens_per_s:.0f} tokens/s (predicted {guess.tokens_per_s:.0f})"
    )


def _show_failure(failure: Failure, count: int, folder: Path) -> None:
    who = f"rank {failure.rank}" if failure.rank is not None else "the node"
    how = f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}"
    if failure.host is None:
        err.print("[bold red]error:[/] the run was ended, and no rank is known to be at fault")
    else:
        err.print(f"[bold red]error:[/] host {failure.host} ({failure.cluster}): {who} failed first: {how}")
    print_err(failure.message.strip().splitlines()[-1] if failure.message.strip() else "")
    for line in failure.last_lines:
        print_err(f"  | {line}")
    if failure.likely:
        print_err(f"likely: {failure.likely}")
    err.print("[bold]hint:[/] ", end="")
    logs = folder / LOGS / (f"{failure.host}-rank{failure.rank}.log" if failure.rank is not None else "")
    more = "1 more rank or node" if count == 2 else f"{count - 1} more ranks or nodes"
    others = f"; {more} failed with it" if count > 1 else ""
    print_err(f"the whole output is in {logs}{others}")


def _show_result(plan: Plan, run: Run) -> None:
    guess = plan.prediction
    if run.step_s is None or run.tokens_per_s is None:
        out.print(f"all ranks ended without an error {_STEPLESS[plan.job.is_bundled]}")
        return
    took = f" and {format_duration(run.ended_at_s - run.started_at_s)}" if run.ended_at_s is not None else ""
    out.print(f"loss {format_loss(run.first_loss)} -> {format_loss(run.last_loss)} in {run.steps_done} steps{took}")
    out.print(
        f"step {format_seconds(run.step_s)} (predicted {format_seconds(guess.step_s)}), "
        f"{run.tokens_per_s:.0f} tokens/s (predicted {guess.tokens_per_s:.0f})"
    )
    if any(node.access.transport == "local" for node in plan.nodes):
        out.print("traffic: local hosts share one loopback, whose bytes cannot be told apart by host")
        return
    by_rdma = rdma_interfaces(plan)
    rows = []
    planned_bytes = {(each.host, each.netdev): each.sent_bytes for each in by_interface(guess.traffic)}
    for seen in run.traffic:
        rdma = _known_bytes(seen.rdma_sent_bytes) if (seen.host, seen.netdev) in by_rdma else "-"
        measured, planned = map(_known_bytes, (seen.sent_bytes, planned_bytes.get((seen.host, seen.netdev))))
        rows.append((seen.host, seen.netdev, seen.network, measured, *((rdma,) if by_rdma else ()), planned))
    headings = ("host", "interface", "network", "measured", *(("by RDMA",) if by_rdma else ()), "planned")
    title = "Traffic a step: sent by all programs of a host, measured against planned"
    out.print(fitted_table(headings, rows, out.width, title))


def run_sentences(plan: Plan, run: Run) -> Iterator[str]:
    """Yield the networks of a trainer's process groups, the reason of an early stop, and the newest checkpoint."""
    words = []
    for each in run.groups:
        where = "inside hosts" if each.network is None else f"on {each.network}"
        words.append(f"{each.count} {where}{f' ({each.net_name})' if each.net_name else ''}")
    if words:
        yield f"process groups: {', '.join(words)}"
    if run.early_stop is not None:
        yield run.early_stop
    yield safe_in_words(plan, run)


def code_in_words(code: SentCode) -> str:
    """Return the folder, size and commit of the sent code, and if it had changes."""
    size = f"{code.files} {'file' if code.files == 1 else 'files'}, {format_bytes(code.size_bytes)}"
    if code.revision is None:
        return f"code: {code.folder}, {size}, not in git"
    differs = {True: ", and changes since", False: "", None: ", and whether it was changed is not known"}[code.changed]
    return f"code: {code.folder}, {size}, commit {code.revision[:SHOWN_COMMIT]}{differs}"


def safe_in_words(plan: Plan, run: Run) -> str:
    """Return the newest checkpoint, the way to resume from it, the best, and the step up to which hosts agree."""
    if run.compared_steps is None:
        return _saved_in_words(plan, run)
    equal = f"digests of the data between hosts were equal at both ends up to step {run.compared_steps}"
    return f"{_saved_in_words(plan, run)}; {equal}"


def _saved_in_words(plan: Plan, run: Run) -> str:
    if not plan.job.is_bundled:
        return "checkpoint: the trainer's own, if it saves any"
    if plan.job.checkpoint is None:
        return "checkpoint: none; the job has no `checkpoint:`"
    path = plan.job.checkpoint.path
    if run.safe_steps is None:
        return f"checkpoint: none is whole yet in {path}"
    onward = "" if run.state in ("done", "running") else "; `holmes launch --resume` continues from it"
    # The reason of an early stop names it, too.
    best = f"; {run.best_checkpoint}" if run.best_checkpoint is not None and run.early_stop is None else ""
    return f"checkpoint: the one after step {run.safe_steps} is whole in {path}{onward}{best}"


def _known_bytes(size_bytes: int | None) -> str:
    return "not known" if size_bytes is None else format_bytes(size_bytes)


def islands_in_words(numbers: Sequence[int]) -> str:
    """Return `island 1` or `islands 1 and 2`."""
    return f"island{'s' if len(numbers) > 1 else ''} {' and '.join(map(str, numbers))}"


def state_in_words(stored: StoredRun) -> str:
    """Return the state, and for a run under way if a controller watches it."""
    if stored.watched == "elsewhere" and stored.run.controller is not None:
        silent_s = stored.silent_s
        silent = f"; nothing written for {format_duration(silent_s)}" if silent_s > MAX_SILENT_S else ""
        return f"running, watched on {stored.run.controller.host}{silent}"
    if stored.watched != "unwatched":
        without = f", without {islands_in_words(stored.run.missing_islands)}" if stored.run.missing_islands else ""
        return stored.run.state + without + (" (detached)" if stored.run.settings.detached else "")
    if stored.goes_on:
        return "running, unwatched: `holmes attach` watches it again"
    return "its controller was killed; its ranks have ended by themselves"
