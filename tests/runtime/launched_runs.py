"""Small run configurations and real torchrun launches of them on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from holmes_runtime.run_config import (
    Axis,
    Corpus,
    Emulation,
    Group,
    ModelShape,
    Optimizer,
    Rank,
    RunConfig,
    Stage,
)

REPOSITORY = Path(__file__).parents[2]
TINY = ModelShape(num_layers=3, hidden_size=32, num_heads=4, vocab_size=256, seq_length=32)


def make_groups(pipelines: Sequence[Sequence[int]], interface: str) -> tuple[Group, ...]:
    """Every group of a run whose replica d is `pipelines[d]`, all on one interface."""

    def group(name: str, axis: Axis, ranks: Sequence[int]) -> Group:
        return Group(name, axis, tuple(ranks), (interface,) * len(ranks), None)

    groups = []
    if len(pipelines) > 1:
        groups += [group(f"dp-{stage}", "dp", ranks) for stage, ranks in enumerate(zip(*pipelines, strict=True))]
    for replica, pipeline in enumerate(pipelines):
        for stage, edge in enumerate(pairwise(pipeline)):
            groups.append(group(f"forward-{replica}-{stage}", "pp_forward", edge))
            groups.append(group(f"backward-{replica}-{stage}", "pp_backward", edge))
    return tuple(groups)


def make_config(
    corpus: Path | str = "/no/corpus",
    pipelines: Sequence[Sequence[int]] = ((0,),),
    cuts: Sequence[int] = (0, 3),
    *,
    model: ModelShape = TINY,
    steps: int = 5,
    global_batch_size: int = 8,
    micro_batch_size: int = 1,
    emulation: Emulation | None = None,
    grad_clip: float | None = 1.0,
    learning_rate: float = 1e-2,
    interface: str = "lo",
) -> RunConfig:
    """A run of a tiny model; `pipelines[d][s]` is the rank of stage s of replica d, `cuts` are the stage bounds."""
    ranks = [
        Rank(rank, f"host{rank}", "one", stage, replica, 0)
        for replica, pipeline in enumerate(pipelines)
        for stage, rank in enumerate(pipeline)
    ]
    return RunConfig(
        schema_version=1,
        run_id="test",
        device="cpu",
        seed=7,
        steps=steps,
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        pp=len(pipelines[0]),
        dp=len(pipelines),
        tp=1,
        model=model,
        emulation=emulation,
        corpus=Corpus(str(corpus), "*.txt"),
        optimizer=Optimizer(learning_rate, 0.1, 0.9, 0.95, grad_clip),
        stages=tuple(Stage(index, first, stop) for index, (first, stop) in enumerate(pairwise(cuts))),
        ranks=tuple(ranks),
        groups=make_groups(pipelines, interface),
        schedule="1f1b",
        timeout_s=60.0,
        threads_per_rank=1,
    )


@dataclass(frozen=True)
class FinishedRun:
    """What a launch left behind; `metrics[rank]` are its lines in order."""

    exit_code: int
    stdout: str
    stderr: str
    metrics: dict[int, list[dict[str, Any]]]

    def losses(self) -> list[float]:
        """The loss curve as the last stages wrote it; all replicas must agree."""
        curves = [[line["loss"] for line in lines] for lines in self.metrics.values() if lines[0]["loss"] is not None]
        assert all(curve == curves[0] for curve in curves)
        return curves[0]


def launch(config: RunConfig, folder: Path, nproc: int | None = None) -> FinishedRun:
    """Trains `config` under torchrun on this machine and waits for the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    path.write_text(config.to_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc or config.world_size)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command += ["-m", "holmes_runtime.train", str(path)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
        "HOLMES_METRICS_DIR": str(folder / "metrics"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return FinishedRun(done.returncode, done.stdout, done.stderr, read_metrics(folder / "metrics"))


def read_metrics(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The lines of every `metrics-rank<k>.jsonl` in `folder`."""
    files = {int(path.stem.removeprefix("metrics-rank")): path for path in folder.glob("metrics-rank*.jsonl")}
    return {rank: [json.loads(line) for line in path.read_text().splitlines()] for rank, path in files.items()}


def free_port() -> int:
    """A TCP port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
