"""Runs that start from a published model: under any plan alike, and once only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import CheckpointSettings, Zero

from .forked_ranks import launch_forked
from .launched_runs import TINY_LLAMA, TINY_MIXTRAL, layout, make_config
from .test_published import publish, random_stage

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SHAPE = replace(TINY_LLAMA, num_layers=4, tied_embeddings=True, qkv_bias=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    publish(random_stage(SHAPE), tmp_path / "published")
    (tmp_path / "text.txt").write_bytes(bytes(range(32, 127)) * 20)
    return tmp_path


def losses_of(
    folder: Path,
    tp: int,
    pp: int,
    dp: int,
    weights: bool = True,
    shape: ModelShape = SHAPE,
    zero: Zero = 1,
    ep: int = 1,
) -> list[float]:
    cuts = (0, 4) if pp == 1 else (0, 3, 4)
    config = make_config(
        folder / "text.txt",
        cuts=cuts,
        shards=layout(tp, pp, dp),
        model=shape,
        steps=3,
        learning_rate=1e-3,
        weights=str(folder / "published") if weights else None,
        zero=zero,
        ep=ep,
    )
    run = launch_forked(config, folder / f"{tp}{pp}{dp}{weights}{zero}{ep}")
    assert run.exit_code == 0, run.stderr[-2000:]
    return run.losses()


def test_a_run_starts_from_published_weights_under_any_plan(folder: Path) -> None:
    alone = losses_of(folder, 1, 1, 1)

    assert losses_of(folder, 2, 2, 1) == pytest.approx(alone, abs=1e-6)
    assert losses_of(folder, 1, 1, 2) == pytest.approx(alone, abs=1e-6)
    assert losses_of(folder, 1, 1, 1, weights=False)[0] != pytest.approx(alone[0], abs=1e-2)


def test_a_run_of_sharded_weights_starts_from_published_ones(folder: Path) -> None:
    shape = replace(SHAPE, tied_embeddings=False)
    publish(random_stage(shape), folder / "published")

    alone = losses_of(folder, 1, 1, 1, shape=shape)

    assert losses_of(folder, 1, 1, 2, shape=shape, zero=3) == pytest.approx(alone, abs=1e-6)


def test_replicas_that_share_experts_start_from_published_ones(folder: Path) -> None:
    shape = replace(TINY_MIXTRAL, num_layers=4)
    publish(random_stage(shape), folder / "published")

    alone = losses_of(folder, 1, 1, 1, shape=shape)

    assert losses_of(folder, 1, 1, 2, shape=shape, ep=2) == pytest.approx(alone, abs=1e-6)
    assert losses_of(folder, 2, 1, 2, shape=shape, ep=4) == pytest.approx(alone, abs=1e-6)


def test_a_run_that_resumes_needs_the_folder_no_more(folder: Path) -> None:
    saved = CheckpointSettings(str(folder / "saved"), 1, 1, 2)
    first = make_config(
        folder / "text.txt", ((0,),), (0, 4), model=SHAPE, steps=1, checkpoint=saved, weights=str(folder / "published")
    )
    assert launch_forked(first, folder / "first").exit_code == 0

    second = launch_forked(replace(first, steps=2, resume=True, weights="/gone"), folder / "second")

    assert second.exit_code == 0, second.stderr[-2000:]
    assert [line["step"] for line in second.metrics[0]] == [1]


def test_a_folder_of_another_model_ends_the_run_by_host_and_key(folder: Path) -> None:
    config = make_config(
        folder / "text.txt", ((0,),), (0, 4), model=replace(SHAPE, rope_theta=5e3), weights=str(folder / "published")
    )

    run = launch_forked(config, folder / "run")

    assert run.exit_code != 0
    assert "host host0: weights" in run.stderr
    assert "rope_theta 10000.0, not 5000.0 as in job.yaml" in run.stderr
