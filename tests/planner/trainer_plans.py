"""Plans for trainers on drawn fleets: a plan for each engine and seed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import TrainerName
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory, plan_anew

TRAINERS: tuple[TrainerName, ...] = ("megatron", "torchtitan", "deepspeed", "accelerate", "torch")
SMALL_SEEDS = 12  # planned in a second or less
KINDS: tuple[FabricKind, ...] = ("InfiniBand", "RoCE", "Ethernet")


def drawn(engine: TrainerName, seed: int) -> tuple[Inventory, Job]:
    """A fleet of one to three clusters, and a job that fixes some degrees or none; the first seeds draw small ones."""
    draw, is_small = random.Random(seed), seed < SMALL_SEEDS
    sizes = [draw.randint(1, 2) for _ in range(draw.choice((1, 2, 2, 2, 3)))]
    inventory = gpu_inventory(
        sizes,
        gpus_per_host=2 if is_small else draw.choice((2, 4, 4, 8)),
        kinds=[draw.choice(KINDS) for _ in sizes],
        rdma_gbps=draw.choice((200.0, 800.0, 1600.0)),
        shared_gbps=draw.choice((5.0, 25.0, 100.0)),
        memory_bytes=draw.choice((40, 80)) * GIB,
    )
    model = {
        "num_layers": 8 if is_small else draw.choice((8, 12, 16, 24)),
        "hidden_size": draw.choice((1024, 2048, 4096)),
        "num_heads": 16,
        "seq_length": draw.choice((512, 1024)),
        "vocab_size": 32000,
    }
    fixed: dict[str, Any] = {}
    if engine in ("torch", "accelerate"):
        fixed |= {"zero": draw.choice((1, 3))} if draw.random() < 0.3 else {}
    else:
        fixed |= {"pp": draw.choice((2, 4))} if draw.random() < 0.4 else {}
        fixed |= {"tp": draw.choice((1, 2))} if draw.random() < 0.3 else {}
    batch = 32 if is_small else draw.choice((96, 128, 256, 512, 768))
    return inventory, trainer_job(engine, model=model, global_batch_size=batch, parallel=fixed)


def trainer_job(engine: TrainerName, **changes: Any) -> Job:
    """A job with a command for that engine."""
    return gpt_7b(trainer={"engine": engine, "command": ["python", "train.py"]}, data=None, **changes)


@cache
def drawn_plan(engine: TrainerName, seed: int) -> Plan | None:
    """The verified plan, None where nothing fits."""
    try:
        return plan_anew(*drawn(engine, seed), time_limit_s=60.0)
    except HolmesError:
        return None
