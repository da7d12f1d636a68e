"""A plan of other software than the bundled runtime is a prediction: it says so, and nothing starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published_steps.measurements import measurements
from benchmarks.published_steps.row_files import inventory_of, write_row
from holmes_core.records.record_file import write_signed
from tests.cli.conftest import Command
from tests.seeds import few_of

ROW = next(row for row in measurements() if row.table == "V5" and row.pp == row.dp == 2)


@pytest.mark.parametrize(
    "arguments",
    few_of(
        1,
        [
            "launch plan.json",
            "launch plan.json --dry-run",
            "emit plan.json --to slurm -o files",
        ],
    ),
)
def test_it_is_refused_before_anything_is_touched(arguments: str, command: Command, tmp_path: Path) -> None:
    write_row(ROW, tmp_path)
    probed = inventory_of(ROW).model_copy(update={"sketch": None})
    write_signed(tmp_path / "inventory.json", probed)
    planned = command("plan", "job.yaml")
    assert planned.code == 0, planned.stderr
    assert "These are predictions for sailor" in planned.stdout
    assert "next: holmes launch" not in planned.stdout
    there = sorted(tmp_path.iterdir())
    done = command(*arguments.split())
    assert (done.code, done.stdout) == (2, "")
    assert "only predicts sailor" in done.stderr
    assert "add `command` to `trainer`" in done.stderr
    assert sorted(tmp_path.iterdir()) == there


def test_islands_of_software_that_has_none_are_refused(command: Command, tmp_path: Path) -> None:
    write_row(ROW, tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(job.read_text(encoding="utf-8") + "islands: {}\n", encoding="utf-8")
    done = command("plan", "job.yaml")
    assert done.code == 2
    assert "islands with engine sailor" in done.stderr
