"""`python -m tests.runtime.parity_worker FOLDER CELL...`: trains the cells, all of one world size, and each alone.

Torch is imported once and the ranks are forked from it; each cell opens its own groups. Rank 0 writes
FOLDER/parity.json: by cell, how far the distributed run is from the single process.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # so that not each rank imports it, where blocks are computed again or compiled
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from holmes_runtime.comm import process_groups
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.health.edge_timing import time_edges
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.trainer import Trainer

from .packed_cuts import PackedCuts
from .parity_cells import CELLS, Cell

TOGETHER = 16  # cells of the same processes: groups that were opened stay, and each makes opening others slower


def run(
    config: RunConfig, rank: int, groups: process_groups.RankGroups, plans: Sequence[RunConfig] = ()
) -> dict[str, Any]:
    """Losses and norms of all steps, gradients of the first one taken, weights after the last, an evaluation's losses.

    Gradients are of the second step where adapters are trained: in the first, B is zero, and so is the gradient of A.
    `plans` are what the plan is at each step; a process alone packs at their cuts what would cross edges.
    """
    corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(rank), corpus, groups, torch.device("cpu"))
    results, shards = [], trainer.zero1.shards()
    gradients: list[tuple[str, TensorPart, int, int, Tensor]] = []
    is_alone = config.world_size == 1
    follower = PackedCuts(trainer, plans[0]) if plans and is_alone else trainer.pipeline
    for step in range(config.steps):
        if plans:
            follower.follow(plans[step])
        results.append(trainer.step(step))
        if not gradients and not results[-1].skipped and step >= (config.lora is not None):
            gradients = [
                (shard.name, shard.part, shard.start, shard.stop, shard.state_gradient.clone()) for shard in shards
            ]
    batch = trainer._read(trainer.training, 0)
    evaluated = trainer.pipeline.evaluate(batch, config.microbatches[trainer.me.dp_rank], 0)
    return {
        "losses": [result.loss for result in results],
        "norms": [-1.0 if result.skipped else result.grad_norm for result in results],
        "gradients": gradients,
        "weights": [(shard.name, shard.part, shard.start, shard.stop, shard.master) for shard in shards],
        "evaluated": [loss.item() for loss in evaluated],
        "timed": sorted(time_edges(plans[-1], trainer.me, groups, trainer.device)) if plans and not is_alone else [],
    }


@cache
def run_alone(cell: Cell, corpus: Path, plans: tuple[RunConfig, ...]) -> dict[str, Any]:
    """The same on one process."""
    return run(cell.config(corpus), 0, process_groups.RankGroups(), plans)


def assemble(ranks: Iterable[dict[str, Any]], what: str) -> dict[str, Tensor]:
    """Whole tensors by name from the shards of all ranks; numbers that no rank held stay NaN."""
    whole: dict[str, Tensor] = {}
    for rank in ranks:
        for name, part, start, stop, piece in rank[what]:
            target = part.of(whole.setdefault(name, torch.full(part.global_shape, torch.nan)))
            flat = target.flatten()
            flat[start:stop] = piece
            target.copy_(flat.view(part.shape))
    return whole


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of any number; NaN if one is missing."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    return float(torch.stack([(ours[name] - theirs[name]).abs().amax() for name in theirs]).amax())


def are_alike(ranks: Iterable[dict[str, Any]]) -> bool:
    """Whether ranks that hold the same piece of a weight have the same bits."""
    held: dict[Any, Tensor] = {}
    pieces = [(name, part, start, piece) for rank in ranks for name, part, start, _, piece in rank["weights"]]
    return all(torch.equal(held.setdefault((name, part, start), piece), piece) for name, part, start, piece in pieces)


def are_equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two runs of this rank differ in no bit of any loss, norm or gradient."""
    pairs = zip(first["gradients"], second["gradients"], strict=True)
    numbers = [[of[what] for what in ("losses", "norms", "evaluated")] for of in (first, second)]
    return numbers[0] == numbers[1] and all(torch.equal(a[-1], b[-1]) for a, b in pairs)


def compare(cell: Cell, ranks: list[dict[str, Any]], alone: dict[str, Any]) -> dict[str, Any]:
    """How far the run of all `ranks` is from the one `alone`."""
    curves = [rank["losses"] for rank in ranks if rank["losses"][0] is not None]
    config = cell.config(Path())
    last = [config.grid.at(cell.pp - 1, replica, 0).rank for replica in range(cell.replicas)]
    groups = [
        [ranks[rank]["evaluated"] for rank in last[first : first + cell.cp]] for first in range(0, len(last), cell.cp)
    ]
    evaluated = [sum(parts) / cell.cp for group in groups for parts in zip(*group, strict=True)]
    return {
        "loss": max(abs(a - b) for curve in curves for a, b in zip(curve, alone["losses"], strict=True)),
        "norm": max(abs(a - b) for rank in ranks for a, b in zip(rank["norms"], alone["norms"], strict=True)),
        "gradient": furthest(assemble(ranks, "gradients"), assemble([alone], "gradients")),
        "weight": furthest(assemble(ranks, "weights"), assemble([alone], "weights")),
        "evaluated": max(abs(a - b) for a, b in zip(evaluated, alone["evaluated"], strict=True)),
        "losses": curves[0],
        "timed": sorted(name for rank in ranks for name in rank["timed"]),
    }


def work(rank: int, cells: Sequence[Cell], folder: Path) -> None:
    """One rank of `cells`, which are of one size."""
    torch.set_num_threads(1)
    world_size = cells[0].world_size
    store = FileStore(str(folder / f"store {cells[0]}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    corpus, found = folder / "text.txt", folder / "parity.json"
    compared = json.loads(found.read_text()) if found.exists() else {}
    for cell in cells:
        config = cell.config(corpus)
        plans = tuple(cell.config(corpus, step) for step in range(config.steps)) if cell.is_packed else ()
        mine = run(config, rank, process_groups.open_groups(config, rank), plans)
        equal = not cell.twice or are_equal(mine, run(config, rank, process_groups.open_groups(config, rank)))
        gathered: list[Any] | None = [None] * world_size if rank == 0 else None
        dist.gather_object(mine, gathered)
        if gathered is not None:
            errors = compare(cell, gathered, run_alone(cell.alone(), corpus, plans))
            compared[str(cell)] = errors | {"equal": equal and are_alike(gathered)}
            found.write_text(json.dumps(compared))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    # The same graphs, breaks and gradients without minutes of kernels, which `test_build_stage` compiles.
    torch.compile = partial(torch.compile, backend="aot_eager")
    folder, names = Path(sys.argv[1]), set(sys.argv[2:])
    cells = [cell for cell in CELLS if str(cell) in names]
    gc.freeze()  # else each rank looks through all that torch has made, and has a copy of it
    codes = [work_together(cells[first : first + TOGETHER], folder) for first in range(0, len(cells), TOGETHER)]
    sys.exit(max(codes))


def work_together(cells: Sequence[Cell], folder: Path) -> int:
    """All ranks of `cells`; their highest exit code."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, cells, folder)) for rank in range(cells[0].world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    main()
