"""The best checkpoint by validation loss: kept in addition to the newest, as all that resume agree on it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.node.checkpoint_files.checkpoint_folder import names_in
from holmes_runtime.node.checkpoint_files.description import Counters, Description, Validated, describe, validated_after
from holmes_runtime.node.checkpoint_files.whole_checkpoints import before, best_of, found_in, offers_in, thin_best

from .test_checkpoint import config, going_back, make_shards, open_folder

pytestmark = pytest.mark.usefixtures("lone_group")
Losses = dict[int, float | None]


def save_on(checkpoints: Checkpoints, losses: Losses, before: Validated | None = None) -> None:
    """Save after the steps of `losses`; None: that step is not evaluated."""
    for steps, loss in losses.items():
        before = before if loss is None else validated_after(before, loss, steps)
        checkpoints.save(make_shards(steps), Counters(steps, steps, 1.0, 0, 8 * steps, validated=before))
    checkpoints.finish()


def save(folder: Path, losses: Losses, keep_last: int = 1) -> Checkpoints:
    """Start a run in the folder, or go on with it, and save."""
    checkpoints = open_folder(config(folder, resume=True, keep_last=keep_last))
    counters = checkpoints.load(make_shards(0))
    save_on(checkpoints, losses, counters.validated if counters else None)
    return checkpoints


def kept(folder: Path) -> list[int]:
    return [name.steps for name in names_in(folder)]


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        ({1: 3.0, 2: 2.0, 3: 2.5, 4: 2.6}, [2, 4]),
        ({1: 2.0, 2: 2.0, 3: 2.0}, [1, 3]),
        ({1: 3.0, 2: math.nan, 3: -math.inf, 4: 4.0}, [1, 4]),
        ({1: math.nan, 2: math.nan, 3: 5.0, 4: 6.0}, [3, 4]),
        ({1: 3.0, 2: None, 3: None}, [1, 3]),
        ({1: None, 2: None}, [2]),
        ({1: 3.0, 2: 2.0}, [2]),
    ],
    ids=["lowest", "first of equal ones", "not a number", "numbers after none", "not evaluated", "no loss", "newest"],
)
def test_the_lowest_loss_is_kept_with_the_newest(tmp_path: Path, losses: Losses, steps: list[int]) -> None:
    save(tmp_path, losses)

    assert kept(tmp_path) == steps


def test_the_best_counts_in_addition_to_those_kept(tmp_path: Path) -> None:
    save(tmp_path, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, keep_last=2)

    assert kept(tmp_path) == [1, 3, 4]


def test_a_run_that_goes_on_keeps_the_best_of_before_until_a_lower_loss_is_saved(tmp_path: Path) -> None:
    save(tmp_path, {1: 2.0, 2: 3.0})
    resumed = save(tmp_path, {3: 2.5})
    assert (kept(tmp_path), resumed.best) == ([1, 3], f"{tmp_path}/step-00000001 (validation loss 2.0000)")

    save(tmp_path, {4: 1.5, 5: 1.6})

    assert kept(tmp_path) == [4, 5]


def test_the_old_best_goes_only_once_the_new_one_is_whole(tmp_path: Path) -> None:
    save(tmp_path, {1: 2.0, 2: 3.0})
    checkpoints = open_folder(config(tmp_path, resume=True, keep_last=1))
    checkpoints.load(make_shards(0))
    (tmp_path / "step-00000003.partial").symlink_to(tmp_path)  # so that the save fails

    with pytest.raises(RuntimeError, match="after 3 steps could not be written"):
        save_on(checkpoints, {3: 1.0})

    assert kept(tmp_path) == [1, 2]


def test_going_back_leaves_a_later_best(tmp_path: Path) -> None:
    save(tmp_path, {1: 3.0, 2: 2.5, 3: 1.0}, keep_last=3)

    checkpoints = open_folder(going_back(tmp_path, 2))
    checkpoints.load(make_shards(0))

    assert checkpoints.best == f"{tmp_path}/step-00000002 (validation loss 2.5000)"


@pytest.mark.parametrize("name", ["checkpoint.json", "pieces.json"])
def test_a_damaged_best_is_told_and_the_best_of_the_others_taken(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, {1: 1.0, 2: 2.0, 3: 3.0}, keep_last=3)
    path = tmp_path / "step-00000001" / name
    path.write_text(path.read_text().replace("1", "0", 1))

    resumed = save(tmp_path, {4: 4.0})

    assert f"{path} " in capsys.readouterr().out.replace(":", " ")
    assert (kept(tmp_path), resumed.best) == ([2, 4], f"{tmp_path}/step-00000002 (validation loss 2.0000)")


def test_a_best_with_a_short_file_is_told_and_stays_until_a_better_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, {1: 1.0, 2: 2.0, 3: 3.0}, keep_last=3)
    file = next((tmp_path / "step-00000001").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-10])

    resumed = save(tmp_path, {4: 4.0, 5: 1.5})

    said = capsys.readouterr().out
    told = "checkpoint step-00000001 (validation loss 1.0000) is incomplete and no longer the best; its files here stay"
    assert told in said
    assert (kept(tmp_path), resumed.best) == ([1, 5], f"{tmp_path}/step-00000005 (validation loss 1.5000)")

    save(tmp_path, {6: 0.5})  # better than what is left of the first
    assert kept(tmp_path) == [6]


def test_a_best_that_one_folder_alone_still_has_is_told(tmp_path: Path) -> None:
    """Files count, whichever folders have them; checkpoints that are not the best do not."""
    save(tmp_path / "a", {1: 1.0, 2: 2.0})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folders = tmp_path / "a", tmp_path / "b"

    def said() -> str | None:
        return thin_best(found_in([offers_in(folder.name, folder) for folder in folders]), 2)

    assert said() is None
    next((tmp_path / "b" / "step-00000002").glob("*.distcp")).unlink()
    assert said() is None
    next((tmp_path / "b" / "step-00000001").glob("*.distcp")).unlink()
    assert "the best checkpoint, step-00000001, has fewer than 2 copies" in (said() or "")
    shutil.rmtree(tmp_path / "b" / "step-00000001")
    assert "step-00000001" in (said() or "")


def test_a_loss_that_the_resumed_run_never_had_is_of_another_branch(tmp_path: Path) -> None:
    save(tmp_path, {1: 3.0, 2: 1.0, 3: 2.5}, keep_last=3)
    found = found_in([offers_in("here", tmp_path)])

    seen = validated_after(validated_after(None, 3.0, 1), 2.4, 2)
    earlier = before(found, Counters(3, 3, 1.0, 0, 24, validated=seen))

    assert best_of(found) == (1.0, 2)
    assert best_of(earlier) == (2.5, 3)
    assert [each.offer.steps for each in before(found, Counters(1, 1, 1.0, 0, 8))] == [1]


def test_a_checkpoint_without_an_evaluation_is_described_as_before_there_were_any() -> None:
    text = describe(config(Path("/ck")), "digest", Counters(4, 4, 1.0, 0, 32)).to_json()
    assert "validated" not in text
    assert Description.parse(text, Path("c")).counters.validated is None


def described(**validated: Any) -> str:
    counters = Counters(4, 4, 1.0, 0, 32, validated=Validated(2.0, 4, 2.0, 4, 0))
    said = json.loads(describe(config(Path("/ck")), "digest", counters).to_json())
    said["counters"]["validated"] |= validated
    return json.dumps(said)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"loss": "low"}, "counters.validated.loss: expected float"),
        ({"loss": math.nan}, "numbers must be finite"),
        ({"lowest": 3.0}, "counters.validated.lowest: must be null, or at most loss 2.0"),
        ({"lowest": None}, "counters.validated.lowest: must be null, or at most"),
        ({"lowest_steps": 5}, "counters.validated.lowest_steps: must be at most steps 4"),
        ({"steps": 5}, "counters.validated.steps: must be at most steps 4"),
        ({"since_lowest": -1}, "counters.validated.since_lowest: must be 0 to"),
        ({"more": 1}, "counters.validated.more: unknown key"),
    ],
)
def test_a_loss_that_no_run_writes_is_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=rf"^checkpoint\.json does not describe a checkpoint: .*{fault}"):
        Description.parse(described(**change), Path("checkpoint.json"))


def test_a_checkpoint_from_before_losses_were_saved_is_read(tmp_path: Path) -> None:
    said = json.loads(described())
    del said["counters"]["validated"]

    assert Description.parse(json.dumps(said), tmp_path).counters.validated is None


def test_evaluations_without_a_lower_loss_are_counted() -> None:
    seen: Validated | None = None
    for steps, loss in enumerate((3.0, 2.0, 2.0, math.nan, 2.5), start=1):
        seen = validated_after(seen, loss, steps)

    assert seen == Validated(2.5, 5, 2.0, 2, 3)
