"""Where the time of a rank goes: every moment belongs to one named lap, the innermost that is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

REST = "rest"


class Stopwatch:
    """Times laps on the host, or on a GPU by events in its current stream, which costs no waiting for it.

    On a GPU a wait for a collective is thus the time for which the stream stood still.
    """

    def __init__(self, device: torch.device, now_s: Callable[[], float] = time.perf_counter) -> None:
        """`now_s` is the host's clock, in seconds."""
        self._now_s = now_s
        self._is_gpu = device.type == "cuda"
        self._open = [REST]
        self._marks: list[tuple[float | torch.cuda.Event, str]] = []
        self._mark(REST)

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """What happens inside counts as `name`, except for laps opened inside."""
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
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((event, name))

    def read_s(self) -> dict[str, float]:
        """Seconds by name since the last reading; on a GPU what has not ended yet counts to the next."""
        self._mark(self._open[-1])
        seconds: dict[str, float] = {}
        done = 0
        for (begin, name), (end, _) in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(begin, float) and isinstance(end, float):
                elapsed_s = end - begin
            else:
                assert isinstance(begin, torch.cuda.Event)
                assert isinstance(end, torch.cuda.Event)
                if not end.query():  # type: ignore[no-untyped-call]
                    break
                elapsed_s = begin.elapsed_time(end) / 1e3
            seconds[name] = seconds.get(name, 0.0) + elapsed_s
            done += 1
        del self._marks[:done]
        return seconds
