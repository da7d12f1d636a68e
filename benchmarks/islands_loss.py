"""`python -m benchmarks.islands_loss`: what a small GPT learns as two islands, beside one that trains as one.

In one process; tests hold that islands over a network learn the same, bit for bit. Of each seed all begin with the same
weights. At equal steps they read equally many tokens: one run has the batch of both islands. Plain DiLoCo exchanges all
parameters at once, exactly, and waits for it; streaming does a fourth at a time, in int4, and applies it two steps
later, as job.yaml's default is, or six. Losses are those of validation after the last step, in nats per byte, of
islands the mean.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.figure import print_figure
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import DataSettings, OptimizerSettings
from holmes_runtime.data.corpus import Corpus, load_corpus
from holmes_runtime.trainer import Trainer
from tests.runtime.islands_in_process import IslandsInProcess
from tests.runtime.launched_runs import ONE_ISLAND, make_config

SHAPE = ModelShape(
    num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_hidden_size=256, vocab_size=256, seq_length=64
)
ISLANDS, MICRO_BATCH_SIZE, INNER_STEPS = 2, 4, 50
PLAIN: dict[str, Any] = {"codec": "none", "fragments": 1, "delay_steps": 0}
STREAMING: dict[str, Any] = {"codec": "int4", "fragments": 4, "delay_steps": 6}
AS_ONE, EVALUATION_BATCHES = "as one", 32
SOONER = STREAMING | {"delay_steps": 2}
VARIANTS: dict[str, dict[str, Any] | None] = {AS_ONE: None, "plain": PLAIN, "sooner": SOONER, "streaming": STREAMING}
SETTINGS: dict[str, dict[str, Any] | None] = {
    AS_ONE: None,
    **{f"H {steps}": PLAIN | {"inner_steps": steps} for steps in (10, 20, 50, 100, 250, 500)},
    **{codec: PLAIN | {"codec": codec} for codec in ("int8", "int4")},
    **{f"delay {late}": STREAMING | {"codec": "none", "delay_steps": late} for late in (0, 2, 6, 12)},
    "default": SOONER,
}
"""Each setting alone against plain DiLoCo of 50 inner steps, for `planner/cost/islands_loss.py`."""


def trainer(
    text: Path, pattern: str, steps: int, seed: int, microbatches: int, outer: dict[str, Any] | None
) -> Trainer:
    """Of a run as one, or of the island that `outer` says."""
    config: RunConfig = make_config(
        cuts=(0, SHAPE.num_layers),
        model=SHAPE,
        steps=steps,
        micro_batch_size=MICRO_BATCH_SIZE,
        microbatches=(microbatches,),
    )
    config = replace(
        config,
        seed=seed,
        data=DataSettings(str(text.absolute()), pattern, validation_fraction=0.05),
        optimizer=OptimizerSettings(1e-3, 1e-4, min(100, steps // 10), "cosine", 0.1, 0.9, 0.95, 1.0),
        outer_sync=replace(ONE_ISLAND, num_islands=ISLANDS, **outer) if outer else None,
    )
    return Trainer(config, config.grid.rank(0), read_corpus(config.data), RankGroups(), torch.device("cpu"))


@cache
def read_corpus(data: DataSettings) -> Corpus:
    """The same for all."""
    return load_corpus(data, "here", SHAPE.seq_length, SHAPE.vocab_size)


def final_loss(text: Path, pattern: str, steps: int, seed: int, section: Mapping[str, Any] | None) -> float:
    """Of islands with that section of job.yaml, or of one run; `steps` is whole rounds."""
    if section is None:
        alone = trainer(text, pattern, steps, seed, ISLANDS, None)
        for step in range(steps):
            alone.step(step)
        return evaluated(alone)
    inner_steps = section.get("inner_steps", INNER_STEPS)
    own = inner_steps * MICRO_BATCH_SIZE
    rule = {"outer_rate": 0.7, "momentum": 0.9, **section, "inner_steps": inner_steps, "round_samples": ISLANDS * own}
    islands = IslandsInProcess(
        [
            trainer(text, pattern, steps, seed, 1, {"island": island, "samples_before": island * own, **rule})
            for island in range(ISLANDS)
        ]
    )
    for step in range(steps):
        islands.step(step)
    return mean(evaluated(each) for each in islands.trainers)


def evaluated(trained: Trainer) -> float:
    """Validation loss, nats per byte."""
    loss = trained.evaluate(EVALUATION_BATCHES, trained.config.steps)
    assert loss is not None
    return loss


def rise_percent(losses: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The mean rise over others, seed by seed, and half of its 95 % interval (two standard errors for few seeds)."""
    rises = [100 * (loss / other - 1) for loss, other in zip(losses, others, strict=True)]
    return mean(rises), 2 * stdev(rises) / sqrt(len(rises))


def main(written: Sequence[str] | None = None) -> None:
    """Trains all from every seed and prints how the losses compare; as `written` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.islands_loss")
    parser.add_argument("text", type=Path, nargs="?", default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--pattern", default="*.py", help="which files of a folder")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", action="store_true", help="each setting of islands, for the planner's table")
    arguments = parser.parse_args(written)
    torch.set_num_threads(1)  # so small a model is no faster with more
    variants = SETTINGS if arguments.settings else VARIANTS
    losses: dict[str, list[float]] = {name: [] for name in variants}
    for seed in range(1, arguments.seeds + 1):
        began_s = time.monotonic()
        for name, section in variants.items():
            losses[name].append(final_loss(arguments.text, arguments.pattern, arguments.steps, seed, section))
        said = ", ".join(f"{name} {each[-1]:.4f}" for name, each in losses.items())
        print(f"seed {seed}: {said} ({time.monotonic() - began_s:.0f} s)", flush=True)
    if arguments.settings:
        for name in list(SETTINGS)[1:]:
            over = AS_ONE if name.startswith("H ") or name == "default" else f"H {INNER_STEPS}"
            percent, half = rise_percent(losses[name], losses[over])
            print(f"{name} over {over}: {percent:+.2f} ± {half:.2f} %")
        return
    means = {name: mean(each) for name, each in losses.items()}
    for name in ("sooner", "streaming"):
        print_figure(f"islands.loss_{name}_over_plain", means[name] / means["plain"], "")
    for name in ("plain", "sooner", "streaming"):
        print_figure(f"islands.loss_gap_percent.{name}", 100 * (means[name] / means[AS_ONE] - 1), "%")


if __name__ == "__main__":
    main()
