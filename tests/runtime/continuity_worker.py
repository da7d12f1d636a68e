"""`python -m tests.runtime.continuity_worker FOLDER NAME...`: stops runs and goes on with them under other plans.

The runs of `NAME`, as "fp32 same cut", are left out.
Torch is imported once and the ranks of each run are forked from it; what they run is `train`, as under torchrun.
FOLDER/continuity.json holds for each run its losses, how its ranks ended and what they said.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import distributed_c10d

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings, EvaluationSettings

from .forked_ranks import run
from .launched_runs import TINY_MIXTRAL, make_config, write_corpus

STOPPED_AFTER, STEPS = 3, 6
PATIENCE, RISING_RATE = 4, 1.0
# Plans to go on with: keyword arguments of `make_config`.
PLANS: dict[str, dict[str, Any]] = {
    "same cut": {"pipelines": ((0, 1),), "cuts": (0, 1, 3)},
    "other cut": {"pipelines": ((0, 1),), "cuts": (0, 2, 3)},
    "one process": {},
    "two replicas": {"pipelines": ((0,), (1,)), "cuts": (0, 3)},
    "three uneven replicas": {"pipelines": ((0,), (1,), (2,)), "cuts": (0, 3), "microbatches": (4, 3, 1)},
    "two stages of two replicas": {"pipelines": ((0, 2), (3, 1)), "cuts": (0, 1, 3)},
    "two clusters of two replicas": {"pipelines": ((0,), (1,), (2,), (3,)), "cuts": (0, 3), "clusters": "abba"},
    "two sharded replicas": {"pipelines": ((0,), (1,)), "cuts": (0, 3), "zero": 3},
    "sharded in two clusters": {
        "pipelines": ((0,), (1,), (2,), (3,)),
        "cuts": (0, 3),
        "clusters": "abba",
        "zero": 3,
    },
    "states in host memory": {"pipelines": ((0, 1),), "cuts": (0, 1, 3), "optimizer_offload": True},
    "shared sequences": {"pipelines": ((0,), (1,)), "cuts": (0, 3), "cp": 2, "microbatches": (8, 8)},
    "two shards": {"shards": (((0,),), ((1,),)), "cuts": (0, 3)},
    "two shards of two stages": {"shards": (((0, 1),), ((2, 3),)), "cuts": (0, 1, 3)},
    "eager": {"pipelines": ((0, 1),), "cuts": (0, 1, 3), "schedule": "eager", "extra_in_flight": (1,)},
    "zero-bubble": {"pipelines": ((0, 1),), "cuts": (0, 2, 3), "schedule": "zero-bubble"},
    "interleaved": {"pipelines": ((0, 1),), "cuts": (0, 1, 2, 3, 4), "schedule": "interleaved", "chunks": 2},
}
FOUR = tuple((rank,) for rank in range(4))
# The same for a model of four experts a layer.
EXPERT_PLANS: dict[str, dict[str, Any]] = {
    "all experts each": PLANS["two replicas"],
    "two share experts": {"pipelines": ((0,), (1,)), "cuts": (0, 3), "ep": 2},
    "four share experts": {"pipelines": FOUR, "cuts": (0, 3), "ep": 4},
    "two clusters that share experts": {"pipelines": FOUR, "cuts": (0, 3), "ep": 2, "clusters": "aabb"},
    "two shards that share experts": {"shards": (((0,), (2,)), ((1,), (3,))), "cuts": (0, 3), "ep": 4},
    "two stages that share experts": PLANS["two stages of two replicas"] | {"ep": 2},
}


class Worker:
    """The runs of one folder, by name."""

    def __init__(self, folder: Path, left_out: Collection[str]) -> None:
        self._folder, self._corpus, self._left_out = folder, write_corpus(folder), left_out
        self.results: dict[str, dict[str, Any]] = {}

    def plan(self, steps: int, checkpoints: Path | None, resume: bool, /, **plan: Any) -> RunConfig:
        saving = CheckpointSettings(str(checkpoints), 2, 2, 2) if checkpoints else None
        num_layers = plan.get("cuts", (0, 3))[-1]
        shape = replace(make_config().model, num_layers=num_layers)
        arguments: dict[str, Any] = {"model": shape, "steps": steps, "checkpoint": saving, "resume": resume}
        arguments |= {"evaluation": EvaluationSettings(2, 1), **plan}
        return make_config(self._corpus, validation_fraction=0.2, **arguments)

    def run(self, name: str, config: RunConfig, **what: Any) -> None:
        self.results[name] = run(config, self._folder / name.replace(" ", "-"), **what)
        (self._folder / "continuity.json").write_text(json.dumps(self.results))

    def copy(self, source: str, name: str) -> Path:
        """The checkpoints of one run for another to go on from."""
        return Path(shutil.copytree(self._folder / source, self._folder / f"saved-{name.replace(' ', '-')}"))

    def re_plan(self, kind: str, stopped: dict[str, Any], names: list[str], **shared: Any) -> None:
        """Without a stop; stopped; and then on from there under each plan named."""
        self.run(f"{kind} uninterrupted", self.plan(STEPS, None, False, **stopped, **shared))
        saved = self._folder / f"saved-{kind}"
        self.run(f"{kind} stopped", self.plan(STOPPED_AFTER, saved, False, **stopped, **shared))
        for name in (name for name in names if f"{kind} {name}" not in self._left_out):
            here = self.copy(saved.name, f"{kind}-{name}")
            self.run(f"{kind} {name}", self.plan(STEPS, here, True, **{**PLANS, **EXPERT_PLANS}[name], **shared))

    def all(self) -> None:
        """Every run."""
        plans = [name for name in PLANS if name != "interleaved"]
        self.re_plan("fp32", PLANS["same cut"], plans)
        self.re_plan("deep", {"pipelines": ((0, 1),), "cuts": (0, 1, 4)}, ["interleaved"])
        clusters = "two clusters of two replicas"
        self.re_plan("across", PLANS[clusters], [clusters, "one process", "two stages of two replicas"])
        host = "states in host memory"
        self.re_plan("offloaded", PLANS[host], [host, "two replicas"])
        sharded = "sharded in two clusters"
        others = ["one process", "two stages of two replicas", "two sharded replicas"]
        self.re_plan("sharded", PLANS[sharded], [sharded, *others])
        self.re_plan("bf16", PLANS["same cut"], ["same cut", "other cut"], value_type="bf16")
        self.re_plan("fp16", PLANS["same cut"], ["same cut"], value_type="fp16")
        mixtral = replace(TINY_MIXTRAL, experts=4)
        for kind in ("two share experts", "all experts each"):
            self.re_plan(kind, EXPERT_PLANS[kind], list(EXPERT_PLANS), model=mixtral)
        saved = self.copy("saved-fp32", "refused")
        self.run("not resumed", self.plan(STEPS, saved, False))
        other = replace(make_config().model, hidden_size=64)
        self.run("other model", self.plan(STEPS, saved, True, model=other))
        self.run("done", self.plan(STOPPED_AFTER, saved, True))
        unpickled = self.plan(STEPS, self.copy("saved-fp32", "unpickled"), True, **PLANS["two stages of two replicas"])
        self.run("without pickle", unpickled, before=forbid_pickle)
        self.run("full disk", self.plan(STEPS, saved, True, **PLANS["two replicas"]), before=fill_disk)
        self.run(
            "asked to stop",
            self.plan(10**6, self._folder / "saved-asked", False, **PLANS["two stages of two replicas"]),
            during=self.ask_one,
        )
        self.run("after being asked", self.plan(1, self._folder / "saved-asked", True))
        self.stop_early()

    def stop_early(self) -> None:
        """A run whose rate is far too high, so that its losses rise: stopped, and gone on with under other plans.

        Each host has a folder of its own.
        """
        rising = {"evaluation": EvaluationSettings(1, 1, PATIENCE), "learning_rate": RISING_RATE}
        saved = CheckpointSettings(str(self._folder / "saved-rising"), 1, 1, 2)
        for name, plan in (("rising", "same cut"), ("early stop", "two replicas"), ("stopped early", "one process")):
            is_first = name == "rising"
            arguments = {**PLANS[plan], **rising, "checkpoint": saved}
            config = self.plan(STOPPED_AFTER if is_first else 50, None, not is_first, **arguments)
            self.run(name, config, own=in_own_folder)

    def ask_one(self, ranks: list[int]) -> None:
        """SIGTERM to one of the ranks once it trains."""
        ask_to_stop(ranks[2], self._folder / "asked-to-stop" / "metrics" / "metrics-rank2.jsonl")


def in_own_folder(config: RunConfig, rank: int) -> RunConfig:
    """The configuration of a rank whose host has its own disk."""
    assert config.checkpoint is not None
    return replace(config, checkpoint=replace(config.checkpoint, path=f"{config.checkpoint.path}/host{rank}"))


def ask_to_stop(process_id: int, metrics: Path) -> None:
    """SIGTERM to the rank that writes `metrics`, once it has taken some steps."""
    deadline_s = time.monotonic() + 200
    while time.monotonic() < deadline_s and not (metrics.exists() and metrics.read_text().count("\n") > 3):
        time.sleep(0.05)
    os.kill(process_id, signal.SIGTERM)


def fill_disk() -> None:
    """As on a full disk: no file may grow beyond 64 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def forbid_pickle() -> None:
    """Whatever is unpickled ends the rank."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    pickle.load = pickle.loads = distributed_c10d._unpickler = refuse  # type: ignore[assignment]


if __name__ == "__main__":
    Worker(Path(sys.argv[1]), sys.argv[2:]).all()
