"""A run's steps as TensorBoard's event file, read by TensorBoard itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from holmes_core.errors import HolmesError
from launcher.journal.step_file import WrittenStep
from launcher.journal.tensorboard import write_event_file
from tests.cli.screens import bed_plan, step

PLAN = bed_plan()


def test_tensorboard_reads_every_scalar_at_its_step_and_time(tmp_path: Path) -> None:
    losses = {number: 5.0 - number / 100 for number in range(300)}
    steps = [
        WrittenStep(1.7e9 + number, replace(step(number, PLAN), loss=loss, eval_loss=loss if number == 7 else None))
        for number, loss in losses.items()
    ]
    write_event_file(tmp_path / "r", "r", steps)
    path = write_event_file(tmp_path / "r", "r", steps)  # again, in its place
    assert [each.name for each in (tmp_path / "r").iterdir()] == [path.name]
    read = EventAccumulator(str(tmp_path / "r"), size_guidance={"scalars": 0}).Reload()
    seen = read.Scalars("loss/training")
    assert [(each.step, each.wall_time) for each in seen] == [(number + 1, 1.7e9 + number) for number in losses]
    assert [each.value for each in seen] == pytest.approx(list(losses.values()))
    assert [each.step for each in read.Scalars("loss/validation")] == [8]
    assert read.Scalars("speed/MFU")[0].value == pytest.approx(0.4321)
    assert read.Scalars("memory/GiB of the fullest rank")[0].value == 42.0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HolmesError, match=r"tfevents\.r\.holmes: cannot be written: Not a directory"):
        write_event_file(tmp_path / "file" / "r", "r", [])
