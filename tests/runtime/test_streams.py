"""Messages over several connections side by side, between two real ranks."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.comm.group_opening import BACKEND, GlooInterface, register_backend
from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.streams import LEAST_PART, start_receive, start_send

LIMIT_S = 60
SIZES = (1, 2 * LEAST_PART - 1, 2 * LEAST_PART, 5 * LEAST_PART + 3)


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
    flat = torch.arange(8 * LEAST_PART, dtype=torch.float32)
    part = start_reduce_scatter(flat, group)()
    gathered = torch.zeros_like(flat)
    gathered.view(2, -1)[rank] = part
    torch.testing.assert_close(start_all_gather(gathered, group)(), 2 * flat)
    (folder / f"done-{rank}").touch()


@pytest.mark.parametrize("streams", [1, 3])
def test_messages_arrive_whole_over_any_number_of_connections(streams: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, streams, tmp_path)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(LIMIT_S)
        each.kill()
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}
