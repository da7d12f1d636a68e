"""A run of islands as read from its folders: the whole, each island, and the losses with their time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NoReturn

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.show_run import islands_in_words, state_in_words
from holmes_cli.screen.terminal import out, print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.islands import ISLAND
from holmes_core.records.run import Run
from holmes_core.units import format_duration, format_loss, format_names
from launcher.journal.follow_folder import past_notices, read_islands_plan, read_plan
from launcher.journal.run_folder import island_folders, read_run
from launcher.journal.run_store import StoredRun
from launcher.journal.step_file import read_steps

HEADINGS = ("island", "clusters", "hosts", "state", "starts", "steps", "loss", "tokens/s")
MAX_HOSTS = 4
LAST_STEPS = 50


def show_islands(run: Run, folder: Path) -> None:
    """Print the run and each of its islands, notices with their time, and processes that could not be ended."""
    for what in run.not_ended:
        print_err(f"not ended: {what}")
    print_out(f"run {run.run_id}: {state_in_words(StoredRun(folder, run))}")
    folders = island_folders(folder)
    rows = [island_row(each, run) for each in folders]
    out.print(fitted_table(HEADINGS, rows, out.width))
    for time_s, text in past_notices(folder):
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
        print_out(f"  {when}  {text}")
    for sentence in islands_sentences(run, folder):
        print_out(sentence)
    print_out(f"run: {folder}")


def islands_sentences(run: Run, folder: Path) -> tuple[str, ...]:
    """Return sentences on skipped steps, lost and cut-off islands, and in the end on tokens against the plan."""
    folders, sentences = island_folders(folder), list[str]()
    for path in folders:
        island = read_run(path)
        if island.steps_skipped:
            steps = StoredRun(path, island).steps_done
            skipped = f"{island.steps_skipped} of {steps} steps were taken by others"
            sentences.append(f"{path.name}: {skipped}, which had gone on without it")
        if island.state == "failed" and island.failures:
            lines = island.failures[0].message.strip().splitlines()
            said = ": ".join(part for part in (lines[-1] if lines else "", island.failures[0].likely) if part)
            sentences.append(f"{path.name} is lost: {said}: logs in {path}")
    if run.missing_islands:
        others = " and ".join(path.name for at, path in enumerate(folders) if at not in run.missing_islands)
        missing = islands_in_words(run.missing_islands)
        sentences.append(f"{missing}: cut off; the common model is that of {others}")
    if run.state != "running":
        sentences.append(_against_plan(run, folder))
    return tuple(sentences)


def _against_plan(run: Run, folder: Path) -> str:
    """Return the tokens and seconds of an ended run, and the planned ones."""
    plan, islands = read_islands_plan(folder), [read_run(each) for each in island_folders(folder)]
    per_step = [each.job.global_batch_size * each.job.model.seq_length for each in plan.islands]
    read = sum((each.steps_done - each.steps_skipped) * tokens for each, tokens in zip(islands, per_step, strict=False))
    planned = sum(each.job.steps * tokens for each, tokens in zip(plan.islands, per_step, strict=True))
    took_s = (run.ended_at_s or run.started_at_s) - run.started_at_s
    return f"{read} of {planned} tokens in {format_duration(took_s)} (planned {format_duration(plan.run_s)})"


def island_row(folder: Path, whole: Run) -> tuple[str, ...]:
    """Return the line of an island's folder under HEADINGS."""
    plan, run = read_plan(folder), read_run(folder)
    is_missing = int(folder.name.removeprefix(ISLAND)) in whole.missing_islands
    stored, steps = StoredRun(folder, run), read_steps(folder, LAST_STEPS)
    last = steps[-1] if steps else None
    return (
        folder.name,
        ", ".join(dict.fromkeys(node.cluster for node in plan.nodes)),
        format_names([node.host for node in plan.nodes], MAX_HOSTS),
        (run.state if stored.watched != "unwatched" else "unwatched") + (", cut off" if is_missing else ""),
        str(run.attempt + 1),
        f"{stored.steps_done}/{plan.job.steps}",
        format_loss(last.loss) if last else "",
        f"{last.tokens_per_s:.0f}" if last else "",
    )


def end_as_json(run: Run, folder: Path) -> None:
    """Print the last line of events: the record of the whole, and of each island."""
    islands = [read_run(each).model_dump(mode="json") for each in island_folders(folder)]
    line = {"event": "end", "time_s": time.time(), "run": run.model_dump(mode="json"), "folder": str(folder)}
    out.file.write(json.dumps({**line, "islands": islands}) + "\n")


def state_as_json(stored: StoredRun) -> str:
    """Return the state of a run of islands, as `holmes status --json` prints it."""
    islands = [
        {
            "run": read_run(each).model_dump(mode="json"),
            "steps_done": StoredRun(each, read_run(each)).steps_done,
            "folder": str(each),
        }
        for each in island_folders(stored.folder)
    ]
    notices = [{"time_s": time_s, "text": text} for time_s, text in past_notices(stored.folder)]
    record = {"run": stored.run.model_dump(mode="json"), "watched": stored.watched}
    return json.dumps({**record, "islands": islands, "notices": notices})


def refuse_whole(stored: StoredRun, what: str, command: str) -> NoReturn:
    """Raise HolmesError for an option that applies to each island and not to the whole."""
    first = stored.islands[0].folder
    raise HolmesError(
        f"{what}: run {stored.run.run_id} is of {len(stored.islands)} islands",
        f"name one of them, as in `holmes {command} {first}`",
    )
