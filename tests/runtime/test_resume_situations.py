"""Starts that find any state of the checkpoint folder take the right checkpoint or say why not, and lose nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_metrics import NOTICES_FILE, RankNotice
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.config.strict_json import decode, parse
from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder
from holmes_runtime.node.checkpoint_files.description import (
    Counters,
    Description,
    changed_settings,
    describe,
    differences,
)
from holmes_runtime.node.checkpoint_files.piece_index import digest_of, index_text, read_index
from holmes_runtime.rank_notices import RankNotices
from holmes_runtime.train import first_weights
from tests.seeds import few_of

from .launched_runs import TINY, make_config
from .test_checkpoint import OWN, make_shards

pytestmark = pytest.mark.usefixtures("lone_group")

Change = Callable[[Path], object]
FRESH: Mapping[str, Any] = {}
RESUME = {"resume": True}
ANEW = {"resume": True, "from_scratch": True}
BACK = {"resume": True, "resume_step": 5}


def settings(folder: Path, **start: Any) -> RunConfig:
    plain = make_config(checkpoint=CheckpointSettings(str(folder), 5, 2, 2), model=OWN, steps=20)
    return replace(plain, **start)


def opened(settings: RunConfig, notices: Path) -> Checkpoints:
    return Checkpoints(settings, settings.grid.rank(0), "digest", RankNotices(notices, 0))


def said(notices: Path) -> list[RankNotice]:
    file = notices / NOTICES_FILE.format(rank=0)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [parse(RankNotice, line) for line in lines]


def saved(folder: Path) -> None:
    """Checkpoints after 5 and 10 steps."""
    checkpoints = opened(settings(folder, **ANEW), folder.parent / "saving")
    for steps in (5, 10):
        checkpoints.save(make_shards(steps), Counters(steps, steps, 1.0, 0, 8 * steps))
    checkpoints.finish()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `saved` leaves it, to be copied."""
    folder = tmp_path_factory.mktemp("whole") / "ck"
    saved(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def latest(text: str) -> Change:
    return lambda folder: (folder / "latest").write_text(text)


def made(name: str) -> Change:
    return lambda folder: (folder / name).mkdir()


def touched(name: str) -> Change:
    return lambda folder: (folder / name).touch()


def gone(name: str) -> Change:
    return lambda folder: shutil.rmtree(folder / name)


def moved(name: str, to: str) -> Change:
    return lambda folder: (folder / name).rename(folder / to)


def both(first: Change, second: Change) -> Change:
    def change(folder: Path) -> None:
        first(folder)
        second(folder)

    return change


def kept(*names: str) -> Change:
    """Only these are left of the folder, as after a copy of a part."""

    def change(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def other_shape(folder: Path) -> None:
    for step in ("step-00000005", "step-00000010"):
        file = folder / step / "checkpoint.json"
        description = json.loads(file.read_text())
        description["shape"]["hidden_size"] = 99
        file.write_text(json.dumps(description))
        index = replace(read_index(folder / step), description_digest=digest_of(file.read_bytes()))
        (folder / step / "pieces.json").write_text(index_text(index))


TO_CK = CheckpointSettings("/ck", 5, 2, 2)
TENSORS, NEWEST = "__0_0.distcp", "step-00000010"
NOTHING, REFUSED = "holds no checkpoint on host0", "holds a checkpoint, step-00000010, and this run does not resume"
UNREADABLE = f"{NEWEST} cannot be read.*--resume-step 5"
SITUATIONS: dict[str, tuple[Change | None, Mapping[str, Any], int | str | None]] = {
    # The folder as it was left; the start; the steps it goes on after, None for step 1, or why it is refused.
    "no folder, fresh": (None, FRESH, None),
    "no folder, resumed": (None, RESUME, NOTHING),
    "no folder, resumed or anew": (None, ANEW, None),
    "no folder, back": (None, BACK, "has no whole checkpoint of step 5; it has: none"),
    "empty folder, fresh": (kept(), FRESH, None),
    "empty folder, resumed": (kept(), RESUME, NOTHING),
    "empty folder, resumed or anew": (kept(), ANEW, None),
    "whole, fresh": (lambda _: None, FRESH, REFUSED),
    "whole, resumed": (lambda _: None, RESUME, 10),
    "whole, resumed or anew": (lambda _: None, ANEW, 10),
    "whole, back": (lambda _: None, BACK, 5),
    "no latest, fresh": (without("latest"), FRESH, REFUSED),
    "no latest, resumed": (without("latest"), RESUME, 10),
    "no latest, resumed or anew": (without("latest"), ANEW, 10),
    "no latest, back": (without("latest"), BACK, 5),
    "one step copied, fresh": (
        kept("step-00000005"),
        FRESH,
        "holds a checkpoint, step-00000005, and this run does not",
    ),
    "one step copied, resumed": (kept("step-00000005"), RESUME, 5),
    "only latest copied, resumed": (kept("latest"), RESUME, f"{NEWEST}, which latest there names, is missing"),
    "only latest copied, anew": (kept("latest"), ANEW, f"{NEWEST}, which latest there names, is missing"),
    "latest of the older, resumed": (latest("step-00000005\n"), RESUME, 5),
    "latest empty, resumed": (latest(""), RESUME, "cannot be read"),
    "latest empty, anew": (latest(""), ANEW, "cannot be read"),
    "latest elsewhere, resumed": (latest("../../etc/step-00000005"), RESUME, "latest does not name a checkpoint"),
    "latest of another name, resumed": (
        latest("passwd"),
        RESUME,
        "latest does not name a checkpoint: .*, got 'passwd'",
    ),
    "newest is a file, resumed": (both(gone(NEWEST), touched(NEWEST)), RESUME, UNREADABLE),
    "tensors gone, resumed": (without(f"{NEWEST}/{TENSORS}"), RESUME, UNREADABLE),
    "tensors gone, anew": (without(f"{NEWEST}/{TENSORS}"), ANEW, UNREADABLE),
    "tensors and latest gone, resumed": (
        both(without("latest"), without(f"{NEWEST}/{TENSORS}")),
        RESUME,
        UNREADABLE,
    ),
    "tensors gone, back": (without(f"{NEWEST}/{TENSORS}"), BACK, 5),
    "tensors cut, resumed": (cut(f"{NEWEST}/{TENSORS}"), RESUME, UNREADABLE),
    "description gone, resumed": (without(f"{NEWEST}/checkpoint.json"), RESUME, UNREADABLE),
    "index cut, resumed": (cut(f"{NEWEST}/pieces.json"), RESUME, UNREADABLE),
    "another model, resumed": (other_shape, RESUME, "is of another model: hidden_size: 99 then"),
    "half written, too, resumed": (made("step-00000015.partial"), RESUME, 10),
    "only half written, resumed": (both(kept(), made("step-00000005.partial")), RESUME, NOTHING),
    "only half written, fresh": (both(kept(), made("step-00000005.partial")), FRESH, None),
    "strangers, too, resumed": (both(made("step-final"), touched("notes.txt")), RESUME, 10),
    "only strangers, resumed": (both(kept(), made("step-final")), RESUME, NOTHING),
    "set aside, resumed": (both(moved(NEWEST, f"{NEWEST}.aside-1"), without("latest")), RESUME, 5),
}


@pytest.mark.parametrize("name", few_of(8, SITUATIONS))
def test_a_start_takes_the_right_checkpoint_or_says_why_not(name: str, whole: Path, tmp_path: Path) -> None:
    change, start, expected = SITUATIONS[name]
    folder, notices = tmp_path / "ck", tmp_path / "notices"
    if change is not None:
        shutil.copytree(whole, folder)
        change(folder)
    before = contents(folder)

    if isinstance(expected, str):
        with pytest.raises(RuntimeError, match=f"(?s){expected}"):
            opened(settings(folder, **start), notices).load(make_shards(0))
        assert [notice for notice in said(notices) if notice.topic == "start"] == []
    else:
        counters = opened(settings(folder, **start), notices).load(make_shards(0))
        assert (counters.steps if counters else None) == expected
        sentence = f"resumed after step {expected} of 20 from {folder}/step-{expected or 0:08d}"
        begun = [RankNotice(0, "start", sentence, expected)] if expected is not None else []
        assert [notice for notice in said(notices) if notice.topic == "start"] == begun
    after = contents(folder)
    moved = {name.replace(NEWEST, f"{NEWEST}.aside-1") for name in before} if start is BACK else set()
    assert {name for name in before if name != "latest"} <= set(after) | {
        name.replace(".aside-1", "") for name in moved
    }
    assert all(after[name] == content for name, content in before.items() if name in after and name != "latest")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "starting at step 1 with random weights; the job saves no checkpoints"),
        ({"weights": "/models/x"}, "starting at step 1 with the weights of /models/x; the job saves no checkpoints"),
        (
            {"checkpoint": CheckpointSettings("/ck", 5, 2, 2)},
            "starting at step 1 with random weights; checkpoints go to /ck",
        ),
        (
            {"checkpoint": CheckpointSettings("/ck", 5, 2, 2), **ANEW},
            "no checkpoint in /ck: starting at step 1 with random weights",
        ),
    ],
)
def test_a_start_without_a_checkpoint_says_what_it_begins_from(change: dict[str, Any], sentence: str) -> None:
    assert first_weights(replace(make_config(), **change)) == sentence


