"""`python -m benchmarks.codec_loss`: how much loss a small GPT of two stages gives away to codecs on its edge.

One process trains the whole model and packs and unpacks at the cut what would cross it, both ways; the parity tests
hold that this equals two processes. All runs of a seed start from the same weights and see the same samples. The gap is
that of the validation losses after the last step, in percent of the one without a codec.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.figure import print_figure
from benchmarks.learning_curve import SHAPE
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Data, Optimizer
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer
from tests.runtime.launched_runs import make_config
from tests.runtime.packed_cuts import PackedCuts

CODECS: tuple[Codec, ...] = ("int8", "int4")
MOST_GAP_PERCENT = {"int8": 1.0, "int4": 2.0}
EVALUATION_BATCHES = 32


def make_run(text: Path, pattern: str, steps: int, seed: int, codec: Codec, stages: int) -> RunConfig:
    """Eight samples a step in two micro-batches, in one stage or two."""
    cuts = (0, SHAPE.num_layers) if stages == 1 else (0, SHAPE.num_layers // 2, SHAPE.num_layers)
    config = make_config(
        pipelines=(tuple(range(stages)),),
        cuts=cuts,
        model=SHAPE,
        steps=steps,
        micro_batch_size=4,
        codecs={"pp_forward": codec, "pp_backward": codec},
    )
    optimizer = Optimizer(1e-3, 1e-4, min(100, steps // 10), "cosine", 0.1, 0.9, 0.95, 1.0)
    data = Data(str(text.absolute()), pattern, None, "joined", 0.05, False, None)
    return replace(config, seed=seed, data=data, optimizer=optimizer)


def final_loss(text: Path, pattern: str, steps: int, seed: int, codec: Codec) -> float:
    """Validation loss, nats per byte, after `steps` with `codec` on the edge."""
    config = make_run(text, pattern, steps, seed, codec, stages=1)
    corpus = load_corpus(config.data, "here", SHAPE.seq_length, SHAPE.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    PackedCuts(trainer, make_run(text, pattern, steps, seed, codec, stages=2))
    for step in range(steps):
        trainer.step(step)
    loss = trainer.evaluate(EVALUATION_BATCHES)
    assert loss is not None
    return loss


def main(written: Sequence[str] | None = None) -> None:
    """Trains with every codec from every seed and prints the gaps; as `written` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec_loss")
    parser.add_argument("text", type=Path, nargs="?", default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--pattern", default="*.py", help="which files of a folder")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args(written)
    gaps: dict[Codec, list[float]] = {codec: [] for codec in CODECS}
    for seed in range(1, arguments.seeds + 1):
        started_s = time.monotonic()
        losses = {
            codec: final_loss(arguments.text, arguments.pattern, arguments.steps, seed, codec)
            for codec in ("none", *CODECS)
        }
        for codec in CODECS:
            gaps[codec].append(100 * (losses[codec] / losses["none"] - 1))
        told = ", ".join(f"{codec} {loss:.4f}" for codec, loss in losses.items())
        print(f"seed {seed}: {told} nats ({time.monotonic() - started_s:.0f} s)", flush=True)
    for codec in CODECS:
        spread = stdev(gaps[codec]) if len(gaps[codec]) > 1 else math.nan
        print(f"{codec}: gap {mean(gaps[codec]):+.2f} % +- {spread:.2f}, at most {MOST_GAP_PERCENT[codec]} wanted")
        print_figure(f"slow_links.loss_gap_percent.{codec}", mean(gaps[codec]), "percent")


if __name__ == "__main__":
    main()
