"""The time of a rank by named laps. Every moment belongs to the innermost open lap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import torch
from torch.profiler import record_function

REST = "rest"
Mark = tuple[float | torch.cuda.Event, str]
"""The start of a lap, by the host's clock or an event in a GPU's stream, and its name."""


def timed_event() -> torch.cuda.Event:
    """Return an event of the current GPU that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextmanager
def named_range(name: str) -> Iterator[None]:
    """Name the block in the traces of torch's profiler and of NVIDIA's (NVTX).

    Without a trace it costs a few microseconds.
    """
    has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with record_function(name), torch.cuda.nvtx.range(name) if has_gpu else nullcontext():
        yield


class Stopwatch:
    """Times laps on the host, or on a GPU through events in its current stream, without waiting for it.

    On a GPU, the wait for a collective is therefore the time that the stream stood still. A reading there covers the
    time before the previous reading: by then its events have passed, and `add_up` reads them while the GPU has work.
    """

    def __init__(
        self,
        device: torch.device,
        now_s: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], torch.cuda.Event] = timed_event,
    ) -> None:
        """`now_s` is the host's clock, in seconds. `new_event` makes an event that is not yet recorded."""
        self._now_s, self._new_event = now_s, new_event
        self._is_gpu = device.type == "cuda"
        self._open = [REST]
        self._marks: list[Mark] = []
        self._before: list[Mark] = []  # on a GPU, up to the last reading
        self._seconds: dict[str, float] = {}  # of `_before`, once they are added up
        self._mark(REST)

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Count the block as `name`, except for laps opened inside it."""
        self._open.append(name)
        self._mark(name)
        try:
            yield
        finally:
            self._open.pop()
            self._mark(self._open[-1])

    def _mark(self, name: str) -> None:
        if not self._is_gpu:
            self._marks.append((self._now_s(), name))
            return
        event = self._new_event()
        event.record()
        self._marks.append((event, name))

    def read_s(self) -> dict[str, float]:
        """Return seconds by name since the last reading; on a GPU, between the two readings before, empty at first."""
        ended = self._take_marks()
        if not self._is_gpu:
            return _seconds_by_name(ended)
        self.add_up()
        seconds, self._seconds, self._before = self._seconds, {}, ended
        return seconds

    def skip(self) -> None:
        """Discard the time since the last reading."""
        self._take_marks()

    def add_up(self) -> None:
        """On a GPU, add up the seconds before the last reading. Call this where the host waits for the GPU anyway."""
        if self._before:
            last, _ = self._before[-1]
            assert not isinstance(last, float)
            last.synchronize()
            self._seconds, self._before = _seconds_by_name(self._before), []

    def _take_marks(self) -> list[Mark]:
        """Return all marks so far. The last one becomes the first of the next marks."""
        self._mark(self._open[-1])
        taken, self._marks = self._marks, self._marks[-1:]
        return taken


def _seconds_by_name(marks: Sequence[Mark]) -> dict[str, float]:
    """Return seconds by name from marks whose events have all passed."""
    seconds: dict[str, float] = {}
    for (begin, name), (end, _) in pairwise(marks):
        seconds[name] = seconds.get(name, 0.0) + _between_s(begin, end)
    return seconds


def _between_s(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)  # noqa: PT018
        return end - begin
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3
