"""A run's steps as TensorBoard's event file: the checksum of its definition, and read by TensorBoard itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from launcher.journal.step_file import WrittenStep
from launcher.journal.tensorboard import crc32c, event_records, write_event_file
from tests.cli.screens import bed_plan, step

PLAN = bed_plan()


def test_checksum_is_that_of_its_definition() -> None:
    # Source: RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def test_a_record_is_the_bytes_worked_by_hand() -> None:
    version, first = event_records([WrittenStep(1.5, replace(step(299, PLAN), loss=2.0))])
    assert version[:8] == (24).to_bytes(8, "little")
    assert version[12:-4] == b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    assert first[12:24] == b"\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xac\x02"  # 1.5 s; step 300 is 0b10_0101100
    assert b"\x0a\x14\x0a\x0dloss/training\x15\x00\x00\x00\x40" in first
    assert len(first) == 16 + int.from_bytes(first[:8], "little")


def test_tensorboard_reads_every_scalar_at_its_step_and_time(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    losses = {number: 5.0 - number / 100 for number in range(300)}
    steps = [
        WrittenStep(1.7e9 + number, replace(step(number, PLAN), loss=loss, eval_loss=loss if number == 7 else None))
        for number, loss in losses.items()
    ]
    write_event_file(tmp_path / "r", "r", steps)
    path = write_event_file(tmp_path / "r", "r", steps)  # again, in its place
    assert [each.name for each in (tmp_path / "r").iterdir()] == [path.name]
    read = reader.EventAccumulator(str(tmp_path / "r"), size_guidance={"scalars": 0}).Reload()
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
