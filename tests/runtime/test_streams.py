"""Messages over several connections side by side, between two real ranks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.comm.group_opening import BACKEND, GlooInterface, register_backend
from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.streams import MIN_PART, start_receive, start_send

LIMIT_S = 60
EDGES = 16
SIZES = (1, 2 * MIN_PART - 1, 2 * MIN_PART, 5 * MIN_PART + 3)


def _rank(rank: int, streams: int, folder: Path) -> None:
    """Exchanges messages of all sizes with the other rank, and adds gradients up with it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    register_backend()
    options = GlooInterface("edge", "lo", streams)
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
    (folder / f"done-{rank}").touch()


def _rank_that_hears_first(rank: int, folder: Path) -> None:
    """Of each edge both ends post what they will receive, on a group each, and then send, as a pipeline's do."""
    torch.set_num_threads(1)
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    register_backend()
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
    (folder / f"done-{rank}").touch()


@pytest.mark.parametrize("streams", [1, 3])
def test_messages_arrive_whole_over_any_number_of_connections(streams: int, tmp_path: Path) -> None:
    _run(_rank, (streams,), tmp_path)


def test_ends_that_both_hear_before_they_speak_need_no_other_to_connect(tmp_path: Path) -> None:
    """Which end waits for the other depends on port numbers, so several edges are tried."""
    _run(_rank_that_hears_first, (), tmp_path)


def _run(target: Callable[..., None], arguments: tuple[int, ...], folder: Path) -> None:
    """Run `target` as two ranks. Each leaves a file when it is done.

    They start anew: a fork of a test process, whose other threads may hold torch's locks then, hung twice in ten runs.
    """
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=target, args=(rank, *arguments, folder)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(LIMIT_S)
        each.kill()
    assert {path.name for path in folder.glob("done-*")} == {"done-0", "done-1"}
