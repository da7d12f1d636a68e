"""Times of messages on the edges of the pipeline, with all edges loaded at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.streams import Transfer, start_receive, start_send
from holmes_runtime.config.rank_grid import Axis, Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.health.measured_times import EdgeTime

SMALL_BYTES = 8  # a message that takes the latency alone
REPETITIONS = 3  # of the small message; the median counts
BURST = 8  # full messages at once: a single one says little about a shared wire or after a lost packet


def time_edges(config: RunConfig, me: Rank, groups: RankGroups, device: torch.device) -> dict[str, EdgeTime]:
    """Return the times of small and of full, packed messages on each edge on which this rank receives, by group name.

    All ranks call this at once, so that links are loaded as in a step. The receiver requests messages, and times from
    the request to their arrival.
    """
    before, after = config.grid.edge_before(me), config.grid.edge_after(me)
    timed = {}
    forward = (
        _edge(config, "pp_forward", before, groups.forward_in, groups.backward_out),
        _edge(config, "pp_forward", after, groups.forward_out, groups.backward_in),
    )
    backward = (
        _edge(config, "pp_backward", after, groups.backward_in, groups.forward_out),
        _edge(config, "pp_backward", before, groups.backward_out, groups.forward_in),
    )
    for axis, (source, target) in {"pp_forward": forward, "pp_backward": backward}.items():
        small = source.with_bytes(SMALL_BYTES), target.with_bytes(SMALL_BYTES)
        small_s = median(_exchange(me, *small, device, 1) for _ in range(REPETITIONS))
        dist.barrier()
        burst_s = _exchange(me, source, target, device, BURST)
        full_s = small_s + max(0.0, burst_s - small_s) / BURST
        if source.ends is not None:
            name = next(group.name for group in config.groups if (group.axis, group.ranks) == (axis, source.ends))
            timed[name] = EdgeTime(small_s, full_s)
    return timed


@dataclass(frozen=True)
class _Edge:
    """One end of an edge: messages of `size_bytes` travel on `data`, and requests for them back on `requests`."""

    ends: tuple[int, int] | None
    size_bytes: int
    data: ProcessGroup | None
    requests: ProcessGroup | None

    def with_bytes(self, size_bytes: int) -> _Edge:
        """Return the same edge with messages of another size."""
        return replace(self, size_bytes=size_bytes)

    def peer(self, rank: int) -> int | None:
        """Return the rank at the other end; None if there is no edge."""
        return None if self.ends is None else next(end for end in self.ends if end != rank)


def _edge(
    config: RunConfig,
    axis: Axis,
    ends: tuple[int, int] | None,
    data: ProcessGroup | None,
    requests: ProcessGroup | None,
) -> _Edge:
    return _Edge(ends, config.message_bytes(config.codec_of(axis, ends)), data, requests)


def _exchange(me: Rank, source: _Edge, target: _Edge, device: torch.device, count: int) -> float:
    """Return the seconds from requesting `count` messages of `source` to their arrival, while sending to `target`."""
    received, sent = (torch.zeros(edge.size_bytes, dtype=torch.uint8, device=device) for edge in (source, target))
    request, requested = (torch.zeros(1, device=device) for _ in range(2))
    from_rank, to_rank = source.peer(me.rank), target.peer(me.rank)
    works: list[dist.Work | Transfer | None] = []
    arrivals: list[Transfer] = []
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started_s = time.monotonic()
    if from_rank is not None:
        arrivals = [start_receive(received, int(from_rank > me.rank), source.data) for _ in range(count)]
        works.append(dist.isend(request, from_rank, source.requests))
    if to_rank is not None:
        dist.recv(requested, to_rank, target.requests)
        works += [start_send(sent, int(to_rank > me.rank), target.data) for _ in range(count)]
    _wait_for(arrivals, device)
    taken_s = time.monotonic() - started_s
    for work in works:
        if work is not None:
            work.wait()
    return taken_s


def _wait_for(arrivals: Sequence[Transfer], device: torch.device) -> None:
    """Wait until all have arrived. On a GPU, a separate stream avoids waiting for sends too."""
    if device.type == "cpu":
        for arrival in arrivals:
            arrival.wait()
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for arrival in arrivals:
            arrival.wait()
    stream.synchronize()
