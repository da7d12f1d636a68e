"""`python -m benchmarks.codec_loss`: the validation loss that codecs on pipeline edges give away, by number of cuts.

One process trains a small Llama of five layers and packs and unpacks at every cut what would cross it, both ways; the
parity tests hold that this equals a process for each stage. All runs of a seed start from the same weights and see the
same samples. A penalty is the difference of the validation losses in percent of the one without a codec. The codecs of
a run stay as they are: nothing is timed, so nothing adapts.

`--write-docs` puts the table and a chart into docs/slow-links.md; `planner/cost/codec_loss.py` quotes its means.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch

from benchmarks.doc_table import DOCS, write_table
from benchmarks.figure import print_figure
from benchmarks.line_chart import line_chart
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import DataSettings, OptimizerSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer
from tests.runtime.launched_runs import make_config
from tests.runtime.packed_cuts import PackedCuts

CODECS: tuple[Codec, ...] = ("int8", "int4")
BOUNDS = {1: (0, 3, 5), 2: (0, 2, 4, 5), 4: (0, 1, 2, 3, 4, 5)}  # of stages, by number of cuts
SHAPE = ModelShape(
    family="llama",
    num_layers=5,
    hidden_size=128,
    num_heads=4,
    num_kv_heads=2,
    ffn_hidden_size=384,
    vocab_size=256,
    seq_length=128,
)
EVALUATION_BATCHES = 32


class Case(NamedTuple):
    """One training: with `codec` on all edges of so many cuts. Without a codec cuts change nothing."""

    seed: int
    codec: Codec
    cuts: int


Losses = Mapping[Case, Mapping[int, float]]  # validation losses, nats per byte, by the steps they were computed after


def make_run(text: Path, pattern: str, steps: int, case: Case, bounds: Sequence[int]) -> RunConfig:
    """Eight samples a step in two micro-batches, in one pipeline of the stages between `bounds`."""
    config = make_config(
        pipelines=(tuple(range(len(bounds) - 1)),),
        cuts=bounds,
        model=SHAPE,
        steps=steps,
        micro_batch_size=4,
        codecs={"pp_forward": case.codec, "pp_backward": case.codec},
    )
    optimizer = OptimizerSettings(1e-3, 1e-4, min(100, steps // 10), "cosine", 0.1, 0.9, 0.95, 1.0)
    data = DataSettings(str(text.absolute()), pattern, validation_fraction=0.05)
    return replace(config, seed=case.seed, data=data, optimizer=optimizer)


def losses_of(text: Path, pattern: str, steps: int, case: Case) -> dict[int, float]:
    """Validation losses after each third of `steps`."""
    config = make_run(text, pattern, steps, case, (0, SHAPE.num_layers))
    corpus = load_corpus(config.data, "here", SHAPE.seq_length, SHAPE.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    if case.codec != "none":
        PackedCuts(trainer, make_run(text, pattern, steps, case, BOUNDS[case.cuts]))
    losses = {}
    for step in range(1, steps + 1):
        trainer.step(step - 1)
        if step % (steps // 3) == 0:
            loss = trainer.evaluate(EVALUATION_BATCHES, step)
            assert loss is not None
            losses[step] = loss
    return losses


def cases(seeds: int, cuts: Sequence[int]) -> Iterator[Case]:
    """The exact run of each seed, then those with a codec."""
    for seed in range(seeds):
        yield Case(seed, "none", 0)
        yield from (Case(seed, codec, count) for count in cuts for codec in CODECS)


def penalty_percent(losses: Losses, case: Case, step: int) -> float:
    """Return the percent by which the codec's loss exceeds the exact one after `step`."""
    return 100 * (losses[case][step] / losses[Case(case.seed, "none", 0)][step] - 1)


def table_lines(losses: Losses) -> list[str]:
    """A row for each number of cuts and codec: each seed's penalty after the last step, and the mean by steps."""
    seeds = sorted({case.seed for case in losses})
    steps = sorted(next(iter(losses.values())))
    by_seed = [f"seed {seed}" for seed in seeds]
    headings = ["cuts", "codec", *by_seed, *(f"mean after {step} steps" for step in steps)]
    exact = [losses[Case(seed, "none", 0)] for seed in seeds]
    cells = [f"{loss[steps[-1]]:.4f}" for loss in exact] + [
        f"{mean(loss[step] for loss in exact):.4f}" for step in steps
    ]
    rows = [headings, ["---"] * len(headings), ["any", "exact, nats a byte", *cells]]
    for cuts in sorted({case.cuts for case in losses} - {0}):
        for codec in CODECS:
            of_seeds = [Case(seed, codec, cuts) for seed in seeds]
            last = [penalty_percent(losses, case, steps[-1]) for case in of_seeds]
            means = [mean(penalty_percent(losses, case, step) for case in of_seeds) for step in steps]
            rows.append([str(cuts), codec, *(f"{percent:+.2f} %" for percent in (*last, *means))])
    return ["| " + " | ".join(row) + " |" for row in rows]


def chart(losses: Losses) -> str:
    """Return an SVG of each seed's penalty after the last step, by number of cuts."""
    last = max(next(iter(losses.values())))
    lines = dict[str, list[tuple[float, float]]]()
    for case in losses:
        if case.codec != "none":
            points = lines.setdefault(f"{case.codec}, seed {case.seed}", [])
            points.append((case.cuts, penalty_percent(losses, case, last)))
    return line_chart(f"% of loss given away after {last} steps, by number of cuts", dict(sorted(lines.items())))


def main(written: Sequence[str] | None = None) -> None:
    """Trains all cases and prints the table; as `written` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec_loss")
    parser.add_argument("text", type=Path, nargs="?", default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--pattern", default="*.py", help="which files of a folder")
    parser.add_argument("--steps", type=int, default=300, help="a multiple of 3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cuts", type=int, nargs="+", default=sorted(BOUNDS), choices=sorted(BOUNDS))
    parser.add_argument("--write-docs", action="store_true")
    arguments = parser.parse_args(written)
    losses = dict[Case, Mapping[int, float]]()
    for case in cases(arguments.seeds, arguments.cuts):
        started_s = time.monotonic()
        losses[case] = losses_of(arguments.text, arguments.pattern, arguments.steps, case)
        took_s = time.monotonic() - started_s
        told = ", ".join(f"{loss:.4f} after {step}" for step, loss in losses[case].items())
        print(f"seed {case.seed}, {case.cuts} cuts, {case.codec}: {told} ({took_s:.0f} s)", flush=True)
    lines = table_lines(losses)
    print("\n".join(lines))
    if arguments.write_docs:
        machine = f"{datetime.date.today().isoformat()}, {platform.machine()}, torch {torch.__version__}."
        write_table("slow-links.md", "codec loss", (machine, "", *lines))
        (DOCS / "codec-loss.svg").write_text(chart(losses), encoding="utf-8")
    for cuts in arguments.cuts:
        for codec in CODECS:
            penalty = mean(
                penalty_percent(losses, Case(seed, codec, cuts), arguments.steps) for seed in range(arguments.seeds)
            )
            print_figure(f"slow_links.loss_penalty_percent.{codec}.{cuts}_cuts", penalty, "percent")


if __name__ == "__main__":
    main()
