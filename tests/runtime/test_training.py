"""Whole runs under torchrun on loopback, compared with the same training in this process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from holmes_runtime.comm import RankGroups
from holmes_runtime.corpus import load_corpus
from holmes_runtime.emulated import block_elements, embedding_elements, head_elements
from holmes_runtime.run_config import Emulation, RunConfig
from holmes_runtime.train import Trainer, describe_rank

from .launched_runs import TINY, launch, make_config

ALONE = RankGroups(None, None, None, None, None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_bytes(bytes(range(32, 127)) * 20)
    return path


def train_here(config: RunConfig) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a run of one rank, trained in this process."""
    text = load_corpus(config.corpus, "here", config.model.seq_length)
    trainer = Trainer(config, config.placement(0), text, ALONE, torch.device("cpu"))
    results = [trainer.step(step) for step in range(config.steps)]
    return [loss for loss, _ in results if loss is not None], [grad_norm for _, grad_norm in results]


@pytest.mark.parametrize(
    ("pipelines", "cuts"),
    [
        pytest.param(((0, 1),), (0, 2, 3), id="two uneven stages"),
        pytest.param(((0,), (1,)), (0, 3), id="two replicas"),
        pytest.param(((0, 2), (3, 1)), (0, 1, 3), id="two stages of two replicas, ranks out of order"),
        pytest.param(((1, 2, 0),), (0, 1, 2, 3), id="three stages, ranks out of order"),
    ],
)
def test_every_plan_trains_like_a_single_process(
    pipelines: tuple[tuple[int, ...], ...], cuts: tuple[int, ...], corpus: Path, tmp_path: Path
) -> None:
    losses, norms = train_here(make_config(corpus))

    run = launch(make_config(corpus, pipelines, cuts), tmp_path)

    assert run.exit_code == 0, run.stderr
    assert run.losses() == pytest.approx(losses, abs=1e-6)
    for lines in run.metrics.values():
        assert [line["grad_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    assert losses[-1] < losses[0] - 0.5
    assert max(norms) > 1.0  # so that clipping took part


def test_an_emulated_run_moves_the_gradients_of_the_real_model_and_keeps_its_time(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, ((0, 2), (1, 3)), (0, 1, 3), steps=3, emulation=Emulation(0.005, 0.01), grad_clip=None)
    total = 3 * block_elements(TINY.hidden_size) + embedding_elements(TINY) + head_elements(TINY)

    run = launch(config, tmp_path)

    assert run.exit_code == 0, run.stderr
    assert run.losses() == [1.0] * 3
    for lines in run.metrics.values():
        # Each averaged gradient is one, so the norm is exact only if every bucket was reduced and divided.
        assert [line["grad_norm"] for line in lines] == pytest.approx([math.sqrt(total)] * 3)
    first_to_last_s = config.num_microbatches * 2 * 0.015 + 0.015
    assert min(line["step_s"] for line in run.metrics[2]) >= first_to_last_s
    sent = sum(line["interfaces"]["lo"]["sent_bytes"] for line in run.metrics[0])
    activations = TINY.seq_length * TINY.hidden_size * config.global_batch_size * 2
    assert sent == pytest.approx(3 * 4 * (2 * total + activations), rel=0.15)
    assert all(line["interfaces"] == {} for rank in (1, 2, 3) for line in run.metrics[rank])
    assert "rank 3 on host3: stage 1 (layers 1-2), replica 1, dp with 2 over lo" in run.stdout


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_stage(corpus: Path) -> None:
    config = make_config(corpus, learning_rate=1e30, grad_clip=None)

    with pytest.raises(RuntimeError, match=r"step 1, stage 0 of replica 0 \(rank 0 on host0\): the loss is nan"):
        train_here(config)


def test_a_wrong_interface_ends_the_run_with_host_group_and_interface(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, ((0,), (1,)), (0, 3), interface="ib7")

    run = launch(config, tmp_path)

    assert run.exit_code == 1
    assert "group dp-0 needs interface 'ib7', but this host has only:" in run.stderr
    assert run.metrics == {}


def test_the_start_line_tells_both_directions_of_each_edge() -> None:
    config = make_config(pipelines=((1, 2, 0),), cuts=(0, 1, 2, 3), interface="ib0")

    assert describe_rank(config, config.placement(2)) == (
        "rank 2 on host2: stage 1 (layers 1-1), replica 0, activations from rank 1 over ib0, "
        "gradients to rank 1 over ib0, activations to rank 0 over ib0, gradients from rank 0 over ib0"
    )
