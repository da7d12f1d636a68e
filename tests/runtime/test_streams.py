"""Messages over several connections side by side, between two real ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.comm.group_opening import BACKEND, GlooInterface, register_backend
from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.streams import MIN_PART, start_receive, start_send

from .forked_ranks import with_torch

LIMIT_S = 300
EDGES = 16
SIZES = (1, 2 * MIN_PART - 1, 2 * MIN_PART, 5 * MIN_PART + 3)


def _exchange(rank: int, streams: int) -> None:
    """Exchange messages of all sizes with the other rank, and add gradients up with it."""
    options = GlooInterface(f"edge over {streams}", "lo", streams)
    group = dist.new_group([0, 1], backend=BACKEND, pg_options=options, timeout=timedelta(seconds=LIMIT_S))
    for size in SIZES:
        received = torch.zeros(size)
        transfers = [
            start_receive(received, 1 - rank, group),
            start_send(torch.arange(size, dtype=torch.float32) + rank, 1 - rank, group),
        ]
        for transfer in transfers:
            transfer.wait()
        torch.testing.assert_close(received, torch.arange(size, dtype=torch.float32) + 1 - rank)
    flat = torch.arange(8 * MIN_PART, dtype=torch.float32)
    part = start_reduce_scatter(flat, group)()
    gathered = torch.zeros_like(flat)
    gathered.view(2, -1)[rank] = part
    torch.testing.assert_close(start_all_gather(gathered, group)(), 2 * flat)


def _hear_first(rank: int) -> None:
    """Of each edge both ends post what they will receive, on a group each, and then send, as a pipeline's do."""
    for edge in range(EDGES):
        groups = [
            dist.new_group([0, 1], backend=BACKEND, pg_options=GlooInterface(f"{edge}.{end}", "lo", 1))
            for end in (0, 1)
        ]
        received, sent = torch.zeros(1), torch.tensor([edge + 1.0])
        transfers = [start_receive(received, 1 - rank, groups[rank]), start_send(sent, 1 - rank, groups[1 - rank])]
        for transfer in transfers:
            transfer.wait()
        torch.testing.assert_close(received, sent)


CASES: dict[str, Callable[[int], None]] = {
    "one connection": partial(_exchange, streams=1),
    "three connections": partial(_exchange, streams=3),
    "both ends hear first": _hear_first,
}


def _rank(rank: int, folder: Path) -> None:
    """Run all cases, and leave a file after each."""
    torch.set_num_threads(1)
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    register_backend()
    for name, case in CASES.items():
        case(rank)
        (folder / f"{name}, rank {rank}").touch()


@pytest.mark.process
def test_messages_arrive_whole_and_ends_that_both_hear_before_they_speak_connect(tmp_path: Path) -> None:
    """Two ranks start anew: a fork of a test process, whose threads may hold torch's locks, hung twice in ten runs.

    Which end waits for the other depends on port numbers, so several edges are tried.
    """
    context = with_torch()
    ranks = [context.Process(target=_rank, args=(rank, tmp_path)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(LIMIT_S)
        each.kill()
    done = {path.name for path in tmp_path.iterdir()} - {"store"}
    assert done == {f"{name}, rank {rank}" for name in CASES for rank in (0, 1)}
