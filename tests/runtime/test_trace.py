"""What is kept of torch's traces, on CPUs as they are and on GPUs as torch writes them."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
import torch

from holmes_runtime import trace as trace_module
from holmes_runtime.comm.stopwatch import named_range
from holmes_runtime.config.rank_metrics import RankTrace, rank_file
from holmes_runtime.config.run_settings import ProfileSettings
from holmes_runtime.config.strict_json import parse
from holmes_runtime.trace import StepProfiler, read_chrome_trace

CPU = torch.device("cpu")


def take_steps(folder: Path, settings: ProfileSettings | None, first: int, stop: int) -> RankTrace | None:
    """Steps of a small layer, recorded as `settings` say; the trace that is left."""
    layer = torch.nn.Linear(4, 4)
    profiler = StepProfiler(settings, first, 3, folder, CPU)
    profiler.reach(first)
    for step in range(first, stop):
        with named_range(f"step {step}"), named_range("forward 0, stage 0"):
            layer(torch.ones(1, 4))
        if profiler.changes_at(step + 1):
            profiler.reach(step + 1)
    profiler.finish()
    path = folder / rank_file("trace", 3)
    return parse(RankTrace, gzip.decompress(path.read_bytes()).decode()) if path.exists() else None


def named(trace: RankTrace) -> list[str]:
    return [trace.names[name] for name in trace.name]


def test_the_steps_asked_for_are_recorded_after_a_resume_too(tmp_path: Path) -> None:
    trace = take_steps(tmp_path, ProfileSettings(steps=2, after=1), 10, 20)

    assert trace is not None
    assert [name for name in named(trace) if name.startswith("step")] == ["step 11", "step 12"]
    assert named(trace).count("forward 0, stage 0") == 2
    assert "aten::linear" in named(trace)
    assert list(tmp_path.iterdir()) == [tmp_path / rank_file("trace", 3)]


def test_a_run_that_is_stopped_earlier_leaves_what_it_has(tmp_path: Path) -> None:
    trace = take_steps(tmp_path, ProfileSettings(steps=5, after=1), 0, 3)

    assert trace is not None
    assert [name for name in named(trace) if name.startswith("step")] == ["step 1", "step 2"]


def test_without_profile_nothing_is_recorded(tmp_path: Path) -> None:
    assert take_steps(tmp_path, None, 0, 3) is None


def test_times_are_unix_time_and_spans_lie_inside_or_behind_one_another(tmp_path: Path) -> None:
    before = time_ns()
    trace = take_steps(tmp_path, ProfileSettings(steps=3, after=0), 0, 3)
    assert trace is not None
    assert before - 10**9 < min(trace.start_ns) < time_ns()
    assert_nested(trace)


def assert_nested(trace: RankTrace) -> None:
    """On every track."""
    assert min(trace.duration_ns) >= 0
    assert list(trace.track) == sorted(trace.track)
    spans = list(zip(trace.track, trace.start_ns, trace.duration_ns, strict=True))
    assert all(a[1] <= b[1] for a, b in pairwise(spans) if a[0] == b[0])
    ends: list[tuple[int, int]] = []
    for track, start, duration in spans:
        while ends and (ends[-1][0] != track or ends[-1][1] <= start):
            ends.pop()
        assert not ends or start + duration <= ends[-1][1]
        ends.append((track, start + duration))


def event(category: str, name: str, start_us: float, duration_us: float, thread: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us, "pid": 1, "tid": thread}


ON_GPU = {
    "baseTimeNanoseconds": 10**18,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {}},
        event("user_annotation", "step 3", 1.0, 50.0, 77),
        event("cpu_op", "aten::mm", 2.0, 8.0, 77),
        event("cuda_runtime", "cudaLaunchKernel", 3.0, 1.0, 77),
        event("gpu_user_annotation", "step 3", 10.0, 80.0, 7),
        event("kernel", "gemm", 10.0, 40.0, 7),
        event("kernel", "add", 50.0, 40.001, 7),
        event("gpu_memcpy", "Memcpy HtoD", 12.0, 5.0, 20),
    ],
}


def test_of_a_gpu_its_streams_are_kept_and_the_operators_that_fed_them_are_not() -> None:
    trace = read_chrome_trace(ON_GPU, 0)
    by_track = {
        track: [trace.names[name] for at, name in zip(trace.track, trace.name, strict=True) if at == number]
        for number, track in enumerate(trace.tracks)
    }

    assert by_track == {
        "GPU stream 20": ["Memcpy HtoD"],
        "GPU stream 7": ["gemm", "add"],
        "GPU stream 7: ranges": ["step 3"],
        "host thread 0": ["step 3"],
    }
    assert min(trace.start_ns) == 10**18 + 1000
    assert_nested(trace)


def test_a_span_ends_no_later_than_the_one_around_it() -> None:
    events = [event("user_annotation", "outer", 0.0, 5.0, 1), event("user_annotation", "inner", 1.0, 4.001, 1)]
    trace = read_chrome_trace({"baseTimeNanoseconds": 0, "traceEvents": events}, 0)

    assert trace.duration_ns == (5000, 4000)


def test_of_too_many_spans_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_SPANS", 3)

    assert sorted(named(read_chrome_trace(ON_GPU, 0))) == ["gemm", "step 3", "step 3"]


def test_a_trace_of_nothing_is_empty() -> None:
    trace = read_chrome_trace({"baseTimeNanoseconds": 0, "traceEvents": []}, 5)

    assert (trace.rank, trace.tracks, trace.start_ns) == (5, (), ())
