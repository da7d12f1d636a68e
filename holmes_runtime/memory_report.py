"""Report on a GPU whose memory is full: the bytes allocated at each place in the code, in the error and in a file."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from holmes_runtime.config.rank_metrics import rank_file
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.node.data_files.whole_file import whole_file

MAX_NAMED = 5
MAX_WRITTEN = 200
NOT_RECORDED = "a place that was not recorded, such as in a backward"
LIBRARY = "/site-packages/"
MIB, GIB = 2**20, 2**30


class Holder(NamedTuple):
    """Tensors of one size that were allocated at one place in the code and are still held."""

    place: str
    tensor_bytes: int
    tensors: int

    @property
    def whole_bytes(self) -> int:
        """Bytes of all these tensors."""
        return self.tensor_bytes * self.tensors


class MemoryReport(NamedTuple):
    """The contents of a full GPU. `held_bytes` are in tensors. `reserved_bytes` include memory free for more tensors.

    `asked` describes the allocation that failed. `holders` are in descending order of bytes.
    """

    rank: int
    asked: str
    held_bytes: int
    reserved_bytes: int
    holders: tuple[Holder, ...]


def record_places(device: torch.device, on: bool) -> None:
    """Start or stop recording the places at which a GPU's memory is allocated. It takes about 2 us per allocation."""
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history("state" if on else None, context="state", stacks="python")


@contextmanager
def named_when_full(
    rank: int, folder: Path, snapshot: Callable[[], Mapping[str, Any]] = torch.cuda.memory._snapshot
) -> Iterator[None]:
    """Replace an out-of-memory error by one that names the largest holders, and write the whole report to `folder`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        report = report_of(snapshot(), rank, _asked(error))
        with whole_file(folder / rank_file("memory", rank)) as file:
            file.write(to_json(report).encode())
        raise torch.OutOfMemoryError(in_words(report)) from None


def report_of(snapshot: Mapping[str, Any], rank: int, asked: str) -> MemoryReport:
    """Return the report from a snapshot of torch's allocator. `asked` describes the allocation that failed."""
    segments = snapshot["segments"]
    held = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    counted = Counter((_place(block.get("frames", ())), block["size"]) for block in held)
    holders = [Holder(place, size, count) for (place, size), count in counted.items()]
    holders.sort(key=lambda holder: -holder.whole_bytes)
    return MemoryReport(
        rank=rank,
        asked=asked,
        held_bytes=sum(block["size"] for block in held),
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        holders=tuple(holders[:MAX_WRITTEN]),
    )


def in_words(report: MemoryReport) -> str:
    """Return the report as one line, for the failure of the run."""
    named = "; ".join(
        f"{each.tensors} x {each.tensor_bytes / MIB:.1f} MiB = {each.whole_bytes / GIB:.2f} GiB from {each.place}"
        for each in report.holders[:MAX_NAMED]
    )
    return (
        f"CUDA out of memory on rank {report.rank}, {report.asked}: tensors hold {report.held_bytes / GIB:.2f} GiB, "
        f"torch has {report.reserved_bytes / GIB:.2f} GiB; most of it is {named}; the rest is in "
        f"{rank_file('memory', report.rank)} in the run's folder"
    )


def _asked(error: torch.OutOfMemoryError) -> str:
    """Return the size and the place of the allocation that failed."""
    what = str(error).partition("Tried to allocate ")[2].partition(". ")[0] or "memory"
    frames = [
        {"filename": frame.filename, "line": frame.lineno, "name": frame.name}
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]
    return f"asked for {what} at {_place(frames)}"


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost of `frames` outside libraries, or else the innermost. `frames` begin with the innermost."""
    if not frames:
        return NOT_RECORDED
    own = next((frame for frame in frames if LIBRARY not in frame["filename"]), frames[0])
    return f"{Path(own['filename']).name}:{own['line']} {own['name']}"
