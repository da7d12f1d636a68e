"""What an error for want of GPU memory says fills it, by a snapshot as torch's allocator gives it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holmes_runtime.config.rank_metrics import rank_file
from holmes_runtime.config.strict_json import parse, to_json
from holmes_runtime.memory_report import MemoryReport, in_words, named_when_full, record_places, report_of

MIB = 2**20


def frame(filename: str, line: int, name: str) -> dict[str, object]:
    return {"filename": filename, "line": line, "name": name}


LINEAR = frame("/env/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward")
MLP = frame("/parcels/1/holmes_runtime/model/decoder.py", 93, "forward")
SHARD = frame("/parcels/1/holmes_runtime/parallel/gradient_buckets.py", 80, "make_buckets")
SNAPSHOT = {
    "segments": [
        {
            "total_size": 100 * MIB,
            "blocks": [
                {"size": 20 * MIB, "state": "active_allocated", "frames": [LINEAR, MLP]},
                {"size": 20 * MIB, "state": "active_allocated", "frames": [LINEAR, MLP]},
                {"size": 30 * MIB, "state": "active_allocated", "frames": [SHARD]},
                {"size": 25 * MIB, "state": "inactive", "frames": [MLP]},
                {"size": 5 * MIB, "state": "active_allocated"},
            ],
        },
        {"total_size": 2 * MIB, "blocks": [{"size": 2 * MIB, "state": "active_awaiting_free", "frames": [MLP]}]},
    ]
}


def test_tensors_are_counted_by_the_line_of_ours_that_made_them_most_bytes_first() -> None:
    report = report_of(SNAPSHOT, 3, "asked for 2.00 GiB")

    assert (report.held_bytes, report.reserved_bytes) == (75 * MIB, 102 * MIB)
    assert [(holder.place, holder.tensors, holder.whole_bytes) for holder in report.holders] == [
        ("decoder.py:93 forward", 2, 40 * MIB),
        ("gradient_buckets.py:80 make_buckets", 1, 30 * MIB),
        ("a place that was not recorded, such as in a backward", 1, 5 * MIB),
    ]
    assert parse(MemoryReport, to_json(report)) == report


def test_the_error_names_rank_request_and_what_fills_the_gpu_on_one_line() -> None:
    text = in_words(report_of(SNAPSHOT, 3, "asked for 2.00 GiB at decoder.py:93 forward"))

    assert text.startswith(
        "CUDA out of memory on rank 3, asked for 2.00 GiB at decoder.py:93 forward: tensors hold 0.07"
    )
    assert "2 x 20.0 MiB = 0.04 GiB from decoder.py:93 forward; 1 x 30.0 MiB" in text
    assert text.endswith("the rest is in memory-rank3.json in the run's folder")
    assert "\n" not in text


def test_a_full_gpu_is_named_in_the_error_and_leaves_its_report(tmp_path: Path) -> None:
    def fill() -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"
        )

    asked = r"rank 3, asked for 2\.00 GiB at test_memory_report\.py:\d+ fill"
    with pytest.raises(torch.OutOfMemoryError, match=asked), named_when_full(3, tmp_path, lambda: SNAPSHOT):
        fill()

    (path,) = tmp_path.iterdir()
    assert path.name == rank_file("memory", 3)
    assert parse(MemoryReport, path.read_text()).held_bytes == 75 * MIB


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^other$"), named_when_full(3, tmp_path, lambda: SNAPSHOT):
        raise ValueError("other")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_recorded_of_cpus() -> None:
    record_places(torch.device("cpu"), on=True)
