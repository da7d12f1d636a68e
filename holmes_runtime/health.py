"""Which hosts compute and which links carry more slowly than the plan expects.

Waiting alone tells nothing: in a synchronous step everybody waits for the slowest. So compute is timed without the
waits, and links with one message on its own, and both are compared with what the plan counted on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.streams import Transfer, start_receive, start_send
from holmes_runtime.config.rank_grid import Axis, Group, Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.verdicts import AllHostsSlow, HostIsSlow, LinkIsSlow, Verdict

SLOW = 1.5  # how much longer than planned is worth a word; less is within what predictions are off by
REPETITIONS = 3  # of each message; the median counts
FIRST_EXAMINATION = 10  # steps: early enough to act on, late enough for caches and connections to be warm
EXAMINE_EVERY_STEPS = 200


class Examination:
    """Collects what one rank sees, and from time to time lets rank 0 judge what all have seen."""

    def __init__(self, config: RunConfig, me: Rank, groups: RankGroups, device: torch.device) -> None:
        self._config, self._me, self._groups, self._device = config, me, groups, device
        self._compute_s: list[float] = []

    def add(self, compute_s: float) -> None:
        """A step computed for `compute_s` seconds."""
        self._compute_s.append(compute_s / self._config.microbatches[self._me.dp_rank])

    def is_due(self, step: int) -> bool:
        """Whether to hold one after `step`: never if the plan says nothing to compare with."""
        steps = step + 1
        due = steps == FIRST_EXAMINATION or steps % EXAMINE_EVERY_STEPS == 0
        return due and self._config.expectation is not None

    def hold(self) -> tuple[Verdict, ...]:
        """Times the links and judges all ranks' measurements; the verdicts, on rank 0. Called by all ranks."""
        dist.barrier()
        transfer_s = time_edges(self._config, self._me, self._groups, self._device)
        measured = Measured(self._me.rank, median(self._compute_s), transfer_s)
        self._compute_s.clear()
        is_judge = self._me.rank == 0
        gathered = [measured] * self._config.world_size if is_judge else None
        dist.gather_object(measured, gathered, dst=0)
        return verdicts(self._config, gathered) if gathered is not None else ()


@dataclass(frozen=True)
class Measured:
    """What one rank saw: median seconds it computes a micro-batch, and of one message by group it receives in."""

    rank: int
    compute_s: float
    transfer_s: dict[str, float]


def verdicts(config: RunConfig, measured: list[Measured]) -> tuple[Verdict, ...]:
    """What is slow, hosts first; nothing where the plan expects nothing in particular."""
    expected = config.expectation
    if expected is None:
        return ()
    return (*_slow_hosts(config, expected.compute_s, measured), *_slow_links(config, expected.transfer_s, measured))


def _slow_hosts(config: RunConfig, expected_s: tuple[float, ...], measured: list[Measured]) -> list[Verdict]:
    ratios: dict[str, float] = {}
    for one in measured:
        if expected_s and expected_s[one.rank] > 0:
            host = config.grid.rank(one.rank).host
            ratios[host] = max(ratios.get(host, 0.0), one.compute_s / expected_s[one.rank])
    slow = {host: ratio for host, ratio in sorted(ratios.items()) if ratio > SLOW}
    if len(slow) > 1 and len(slow) == len(ratios):
        return [AllHostsSlow(min(slow.values()), max(slow.values()))]
    return [HostIsSlow(host, ratio) for host, ratio in slow.items()]


def _slow_links(config: RunConfig, expected_s: Mapping[str, float], measured: list[Measured]) -> list[Verdict]:
    """By pair of hosts, the message that exceeds its expectation most."""
    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    hosts = {rank.rank: rank.host for rank in config.ranks}
    for one in measured:
        for name, taken_s in one.transfer_s.items():
            if expected_s.get(name, 0.0) > 0:
                sender = next(rank for rank in _group(config, name).ranks if rank != one.rank)
                found = (taken_s / expected_s[name], taken_s, expected_s[name])
                pair = (hosts[sender], hosts[one.rank])
                worst[pair] = max(worst.get(pair, found), found)
    return [
        LinkIsSlow(sender, receiver, ratio, taken_s, planned_s)
        for (sender, receiver), (ratio, taken_s, planned_s) in sorted(worst.items())
        if ratio > SLOW
    ]


def _group(config: RunConfig, name: str) -> Group:
    return next(group for group in config.groups if group.name == name)


def time_edges(config: RunConfig, me: Rank, groups: RankGroups, device: torch.device) -> dict[str, float]:
    """Median seconds of one message, as it is packed, on each edge this rank receives on, by the group's name.

    All ranks call it at once, so that links are loaded as in a step. The receiver asks for each message, and times
    from then to its arrival.
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
        times = [_exchange(me, source, target, device) for _ in range(REPETITIONS)]
        if source.ends is not None:
            name = next(group.name for group in config.groups if (group.axis, group.ranks) == (axis, source.ends))
            timed[name] = median(times)
    return timed


@dataclass(frozen=True)
class _Edge:
    """One end of an edge: messages of `size_bytes` travel on `data`, requests for them the other way on `requests`."""

    ends: tuple[int, int] | None
    size_bytes: int
    data: ProcessGroup | None
    requests: ProcessGroup | None

    def peer(self, rank: int) -> int | None:
        """The rank at the other end."""
        return None if self.ends is None else next(end for end in self.ends if end != rank)


def _edge(
    config: RunConfig,
    axis: Axis,
    ends: tuple[int, int] | None,
    data: ProcessGroup | None,
    requests: ProcessGroup | None,
) -> _Edge:
    return _Edge(ends, config.message_bytes(config.codec_of(axis, ends)), data, requests)


def _exchange(me: Rank, source: _Edge, target: _Edge, device: torch.device) -> float:
    """Seconds from asking `source` for a message to having it, while `target` is given the one it asks for."""
    received, sent = (torch.zeros(edge.size_bytes, dtype=torch.uint8, device=device) for edge in (source, target))
    request, requested = (torch.zeros(1, device=device) for _ in range(2))
    from_rank, to_rank = source.peer(me.rank), target.peer(me.rank)
    works: list[dist.Work | Transfer | None] = []
    _settle(device)
    started_s = time.monotonic()
    arrival = None
    if from_rank is not None:
        arrival = start_receive(received, int(from_rank > me.rank), source.data)
        works.append(dist.isend(request, from_rank, source.requests))
    if to_rank is not None:
        dist.recv(requested, to_rank, target.requests)
        works.append(start_send(sent, int(to_rank > me.rank), target.data))
    if arrival is not None:
        arrival.wait()
        _settle(device)
    taken_s = time.monotonic() - started_s
    for work in works:
        if work is not None:
            work.wait()
    return taken_s


def _settle(device: torch.device) -> None:
    """Waits until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
