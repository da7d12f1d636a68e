"""What Holmes is compared with trains, and trains the same: torch's DDP, FSDP2 and 1F1B against Holmes' own ranks."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from .forked_ranks import launch_forked
from .launched_runs import LIMIT_S, launch, make_config, read_metrics

SYSTEMS = ("ddp", "fsdp2", "stock-1f1b")


@pytest.mark.torch
@pytest.mark.timeout(2 * LIMIT_S + 60)
def test_rivals_lose_what_holmes_does_step_by_step(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(map(str, range(2000))))
    config = make_config(corpus, pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3), steps=3, learning_rate=1e-3)
    ours = launch_forked(config, tmp_path / "holmes")
    assert ours.exit_code == 0, ours.stderr

    folder = tmp_path / "rivals"
    rivals = launch(config, folder, module="benchmarks.torch_rivals", arguments=[f"{name}=3" for name in SYSTEMS])
    assert rivals.exit_code == 0, rivals.stderr
    for name in SYSTEMS:
        lines = read_metrics(folder / "metrics" / name).values()
        losses = [
            statistics.fmean(each["loss"] for each in step if each["loss"] is not None)
            for step in zip(*lines, strict=True)
        ]
        assert losses == pytest.approx(ours.losses(), rel=1e-4), name
