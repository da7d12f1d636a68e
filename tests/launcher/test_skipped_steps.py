"""Steps that an island does not take, as the others went on while it was away, are counted and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holmes_core.records.run import Settings
from holmes_runtime.config.rank_metrics import AppliedOuterSync, RankNotice
from launcher.journal.run_events import Notice, RunEvent, Silent
from launcher.journal.run_folder import RunFolder
from launcher.journal.run_record import RunRecord
from tests.cli.test_status_page import step
from tests.launcher.plans import cpu_plan

JOINED = AppliedOuterSync(1, True, (0, 2), 1, 0, 0, 0.0, 0.0, "00")
TOGETHER = JOINED._replace(has_joined=False)


class Shown(Silent):
    """A view that keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def show(self, event: RunEvent) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


@pytest.mark.parametrize(
    ("exchange", "is_island", "skipped", "notices"),
    [
        (JOINED, True, 30, ["steps 11 to 40 were taken by other islands, 30 in all"]),
        (TOGETHER, True, 30, []),
        (JOINED, False, 0, []),
    ],
)
def test_steps_taken_by_others_are_said_where_an_island_comes_back(
    tmp_path: Path, exchange: AppliedOuterSync, is_island: bool, skipped: int, notices: list[str]
) -> None:
    folder, view = RunFolder(tmp_path / "island-1"), Shown()
    record = RunRecord(folder, view, Settings(), is_island=is_island)
    record.take(RankNotice(0, "start", "it begins", 9))
    record.take(replace(step(9), loss=3.0))
    record.take(exchange)
    record.take(replace(step(40), loss=2.0))
    run = record.write(cpu_plan(), 0, "running")
    folder.close()

    assert run.steps_skipped == skipped
    assert view.notices == notices


def test_an_island_of_a_trainer_s_own_begins_where_its_checkpoint_is_and_none_has_taken_those_steps(
    tmp_path: Path,
) -> None:
    folder, view = RunFolder(tmp_path / "island-1"), Shown()
    record = RunRecord(folder, view, Settings(), is_island=True, is_bundled=False)
    record.take(TOGETHER)
    for number in (100, 101, 110):  # the last after it had become slow
        record.take(replace(step(number), loss=2.0))
    run = record.write(cpu_plan(), 0, "running")
    folder.close()
    assert (run.steps_skipped, run.steps_done, view.notices) == (8, 11, [])


@pytest.mark.parametrize(("safe_steps", "skipped"), [(None, 40), (10, 30)])
def test_steps_that_others_took_before_an_island_took_any_are_counted_from_where_it_began(
    tmp_path: Path, safe_steps: int | None, skipped: int
) -> None:
    folder, view = RunFolder(tmp_path / "island-1"), Shown()
    record = RunRecord(folder, view, Settings(), is_island=True)
    record.take(RankNotice(0, "start", "it begins", safe_steps))
    record.take(replace(step(40), loss=2.0))
    run = record.write(cpu_plan(), 1, "running")
    folder.close()

    assert (run.steps_skipped, run.steps_done) == (skipped, skipped + 1)
    assert view.notices == [f"steps {41 - skipped} to 40 were taken by other islands, {skipped} in all"]
