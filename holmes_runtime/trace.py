"""Recording of a few steps of one rank by torch's profiler, written for the agent as spans on tracks."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from holmes_runtime.config.rank_metrics import MAX_SPANS, RankTrace, rank_file
from holmes_runtime.config.run_settings import ProfileSettings
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.node.data_files.whole_file import whole_file

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_RANGES = "gpu_user_annotation"  # from the first to the last kernel of a named range
HOST_RANGES = "user_annotation"
HOST_WORK = "cpu_op"
NEVER = sys.maxsize


class StepProfiler:
    """A recorder of the steps that `settings` name, counted from `first_step`. It writes a file in `folder`."""

    def __init__(
        self, settings: ProfileSettings | None, first_step: int, rank: int, folder: Path, device: torch.device
    ) -> None:
        self._rank, self._folder, self._device = rank, folder, device
        self._begin = first_step + settings.after if settings else NEVER
        self._steps = settings.steps if settings else 0
        self._end = NEVER
        self._profile: profile | None = None

    def changes_at(self, step: int) -> bool:
        """Return True if recording begins or ends before `step`. Both take time."""
        return step >= min(self._begin, self._end)

    def reach(self, step: int) -> None:
        """Begin or end the recording if that is due before `step`."""
        if step >= self._begin:
            self._begin, self._end = NEVER, step + self._steps
            gpu = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._profile.start()
        elif step >= self._end:
            self.finish()

    def finish(self) -> None:
        """End the recording, if there is one, and write it."""
        if self._profile is None:
            return
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(whole))
            trace = read_chrome_trace(json.loads(whole.read_text(encoding="utf-8")), self._rank)
        self._profile, self._end = None, NEVER
        with whole_file(self._folder / rank_file("trace", self._rank)) as file:
            file.write(gzip.compress(to_json(trace).encode(), 6))


def read_chrome_trace(trace: Mapping[str, Any], rank: int) -> RankTrace:
    """Return the first `MAX_SPANS` spans of torch's trace: ranges and GPU work, or operators if there is no GPU work.

    Two spans on a track are nested or do not overlap. torch rounds to microseconds, so a span may end after the span
    around it. Such a span is cut short.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    has_gpu = any(event.get("cat") in GPU_WORK for event in events)
    kept = {HOST_RANGES, GPU_RANGES, *GPU_WORK} | (set() if has_gpu else {HOST_WORK})
    chosen = sorted((event for event in events if event.get("cat") in kept), key=itemgetter("ts"))[:MAX_SPANS]
    base_ns = int(trace["baseTimeNanoseconds"])
    spans = sorted(
        (track, round(event["ts"] * 1000), -round(event["dur"] * 1000), event["name"])
        for track, event in zip(_tracks(chosen), chosen, strict=True)
    )
    tracks, names = dict.fromkeys(track for track, *_ in spans), dict.fromkeys(name for *_, name in spans)
    track_at, name_at = ({text: at for at, text in enumerate(texts)} for texts in (tracks, names))
    durations_ns = _nested([(track_at[track], start, -longest) for track, start, longest, _ in spans])
    return RankTrace(
        rank=rank,
        tracks=tuple(tracks),
        names=tuple(names),
        track=tuple(track_at[track] for track, *_ in spans),
        name=tuple(name_at[name] for *_, name in spans),
        start_ns=tuple(base_ns + start for _, start, _, _ in spans),
        duration_ns=tuple(durations_ns),
    )


def _tracks(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the track of each event: a thread of the host, numbered by its first event, or a stream of the GPU."""
    threads: dict[object, int] = {}
    found = []
    for event in events:
        if event["cat"] in (HOST_RANGES, HOST_WORK):
            found.append(f"host thread {threads.setdefault(event['tid'], len(threads))}")
        elif event["cat"] == GPU_RANGES:
            found.append(f"GPU stream {event['tid']}: ranges")
        else:
            found.append(f"GPU stream {event['tid']}")
    return found


def _nested(spans: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return the durations of sorted spans (track, start, duration), cut at the end of the span around each."""
    durations: list[int] = []
    open_ends: list[int] = []
    last_track = None
    for track, start, duration in spans:
        if track != last_track:
            open_ends, last_track = [], track
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        end = min([start + duration, *open_ends[-1:]])
        open_ends.append(end)
        durations.append(end - start)
    return durations
