"""Predicted and measured times of profiled steps in one trace of Chrome's JSON format, which Perfetto opens.

There is one process per rank. Its first track is the plan's prediction, the others are from torch's profiler there.
Clocks of hosts differ: each host is shifted so that its ranks begin steps when the first rank does, on the median. A
step ends when all ranks know the gradients' norm, so they begin the next one within a message's way of each other.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median_low

from holmes_cli.screen.terminal import print_err
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanRank
from holmes_core.records.record_file import read_file
from holmes_runtime.config.rank_metrics import RankTrace, action_name, step_name
from launcher.journal.follow_folder import read_plan
from launcher.journal.rank_files import read_traces
from launcher.journal.run_folder import INVENTORY_FILE, PROFILE_FILE
from planner.layout.reprice import plan_timeline
from planner.schedule.simulate import Span

PREDICTED = "predicted"

Timelines = Mapping[int, Sequence[Span]]
"""By replica, every action of its simulated step; empty without the inventory."""
Event = Mapping[str, object]


def keep_profile(run_folder: Path) -> None:
    """Join the recordings of an ended run's ranks; print the error if that fails, as the run is over anyway."""
    try:
        write_profile(run_folder)
    except HolmesError as error:
        print_err(f"no profile: {error.what}; {error.hint}")


def write_profile(run_folder: Path) -> Path | None:
    """Join the recordings of a run's ranks into one file; return None without any. Raises HolmesError."""
    plan = read_plan(run_folder)
    traces = [trace for trace in read_traces(run_folder) if trace.rank < plan.world_size]
    if not traces:
        return None
    timelines: dict[int, tuple[Span, ...]] = {}
    if (run_folder / INVENTORY_FILE).exists():
        inventory = read_file(Inventory, run_folder / INVENTORY_FILE)
        replicas = {plan.ranks[trace.rank].dp_rank for trace in traces}
        timelines = {replica: plan_timeline(inventory, plan, replica) for replica in sorted(replicas)}
    path = run_folder / PROFILE_FILE
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(plan, timelines, traces)):
            file.write(",\n" * (number > 0) + json.dumps(event))
        file.write("\n]}\n")
    return path


def trace_events(plan: Plan, timelines: Timelines, traces: Sequence[RankTrace]) -> Iterator[Event]:
    """Yield the events of such a file, in microseconds from the earliest span on. `traces`: one per rank, at least
    one."""
    shift_ns = host_shifts_ns(plan, traces)
    begins_ns = [
        min(trace.start_ns, default=0) - shift_ns[plan.ranks[trace.rank].host] for trace in traces if trace.start_ns
    ]
    zero_ns = min(begins_ns, default=0)
    first = min(traces, key=lambda trace: trace.rank)
    first_shift_ns = shift_ns[plan.ranks[first.rank].host]
    steps_us = [(start - first_shift_ns - zero_ns) / 1e3 for _, start in sorted(step_starts_ns(first).items())]
    for trace in sorted(traces, key=lambda trace: trace.rank):
        rank = plan.ranks[trace.rank]
        yield _metadata("process_name", rank.rank, 0, {"name": _describe(plan, rank)})
        yield _metadata("process_sort_index", rank.rank, 0, {"sort_index": rank.rank})
        for track, name in enumerate((PREDICTED, *trace.tracks)):
            yield _metadata("thread_name", rank.rank, track, {"name": name})
            yield _metadata("thread_sort_index", rank.rank, track, {"sort_index": track})
        if rank.dp_rank in timelines:
            spans = [span for span in timelines[rank.dp_rank] if span.rank == rank.pp_rank]
            ended_us = 0.0
            for measured_us in steps_us:
                begin_us = max(measured_us, ended_us)  # behind the one before, where steps take less than is predicted
                ended_us = begin_us + plan.prediction.step_s * 1e6
                yield from _predicted(rank.rank, spans, plan.prediction.step_s, begin_us)
        moved_ns = zero_ns + shift_ns[rank.host]
        for track, named, start, duration in zip(
            trace.track, trace.name, trace.start_ns, trace.duration_ns, strict=True
        ):
            yield _span(rank.rank, 1 + track, trace.names[named], (start - moved_ns) / 1e3, duration / 1e3)


def step_starts_ns(trace: RankTrace) -> dict[str, int]:
    """Return the start of each recorded step, by its name and by the clock of the rank's host."""
    prefix = step_name(0).removesuffix("0")
    at = {number for number, name in enumerate(trace.names) if name.startswith(prefix)}
    return {trace.names[n]: start for n, start in zip(trace.name, trace.start_ns, strict=True) if n in at}


def host_shifts_ns(plan: Plan, traces: Sequence[RankTrace]) -> dict[str, int]:
    """Return how far each host's clock is ahead of the first rank's host, by when their ranks begin steps."""
    first = min(traces, key=lambda trace: trace.rank)
    reference_ns, own_host = step_starts_ns(first), plan.ranks[first.rank].host
    ahead: dict[str, list[int]] = {plan.ranks[trace.rank].host: [] for trace in traces}
    for trace in traces:
        for name, start in step_starts_ns(trace).items():
            if name in reference_ns:
                ahead[plan.ranks[trace.rank].host].append(start - reference_ns[name])
    return {host: median_low(found) if found and host != own_host else 0 for host, found in ahead.items()}


def _predicted(rank: int, spans: Sequence[Span], step_s: float, begin_us: float) -> Iterator[Event]:
    """Yield the simulated step of a rank that begins then, and the actions in it."""
    yield _span(rank, 0, "predicted step", begin_us, step_s * 1e6)
    for span in spans:
        name = action_name(span.kind.value, span.microbatch, span.stage)
        yield _span(rank, 0, name, begin_us + span.start_s * 1e6, (span.end_s - span.start_s) * 1e6)


def _span(rank: int, track: int, name: str, start_us: float, duration_us: float) -> Event:
    times = {"ts": round(start_us, 3), "dur": round(duration_us, 3)}
    return {"ph": "X", "name": name, "pid": rank, "tid": track, **times}


def _metadata(what: str, rank: int, track: int, said: Mapping[str, object]) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": said}


def _describe(plan: Plan, rank: PlanRank) -> str:
    stages = ", ".join(str(stage.index) for stage in plan.stages[rank.pp_rank :: plan.pp])
    shard = f", shard {rank.tp_rank}" if plan.tp > 1 else ""
    return f"rank {rank.rank}: stage {stages} of replica {rank.dp_rank}{shard}, {rank.host} ({rank.cluster})"