def test_two_runs_that_save_into_one_folder_do_not_remove_each_others(tmp_path: Path) -> None:
    first, second = (opened(settings(tmp_path / "ck"), tmp_path / name) for name in ("first", "second"))
    first.save(make_shards(5), Counters(5, 5, 1.0, 0, 40))
    first.finish()
    before = contents(tmp_path / "ck")

    second.save(make_shards(5), Counters(5, 5, 1.0, 0, 40))
    with pytest.raises(RuntimeError, match="step-00000005 was saved there by another run since this one began"):
        second.finish()

    assert contents(tmp_path / "ck").items() >= before.items()
    first.save(make_shards(10), Counters(10, 10, 1.0, 0, 80))
    first.finish()


def test_each_whole_checkpoint_is_said_with_its_steps(tmp_path: Path) -> None:
    saved(tmp_path / "ck")
    wholes = [(notice.topic, notice.safe_steps) for notice in said(tmp_path / "saving")]
    assert wholes == [("saved", 5), ("saved", 10)]


@pytest.mark.parametrize(
    ("change", "words"),
    few_of(
        2,
        [
            ({"seed": 8}, ["seed: 7 then, 8 now"]),
            ({"steps": 40}, ["steps: 20 then, 40 now"]),
            ({"value_type": "bf16"}, ["precision: fp32 then, bf16 now"]),
            ({"lossiest_codec": "int8"}, ["wire.edges: int4 then, int8 now"]),
            (
                {"learning_rate": 0.02},
                ["learning_rate: 0.01 then, 0.02 now", "step 11 jumps: 0.01 then, 0.02 now"],
            ),
            ({"decay": "cosine"}, ["optimizer.decay: constant then, cosine now", "the learning rate of step 11 jumps"]),
            ({}, []),
        ],
    ),
)
def test_settings_that_changed_since_are_named(
    change: dict[str, Any], words: list[str], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "ck")
    now = settings(tmp_path / "ck", **RESUME)
    of_optimizer = {key: value for key, value in change.items() if hasattr(now.optimizer, key)}
    others = {key: value for key, value in change.items() if key not in of_optimizer}
    now = replace(now, optimizer=replace(now.optimizer, **of_optimizer), **others)

    opened(now, tmp_path / "notices").load(make_shards(0))

    warnings = [notice.sentence for notice in said(tmp_path / "notices") if notice.topic == "warning"]
    assert len(warnings) == (1 if words else 0)
    assert all(word in sentence for sentence in warnings for word in words)


