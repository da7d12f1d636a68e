"""`python -m benchmarks.learning_curve [TEXT]`: trains a small GPT on two CPU processes and draws its loss.

TEXT is a file, or a folder and `--pattern`; left out, the sources of Python's own standard library. It stops after
`--minutes` or `--steps`, whichever comes first, and goes on from there when started again with the same `--folder`. The
dashed line is the unigram entropy: the least loss of a model that knows how often each byte occurs and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.figure import print_figure
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_grid import Group, Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.config.run_settings import CheckpointSettings, DataSettings, EvaluationSettings, OptimizerSettings
from holmes_runtime.data.corpus import load_corpus

ROOT = Path(__file__).parent.parent
RANKS = 2
SHAPE = ModelShape(
    num_layers=4, hidden_size=128, num_heads=4, num_kv_heads=4, ffn_hidden_size=512, vocab_size=256, seq_length=128
)
WIDTH, HEIGHT, MARGIN = 720, 360, 56  # pixels
Curve = Sequence[tuple[int, float]]  # (step, loss in nats per byte)


def make_config(text: Path, pattern: str, steps: int, folder: Path) -> RunConfig:
    """Two replicas of the whole model on one host."""
    checkpoints = folder / "checkpoints"
    return RunConfig(
        run_id="learning-curve",
        device="cpu",
        seed=1,
        steps=steps,
        global_batch_size=32,
        micro_batch_size=16,
        microbatches=(1,) * RANKS,
        pp=1,
        dp=RANKS,
        schedule="1f1b",
        lossiest_codec="none",
        value_type="fp32",
        compile=False,
        model=SHAPE,
        emulation=None,
        data=DataSettings(str(text.absolute()), pattern, validation_fraction=0.05),
        expected_tokenizer=None,
        evaluation=EvaluationSettings(50, 4),
        checkpoint=CheckpointSettings(str(checkpoints.absolute()), 100, 2, 2),
        resume=True,
        from_scratch=True,
        optimizer=OptimizerSettings(1e-3, 1e-4, min(100, steps // 10), "cosine", 0.1, 0.9, 0.95, 1.0),
        stages=(Stage(0, 0, SHAPE.num_layers),),
        ranks=tuple(Rank(rank, "here", "here", 0, rank, 0) for rank in range(RANKS)),
        groups=(Group("dp", "dp", tuple(range(RANKS)), ("lo",) * RANKS, None, 1, "none"),),
        expectation=None,
        timeout_s=600.0,
        threads_per_rank=1,
    )


def train(config: RunConfig, folder: Path, port: int, minutes: float) -> None:
    """Runs the ranks for at most `minutes`; then asks them to stop, which saves. Raises RuntimeError if one fails."""
    path = folder / "run.json"
    path.write_text(config.to_json(), encoding="utf-8")
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "HOLMES_METRICS_DIR": str(folder / "metrics")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "holmes_runtime.train", str(path)],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    stop_s = time.monotonic() + 60 * minutes
    try:
        while all(rank.poll() is None for rank in ranks) and time.monotonic() < stop_s:
            time.sleep(1)
    finally:
        if ranks[0].poll() is None:
            ranks[0].send_signal(signal.SIGTERM)  # one is enough: all stop after the same step
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}")


def read_curves(folder: Path) -> tuple[Curve, Curve]:
    """Training and validation loss by step; where a step was taken twice, the later one."""
    training, validation = {}, {}
    for line in (folder / "metrics" / "metrics-rank0.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        training[record["step"]] = record["loss"]
        if record["eval_loss"] is not None:
            validation[record["step"]] = record["eval_loss"]
    return sorted(training.items()), sorted(validation.items())


def unigram_entropy(text: Path, pattern: str) -> float:
    """Nats per byte of a text that is drawn byte by byte at the frequencies of this one."""
    corpus = load_corpus(DataSettings(str(text), pattern), "here", 1, SHAPE.vocab_size)
    (tokens,) = corpus.training
    counts = torch.bincount(tokens.read(0, len(tokens)), minlength=SHAPE.vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def draw(training: Curve, validation: Curve, entropy: float) -> str:
    """The curves as an SVG picture."""
    last, highest = max(step for step, _ in training) + 1, math.ceil(max(loss for _, loss in training))

    def place(step: float, loss: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / last
        return f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * loss / highest:.1f}"

    def line(points: Curve, style: str) -> str:
        return f'<polyline fill="none" points="{" ".join(place(*point) for point in points)}" style="{style}"/>'

    def label(step: float, loss: float, text: str, shift: str, anchor: str = "middle") -> str:
        x, y = place(step, loss).split(",")
        return f'<text x="{x}" y="{y}" {shift} text-anchor="{anchor}">{text}</text>'

    ticks = range(0, last + 1, max(10 ** int(math.log10(last)) // 2, 1))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *(label(0, loss, str(loss), 'dx="-8" dy="4"', "end") for loss in range(highest + 1)),
            *(line([(0, loss), (last, loss)], "stroke:#ddd") for loss in range(highest + 1)),
            *(label(step, 0, str(step), 'dy="18"') for step in ticks),
            label(last / 2, 0, "step", 'dy="38"'),
            label(0, highest, "loss (nats a byte)", 'dy="-12"', "start"),
            line([(0, entropy), (last, entropy)], "stroke:#888;stroke-dasharray:6 4"),
            label(last, entropy, f"unigram entropy {entropy:.2f}", 'dy="-6"', "end"),
            line(training, "stroke:#9bc"),
            line(validation, "stroke:#c33;stroke-width:2"),
            *(label(last, loss, f"validation {loss:.2f}", 'dy="18"', "end") for _, loss in validation[-1:]),
            "</svg>\n",
        ]
    )


def main() -> None:
    """Trains, draws and prints the last loss beside the entropy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_curve")
    parser.add_argument("text", type=Path, nargs="?", default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--pattern", default="*.py", help="which files of a folder")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/learning-curve"), help="checkpoints and metrics")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "learning_curve.svg")
    parser.add_argument("--port", type=int, default=29511, help="where the two processes meet")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    config = make_config(arguments.text, arguments.pattern, arguments.steps, arguments.folder)
    train(config, arguments.folder.absolute(), arguments.port, arguments.minutes)
    training, validation = read_curves(arguments.folder)
    entropy = unigram_entropy(arguments.text, arguments.pattern)
    arguments.picture.write_text(draw(training, validation, entropy), encoding="utf-8")
    print(f"{training[-1][0] + 1} of {arguments.steps} steps; {arguments.picture}")
    print_figure("learning.unigram_entropy", entropy, "nats")
    print_figure("learning.training_loss", training[-1][1], "nats")
    if validation:
        print_figure("learning.validation_loss", validation[-1][1], "nats")


if __name__ == "__main__":
    main()
