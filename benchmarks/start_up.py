"""What a rank of a large run computes before its first step: seconds of one core, on a real plan of so many ranks.

The plan is `holmes plan`'s for 512 hosts of eight GPUs. One process is one of its ranks: it reads the configuration as
every rank does, opens the groups of the plan, and builds its stages, its optimizer's buckets and its part of the
schedule. All other ranks are torch's fake process group, which connects nothing, and tensors have shapes and no memory:
what networks, GPUs and the drawing of weights take comes on top. `--weights` draws those of a 7B model's stage instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figure import print_figure

MAX_CPU_S = 60.0
CASE = "512"
RANKS = (0, 2047, 4095)


def main() -> None:
    """Plans, then starts three ranks one after the other and prints what the slowest took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, help="be this rank of the run configuration")
    parser.add_argument("--weights", action="store_true", help="draw the weights of 7B, whole and one of eight shards")
    parser.add_argument("config", type=Path, nargs="?", help="the run configuration, if there is one already")
    arguments = parser.parse_args()
    if arguments.weights:
        draw_weights()
    elif arguments.rank is not None:
        start_rank(arguments.rank, arguments.config)
    else:
        with tempfile.TemporaryDirectory(prefix="holmes-start-up-") as folder:
            file = arguments.config or Path(folder) / "run_config.json"
            if arguments.config is None or not file.exists():
                write_config(file)
            print_figure("runtime.start_cpu_s.4096", max(time_rank(rank, file) for rank in RANKS), "s")


def write_config(file: Path) -> None:
    """The plan's run configuration, on CPUs in fp32 and with a small corpus beside it."""
    from benchmarks.planner_scale import CASES, make_inventory
    from holmes_core.records.job import Job
    from holmes_core.records.plan import SourceFile
    from launcher.prepare.prepare import run_config_of
    from planner.make_plan import make_plan

    case = next(case for case in CASES if case.name == CASE)
    corpus = file.with_name("corpus.txt")
    corpus.write_bytes(bytes(range(128))[1:] * 129)
    job = Job.model_validate(
        {
            "model": {"preset": case.preset},
            "data": {"path": str(corpus), "bytes": True},
            "steps": 1000,
            "global_batch_size": case.global_batch_size,
        }
    )
    source = SourceFile(path="benchmark", digest="none")
    plan = make_plan(make_inventory(case.sizes), job, source, source)
    print(f"{plan.world_size} ranks, tp {plan.tp} pp {plan.pp} dp {plan.dp}, {len(plan.groups)} groups", flush=True)
    file.write_text(replace(run_config_of(plan, "start-up"), device="cpu", compile=False).to_json(), encoding="utf-8")


def time_rank(rank: int, file: Path) -> float:
    """Seconds of one core that the process of a rank took, which says itself what for."""
    command = [sys.executable, "-m", "benchmarks.start_up", "--rank", str(rank), str(file)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(said, end="", flush=True)
    return float(said.splitlines()[-1].split()[-2])


def start_rank(rank: int, file: Path) -> None:
    """Comes to where the first step begins, and prints the seconds of a core that each part took."""
    marks = [("python", time.process_time())]

    def mark(name: str) -> None:
        marks.append((name, time.process_time()))

    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

    from holmes_runtime.comm.group_opening import BACKEND
    from holmes_runtime.comm.process_groups import open_groups
    from holmes_runtime.config.run_config import RunConfig
    from holmes_runtime.data.corpus import load_corpus
    from holmes_runtime.health.examination import Examination
    from holmes_runtime.trainer import Trainer

    def opened(options: Any, _: Any) -> Any:
        return _create_fake_pg(options, None)  # type: ignore[no-untyped-call]

    mark("import")
    config = RunConfig.from_json(file.read_text(encoding="utf-8"))
    mark("configuration")
    me, device = config.grid.rank(rank), torch.device("meta")
    dist.Backend.register_backend(BACKEND, opened, extended_api=True, devices=["cpu"])
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=config.world_size)
    corpus = load_corpus(config.data, me.host, config.model.seq_length, config.model.vocab_size)
    mark("world")
    groups = open_groups(config, rank)
    mark("groups")
    trainer = Trainer(config, me, corpus, groups, device, draws=False)
    mark("stages")
    Examination(config, me, groups, device)
    mark("examination")
    before = 0.0
    for name, at in marks:
        print(f"  {name} {at - before:.2f} s")
        before = at
    del trainer
    print(f"rank {rank} of {config.world_size}: {before:.2f} s", flush=True)


def draw_weights() -> None:
    """Seconds by the clock that the weights of llama-2-7b take, whole and one of eight tensor shards, in bf16."""
    import torch

    from holmes_core.records.model import PRESETS
    from holmes_runtime.config.model_shape import ModelShape
    from holmes_runtime.config.run_config import Stage
    from holmes_runtime.model.decoder import DecoderStage
    from holmes_runtime.model.tensor_parallel import TensorParallel

    shape = ModelShape(**PRESETS["llama-2-7b"])
    stage = Stage(0, 0, shape.num_layers // 8)  # an eighth, for the memory of small machines
    for name, tp, draws in (("whole", 1, True), ("shard", 8, True), ("resume", 1, False)):
        started_s = time.monotonic()
        DecoderStage(
            shape, stage, 0, tp=TensorParallel(None, 0, tp), value_type="bf16", device=torch.device("cpu"), draws=draws
        )
        print_figure(f"runtime.eighth_of_7b_weights_s.{name}", time.monotonic() - started_s, "s")


if __name__ == "__main__":
    main()