def test_a_cosine_that_is_given_more_steps_says_that_its_rate_jumps(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    plain = settings(folder, **ANEW)
    cosine = replace(plain, steps=10, optimizer=replace(plain.optimizer, decay="cosine"))
    checkpoints = opened(cosine, tmp_path / "saving")
    checkpoints.save(make_shards(5), Counters(5, 5, 1.0, 0, 40))
    checkpoints.finish()

    opened(replace(cosine, steps=20), tmp_path / "notices").load(make_shards(0))

    (warning,) = [notice.sentence for notice in said(tmp_path / "notices") if notice.topic == "warning"]
    assert warning.endswith("the learning rate of step 6 jumps: 0.00413 then, 0.00839 now")


def test_names_that_are_no_checkpoints_are_never_pruned(tmp_path: Path) -> None:
    saved(tmp_path / "ck")
    (tmp_path / "ck" / "step-final").mkdir()
    CheckpointFolder(tmp_path / "ck", keep_last=1).remove_old(10)
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == ["latest", NEWEST, "step-final"]


def test_a_shape_is_described_in_full_and_equals_one_described_before_models_had_presets() -> None:
    config = make_config(model=replace(TINY, num_kv_heads=None, ffn_hidden_size=None, head_dim=8))
    shape = describe(config, "digest", Counters(5, 5, 1.0, 0, 40)).shape

    assert (shape["num_kv_heads"], shape["ffn_hidden_size"], shape["head_dim"]) == (4, 128, None)
    earlier = {key: value for key, value in shape.items() if key != "preset"}
    assert differences(earlier, shape) == []
    assert decode(ModelShape, {"preset": None, **earlier}, "shape") == config.model.in_full


def test_a_checkpoint_saved_before_a_key_came_is_of_the_model_without_it(tmp_path: Path) -> None:
    """Keys of the shape or the optimizer that came later are taken at their defaults; other values still differ."""
    now = describe(make_config(), "digest", Counters(5, 5, 1.0, 0, 40))
    written = json.loads(now.to_json())
    for key in ("normalized_routing", "shared_experts", "experts", "first_dense_layers"):
        del written["shape"][key]
    del written["trained_with"]["optimizer"]["router_balance"]
    earlier = Description.parse(json.dumps(written), tmp_path)
    assert differences(earlier.shape, now.shape) == []
    assert changed_settings(earlier, now) == []
    assert differences(earlier.shape, now.shape | {"num_layers": 9}) == ["num_layers: 3 then, 9 now"]
