"""Stop, re-plan, resume: the loss goes on as if nothing had happened; and what a checkpoint survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.node.checkpoint_files.checkpoint_folder import names_in

from .asked_for import asked_for
from .continuity_worker import EXPERT_PLANS, PATIENCE, PLANS, STOPPED_AFTER
from .launched_runs import REPOSITORY

WORKER_LIMIT_S = 900  # two minutes on two idle cores
pytestmark = [pytest.mark.torch, pytest.mark.timeout(WORKER_LIMIT_S + 60)]

Names = Collection[tuple[str, str]]
SAME_SUMS: Names = [
    *(("fp32", "same cut"), ("fp32", "other cut"), ("bf16", "same cut"), ("bf16", "other cut")),
    *(("fp16", "same cut"), ("across", "two clusters of two replicas")),
    ("sharded", "sharded in two clusters"),
    *(("fp32", "states in host memory"), ("offloaded", "states in host memory")),
    *((name, name) for name in ("two share experts", "all experts each")),
]
OTHER_PLANS: Names = [
    *(("fp32", name) for name in PLANS if name != "interleaved"),
    *(("deep", "interleaved"), ("across", "one process"), ("across", "two stages of two replicas")),
    ("offloaded", "two replicas"),
    *(("sharded", "one process"), ("sharded", "two stages of two replicas"), ("sharded", "two sharded replicas")),
    *((kind, name) for kind in ("two share experts", "all experts each") for name in EXPERT_PLANS),
]
# Exhaustive: their plans are gone on with from other kinds of runs, or both of their cuts and degrees by other plans.
COVERED: Names = [
    *(("fp32", name) for name in ("three uneven replicas", "two sharded replicas", "two shards")),
    *(("bf16", "other cut"), ("across", "one process")),
    *(("offloaded", "two replicas"), ("sharded", "one process"), ("sharded", "two sharded replicas")),
    *(("two share experts", name) for name in ("four share experts", "two stages that share experts")),
    ("all experts each", "four share experts"),
    ("all experts each", "two clusters that share experts"),
    ("all experts each", "two shards that share experts"),
    ("all experts each", "two stages that share experts"),
]
NEEDED = {"fp32 two stages of two replicas", "fp32 other cut"}  # by tests of their own


def cases(names: Names) -> list[Any]:
    """The names as parameters."""
    return [pytest.param(*of, marks=pytest.mark.exhaustive if of in COVERED else ()) for of in names]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("continuity")


def start(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tests.runtime.{module}", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=WORKER_LIMIT_S, check=False
    )


@pytest.fixture(scope="module")
def runs(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    needed = {f"{of['kind']} {of['name']}" for of in asked_for(request) if "kind" in of} | NEEDED
    names = (f"{kind} {name}" for kind, name in (*SAME_SUMS, *OTHER_PLANS))
    done = start("continuity_worker", str(folder), *(name for name in names if name not in needed))
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "continuity.json").read_text())
    return results


def resumed(runs: dict[str, Any], kind: str, name: str) -> tuple[list[float], list[float]]:
    """Losses after the stop, and those of the run that was not stopped."""
    run = runs[f"{kind} {name}"]
    assert set(run["exit_codes"]) == {0}, run["said"]
    assert run["steps"][0] == STOPPED_AFTER
    return run["losses"], runs[f"{kind} uninterrupted"]["losses"][STOPPED_AFTER:]


@pytest.mark.parametrize(("kind", "name"), cases(SAME_SUMS))
def test_the_loss_after_a_resume_with_the_same_sums_is_bit_equal(runs: dict[str, Any], kind: str, name: str) -> None:
    losses, expected = resumed(runs, kind, name)

    assert losses == expected


@pytest.mark.parametrize(("kind", "name"), cases(OTHER_PLANS))
def test_the_loss_after_a_resume_under_another_plan_goes_on(runs: dict[str, Any], kind: str, name: str) -> None:
    losses, expected = resumed(runs, kind, name)

    assert losses == pytest.approx(expected, abs=1e-6)


def test_a_run_that_saves_and_resumes_unpickles_nothing(runs: dict[str, Any]) -> None:
    run = runs["without pickle"]
    assert run["exit_codes"] == [0, 0, 0, 0], run["said"]
    assert run["steps"] == runs["fp32 two stages of two replicas"]["steps"]


def test_evaluation_is_every_second_step_and_goes_on_too(runs: dict[str, Any]) -> None:
    expected = runs["fp32 uninterrupted"]["eval_losses"]
    assert [loss is not None for loss in expected] == [False, True] * 3
    assert runs["fp32 other cut"]["eval_losses"] == expected[STOPPED_AFTER:]


def test_a_folder_with_a_checkpoint_is_not_written_over_by_another_run(runs: dict[str, Any]) -> None:
    run = runs["not resumed"]
    assert run["exit_codes"] == [1]
    assert "holds a checkpoint, step-00000003, and this run does not resume" in run["said"]


def test_a_checkpoint_of_another_model_is_refused(runs: dict[str, Any]) -> None:
    run = runs["other model"]
    assert run["exit_codes"] == [1]
    assert "is of another model: hidden_size: 32 then, 64 now" in run["said"]


def test_a_run_that_is_done_has_nothing_to_do(runs: dict[str, Any]) -> None:
    assert runs["done"]["exit_codes"] == [0], runs["done"]["said"]
    assert runs["done"]["steps"] == []


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint_whole(runs: dict[str, Any], folder: Path) -> None:
    run = runs["full disk"]
    assert set(run["exit_codes"]) == {1}
    assert "the checkpoint after 4 steps could not be written to" in run["said"]
    assert "File too large" in run["said"]
    assert (folder / "saved-refused" / "latest").read_text() == "step-00000003\n"
    assert (folder / "saved-refused" / "step-00000003" / ".metadata").exists()


def test_one_rank_asked_to_stop_ends_all_in_order_after_the_same_saved_step(runs: dict[str, Any], folder: Path) -> None:
    run = runs["asked to stop"]
    assert run["exit_codes"] == [0, 0, 0, 0], run["said"]
    assert (folder / "saved-asked" / "latest").read_text() == f"step-{run['steps'][-1] + 1:08d}\n"
    assert runs["after being asked"]["exit_codes"] == [0], runs["after being asked"]["said"]


def test_hosts_keep_the_same_best_checkpoint_under_another_plan_and_the_run_stops_early(
    runs: dict[str, Any], folder: Path
) -> None:
    first, stopped = runs["rising"], runs["early stop"]
    assert first["exit_codes"] == stopped["exit_codes"] == [0, 0], stopped["said"]
    losses: list[float] = first["eval_losses"] + stopped["eval_losses"]
    lowest, others = losses[0], losses[1:]
    assert len(others) == PATIENCE
    assert min(others) > lowest
    for host in ("host0", "host1"):
        steps = [name.steps for name in names_in(folder / "saved-rising" / host)]
        assert steps == [1, 1 + PATIENCE]
    reason = f"did not fall below {lowest:.4f} (step 1) in {PATIENCE} evaluations: stopped at step {1 + PATIENCE}; "
    assert reason in stopped["said"]
    assert f"/saved-rising/host0/step-00000001 (validation loss {lowest:.4f})" in stopped["said"]


def test_a_run_that_has_stopped_early_has_nothing_to_do(runs: dict[str, Any]) -> None:
    again = runs["stopped early"]
    assert (again["exit_codes"], again["steps"]) == ([0], []), again["said"]
    assert f"stopped at step {1 + PATIENCE}; the best checkpoint is " in again["said"]


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_kills_in_the_midst_of_saves_lose_nothing_that_was_saved(tmp_path: Path, kills: int) -> None:
    done = start("killed_saves", str(tmp_path), str(kills), "shared")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["in_midst"] == kills
    assert max(found["lost"]) <= 0  # below zero: a save that was under way became whole before the kill
    assert "latest" in found["left"]
