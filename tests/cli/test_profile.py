"""A profiled run leaves one file with what was predicted and what was measured of every rank."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holmes_cli.pages.profile_trace import PREDICTED, host_shifts_ns, trace_events
from holmes_core.records.plan import Plan
from holmes_runtime.config.rank_metrics import RankTrace
from planner.layout.reprice import plan_timeline
from tests.planner.fleets import bed_job, cpu_inventory, plan_for
from tests.testbed.rehearsal import local_site, only_run, standard_library_corpus

INVENTORY = cpu_inventory((2, 2))
PLAN = plan_for(INVENTORY, bed_job())  # pp 2 and dp 2, a rank on each of a1, a2, b1, b2
Event = dict[str, Any]


def trace(rank: int, clock_ahead_ns: int, late_ns: int = 0) -> RankTrace:
    """Two steps of a millisecond with one forward, on a host whose clock is ahead."""
    starts = [10**18 + step * 10**6 + clock_ahead_ns + late_ns for step in range(2)]
    return RankTrace(
        rank=rank,
        tracks=("host thread 0",),
        names=("step 7", "step 8", "forward 0, stage 0"),
        track=(0, 0, 0, 0),
        name=(0, 2, 1, 2),
        start_ns=(starts[0], starts[0] + 1000, starts[1], starts[1] + 1000),
        duration_ns=(10**6, 4000, 10**6, 4000),
    )


def events_of(plan: Plan, traces: Sequence[RankTrace]) -> list[Event]:
    timelines = {replica: plan_timeline(INVENTORY, plan, replica) for replica in range(plan.dp)}
    return [dict(event) for event in trace_events(plan, timelines, traces)]


def test_clocks_are_aligned_by_the_beginnings_of_steps_and_ranks_of_one_host_keep_their_distance() -> None:
    hosts = [PLAN.ranks[rank].host for rank in range(4)]
    ahead = {host: 3_600_000_000_000 * at for at, host in enumerate(dict.fromkeys(hosts))}
    traces = [trace(rank, ahead[hosts[rank]]) for rank in range(4)]
    measured = [event for event in events_of(PLAN, traces) if event["ph"] == "X" and event["tid"] == 1]

    assert host_shifts_ns(PLAN, traces) == ahead
    assert {event["ts"] for event in measured if event["name"] == "step 7"} == {0.0}
    assert {event["ts"] for event in measured if event["name"] == "forward 0, stage 0"} == {1.0, 1001.0}


def test_a_rank_is_a_process_with_the_predicted_step_above_each_measured_one() -> None:
    events = events_of(PLAN, [trace(rank, 0) for rank in range(4)])
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2]
    whole = [event for event in events if event["name"] == "predicted step" and event["pid"] == 2]

    rank = PLAN.ranks[2]
    assert names[2] == f"rank 2: stage {rank.pp_rank} of replica {rank.dp_rank}, {rank.host} ({rank.cluster})"
    assert tracks == [PREDICTED, "host thread 0"]
    step_us = round(PLAN.prediction.step_s * 1e6, 3)
    assert {event["dur"] for event in whole} == {step_us}
    assert [event["ts"] for event in whole] == [0.0, max(1000.0, step_us)]  # one behind the other


def test_predicted_actions_are_the_schedule_s_within_the_step() -> None:
    events = [event for event in events_of(PLAN, [trace(0, 0)]) if event["ph"] == "X" and event["tid"] == 0]
    first = sorted(events, key=lambda event: (event["ts"], -event["dur"]))[: len(events) // 2]
    whole, *actions = first
    kinds, microbatches = ("forward", "backward input", "backward weight"), range(PLAN.microbatches[0])

    assert whole["name"] == "predicted step"
    assert {event["name"] for event in events} == {
        "predicted step",
        *(f"{kind} {number}, stage 0" for kind in kinds for number in microbatches),
    }
    assert all(event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 0.002 for event in actions)
    assert_nested(events)


@pytest.mark.process
def test_a_profiled_run_lays_prediction_and_measurement_of_all_ranks_side_by_side(tmp_path: Path) -> None:
    site = local_site(tmp_path)
    job = {
        "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
        "data": standard_library_corpus(),
        "global_batch_size": 8,
        "steps": 6,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 1},
        "profile": {"steps": 2, "after": 2},
    }
    path = site.write_job("job", job)
    files = [str(tmp_path / name) for name in ("inventory.json", "plan.json")]
    said = ""
    for arguments in (
        ("probe", str(site.hosts_yaml), "-o", files[0]),
        ("plan", str(path), "-i", files[0], "-o", files[1]),
        ("launch", files[1], "--runs", str(tmp_path / "runs")),
    ):
        done = subprocess.run(site.command(*arguments), capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    run = only_run(tmp_path / "runs")
    events = json.loads(gzip.decompress((run / "profile.json.gz").read_bytes()))["traceEvents"]

    assert f"profile: {run / 'profile.json.gz'}" in said.replace("\n", "")
    spans = [event for event in events if event["ph"] == "X"]
    for rank in range(4):
        own = [event for event in spans if event["pid"] == rank]
        predicted = {event["name"] for event in own if event["tid"] == 0}
        measured = {event["name"] for event in own if event["tid"] > 0}
        actions = predicted - {"predicted step"}
        assert actions
        assert actions <= measured
        assert {"step 2", "step 3", "update"} <= measured
        assert {"step 1", "step 4"} & measured == set()
    assert min(event["dur"] for event in spans) >= 0
    assert min(event["ts"] for event in spans) >= 0
    assert_nested(spans)


def assert_nested(spans: Sequence[Event]) -> None:
    """On each track a span lies inside or behind those before it, to a nanosecond by which thousandths are rounded."""
    tracks: dict[tuple[int, int], list[Event]] = {}
    for event in spans:
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in tracks.values():
        ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"] + 0.0015:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 0.0015, event
            ends.append(event["ts"] + event["dur"])
