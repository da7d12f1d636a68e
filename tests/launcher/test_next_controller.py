"""A controller that takes over a run keeps in the record what rank 0 said to the one before it."""

from __future__ import annotations

from pathlib import Path

from holmes_cli.screen.show_run import run_sentences, safe_in_words
from holmes_core.records.run import Settings
from holmes_runtime.config.rank_metrics import RankNotice
from launcher.journal.run_events import Silent
from launcher.journal.run_folder import RunFolder
from launcher.journal.run_record import RunRecord
from tests.cli.test_status_page import step
from tests.launcher.plans import cpu_plan


def test_the_record_keeps_bad_lines_origin_checkpoints_early_stop_and_that_hosts_compare(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    first = RunRecord(folder, Silent(), Settings())
    first.take(RankNotice(0, "data", "3 bad lines", None, bad_lines_skipped=3))
    first.take(RankNotice(0, "start", "it begins", 20))
    first.take(RankNotice(0, "best", "the best checkpoint is the first", 10))
    first.take(RankNotice(0, "early stop", "it stopped early", None))
    first.take(RankNotice(0, "compared", "both ends compare", None))
    first.take(step(4))
    written = first.write(cpu_plan(), 0, "running")

    following = RunRecord(folder, Silent(), Settings())
    following.remember(written)
    run = following.write(cpu_plan(), 0, "running")
    folder.close()

    assert (run.bad_lines_skipped, run.origin, run.safe_steps) == (3, "it begins", 20)
    assert (run.best_steps, run.early_stop) == (10, "it stopped early")
    assert run.compared_steps == 5
    saving = cpu_plan(checkpoint={"path": "/shared/saved", "every_steps": 10})
    goes_on = run.model_copy(update={"early_stop": None})
    assert [each.partition(";")[0] for each in run_sentences(saving, run)] == [
        "it stopped early",
        "checkpoint: the one after step 20 is whole in /shared/saved",
    ]
    assert "; the best checkpoint is the first; " in safe_in_words(saving, goes_on)
    assert "equal at both ends up to step 5" in safe_in_words(cpu_plan(), run)
