"""Checkpoints of one process: what is read, what is refused, what is exported. Resuming is in test_continuity.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.checkpoint.snapshot import Snapshot
from holmes_runtime.checkpoint.tensor_piece import TensorPiece, pieces_of
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.export import export, main
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.node.checkpoint_files.description import Counters, Description, describe, differences
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.rank_notices import RankNotices

from .launched_runs import TINY, make_config

pytestmark = pytest.mark.usefixtures("lone_group")
OWN = replace(TINY, factory="own.py:build")
SHAPES = {"head.weight": (5, 3), "norm.bias": (4,)}


def config(
    folder: Path, resume: bool = False, keep_last: int = 2, value_type: str = "fp32", from_scratch: bool = True
) -> RunConfig:
    return make_config(
        checkpoint=CheckpointSettings(str(folder), 1, keep_last, 2),
        resume=resume,
        from_scratch=from_scratch,
        value_type=value_type,  # type: ignore[arg-type]
        model=OWN,
    )


def open_folder(settings: RunConfig) -> Checkpoints:
    assert settings.checkpoint is not None
    notices = RankNotices(Path(settings.checkpoint.path).parent / "notices", 0)
    return Checkpoints(settings, settings.grid.rank(0), "digest", notices)


def make_shards(start: int) -> list[Shard]:
    """All of each tensor, counted up from `start` in steps of one."""
    shards = []
    for name, shape in SHAPES.items():
        size = torch.Size(shape).numel()
        values = (torch.arange(size, dtype=torch.float32) + start for _ in range(5))
        shards.append(Shard(name, TensorPart(shape, (0,) * len(shape), shape), 0, size, *values))
    return shards


def save(folder: Path, *steps: int, keep_last: int = 2, value_type: str = "fp32") -> None:
    checkpoints = open_folder(config(folder, resume=True, keep_last=keep_last, value_type=value_type))
    for step in steps:
        checkpoints.save(make_shards(step), Counters(step, step, 1.0, 0, 8 * step))
    checkpoints.finish()


def test_what_is_changed_once_the_state_is_copied_is_not_saved(tmp_path: Path) -> None:
    checkpoints, shards = open_folder(config(tmp_path)), make_shards(7)
    checkpoints.save(shards, Counters(7, 6, 2.0, 3, 56))
    checkpoints.await_copy()
    for shard in shards:
        shard.master.zero_()
    checkpoints.finish()

    loaded = make_shards(0)
    counters = open_folder(config(tmp_path, resume=True)).load(loaded)

    assert counters == Counters(7, 6, 2.0, 3, 56)
    assert all(torch.equal(one.master, other.master) for one, other in zip(loaded, make_shards(7), strict=True))


def test_links_in_the_place_of_what_is_written_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "profile").write_text("mine")
    checkpoints = open_folder(config(tmp_path / "ck"))
    (tmp_path / "ck" / "step-00000001.partial").mkdir()
    (tmp_path / "ck" / "step-00000001.partial" / "__0_0.distcp").symlink_to(victim / "profile")
    (tmp_path / "ck" / "latest.partial").symlink_to(victim / "profile")
    (tmp_path / "ck" / "step-00000002.partial").symlink_to(victim)

    checkpoints.save(make_shards(1), Counters(1, 1, 1.0, 0, 8))
    checkpoints.finish()
    checkpoints.save(make_shards(2), Counters(2, 2, 1.0, 0, 16))
    with pytest.raises(RuntimeError, match=r"step-00000002\.partial is a link"):
        checkpoints.finish()

    assert [(path.name, path.read_text()) for path in victim.iterdir()] == [("profile", "mine")]


def taken(snapshot: Snapshot, pieces: dict[str, TensorPiece]) -> dict[str, TensorPiece]:
    snapshot.start(pieces)
    return snapshot.finish()


def test_a_snapshot_is_taken_into_the_memory_of_the_one_before() -> None:
    shards, snapshot = make_shards(1), Snapshot()
    first = taken(snapshot, pieces_of(shards))
    for shard in shards:
        shard.master.fill_(9.0)

    second = taken(snapshot, pieces_of(shards))

    assert [piece.values.data_ptr() for piece in first.values()] == [
        piece.values.data_ptr() for piece in second.values()
    ]
    assert torch.equal(second["weight/norm.bias"].values, torch.full((4,), 9.0))


def test_every_box_of_a_snapshot_is_all_of_its_storage_so_that_torch_writes_it_without_a_copy() -> None:
    piece = TensorPiece(torch.arange(13.0), TensorPart((4, 5), (0, 0), (4, 5)), 3, 16)

    chunks = taken(Snapshot(), {"weight": piece})["weight"].chunks()

    assert [chunk for chunk, _ in chunks] == [chunk for chunk, _ in piece.chunks()]
    for (_, copy), (_, values) in zip(chunks, piece.chunks(), strict=True):
        assert torch.equal(copy, values)
        assert copy.untyped_storage().nbytes() == copy.nbytes


def test_the_last_ones_are_kept_and_latest_names_the_newest(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 10, 11, keep_last=3)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", *(f"step-{n:08d}" for n in (2, 10, 11))]
    assert (tmp_path / "latest").read_text() == "step-00000011\n"


def test_what_a_kill_left_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000002.partial").mkdir()

    open_folder(config(tmp_path, resume=True))

    assert not (tmp_path / "step-00000002.partial").exists()


def test_whatever_rank_0_fails_at_last_all_ranks_are_told(tmp_path: Path) -> None:
    class NoNumber:
        def __gt__(self, _: object) -> bool:
            return True

    checkpoints = open_folder(config(tmp_path))
    no_number: Any = NoNumber()  # which JSON cannot hold
    checkpoints.save(make_shards(1), Counters(1, 1, no_number, 0, 8))

    with pytest.raises(RuntimeError, match=r"after 1 steps could not be written .*: host host0, rank 0: TypeError"):
        checkpoints.finish()


def test_without_a_checkpoint_a_resume_starts_from_the_beginning(tmp_path: Path) -> None:
    assert open_folder(config(tmp_path / "new", resume=True)).load(make_shards(0)) is None


def test_a_checkpoint_without_an_index_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / "pieces.json").unlink()

    with pytest.raises(RuntimeError, match=r"/step-00000001/pieces\.json is missing: .* no checkpoint, or from before"):
        open_folder(config(tmp_path, resume=True)).load(make_shards(0))


@pytest.mark.parametrize("change", [{"format_version": 1}, {"counters": {}}, {"origin": None}])
def test_a_description_of_another_form_is_refused(change: dict[str, Any]) -> None:
    described = json.loads(describe(config(Path("/ck")), "digest", Counters(1, 1, 1.0, 0, 8)).to_json())

    with pytest.raises(ValueError, match=rf"^checkpoint\.json does not describe a checkpoint: .*{next(iter(change))}"):
        Description.parse(json.dumps({**described, **change}), Path("checkpoint.json"))


def test_a_broken_tensor_file_is_an_error_that_names_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = next((tmp_path / "step-00000001").glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:100])

    with pytest.raises(RuntimeError, match=r"step-00000001 cannot be read: .*/__0_0\.distcp has 100 of \d+ bytes"):
        open_folder(config(tmp_path, resume=True)).load(make_shards(0))


def test_a_bit_that_has_changed_is_told_with_its_file_and_place(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = next((tmp_path / "step-00000001").glob("*.distcp"))
    flip(path, path.stat().st_size // 2)

    with pytest.raises(RuntimeError, match=r"step-00000001/__0_0\.distcp: bytes \d+ to \d+ are not those that were"):
        open_folder(config(tmp_path, resume=True)).load(make_shards(0))


@pytest.mark.parametrize("name", ["pieces.json", "checkpoint.json"])
def test_a_bit_that_has_changed_in_what_describes_a_checkpoint_is_told(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    path = tmp_path / "step-00000001" / name
    path.write_text(path.read_text().replace('"steps": 1', '"steps": 3'))

    with pytest.raises(RuntimeError, match=rf"step-00000001/{name}.* is not as it was written"):
        open_folder(config(tmp_path, resume=True)).load(make_shards(0))


def flip(path: Path, position: int) -> None:
    """One bit of the byte at `position`."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_broken_newest_checkpoint_is_told_with_the_one_before_and_how_to_take_it(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    path = next((tmp_path / "step-00000002").glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RuntimeError, match="to go on from step-00000001: holmes launch --resume-step 1"):
        open_folder(config(tmp_path, resume=True)).load(make_shards(0))

    counters = open_folder(going_back(tmp_path, 1)).load(make_shards(0))

    assert counters is not None
    assert counters.steps == 1


def going_back(folder: Path, steps: int) -> RunConfig:
    return replace(config(folder, resume=True), resume_step=steps)


def test_the_checkpoint_that_a_run_goes_back_to_is_the_newest_until_it_saves_again(tmp_path: Path) -> None:
    save(tmp_path, 1, 3, 5, keep_last=3)
    assert open_folder(going_back(tmp_path, 3)).load(make_shards(0)) is not None
    restarted, shards = open_folder(config(tmp_path, resume=True, keep_last=2)), make_shards(0)

    assert restarted.load(shards) == Counters(3, 3, 1.0, 0, 24)
    assert all(torch.equal(one.master, other.master) for one, other in zip(shards, make_shards(3), strict=True))

    restarted.save(make_shards(40), Counters(4, 4, 1.0, 0, 32))
    restarted.save(make_shards(60), Counters(6, 6, 1.0, 0, 48))
    restarted.finish()
    counters = open_folder(config(tmp_path, resume=True)).load(shards)
    assert counters is not None
    assert counters.steps == 6
    names = {path.name for path in tmp_path.glob("step-*")}  # what was left counts no more, and is not lost
    assert names == {"step-00000004", "step-00000006", "step-00000005.aside-1"}


def test_going_back_to_what_cannot_be_loaded_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    path = next((tmp_path / "step-00000001").glob("*.distcp"))
    flip(path, path.stat().st_size // 2)
    with pytest.raises(RuntimeError, match=r"step-00000001 cannot be read: .*step-00000001/__0_0\.distcp: bytes "):
        open_folder(going_back(tmp_path, 1)).load(make_shards(0))
    counters = open_folder(config(tmp_path, resume=True)).load(make_shards(0))
    assert counters is not None
    assert counters.steps == 2


def test_a_checkpoint_left_twice_is_set_aside_twice(tmp_path: Path) -> None:
    for _ in range(2):
        save(tmp_path, 1, 2)
        open_folder(going_back(tmp_path, 1)).load(make_shards(0))
    assert {path.name for path in tmp_path.glob("*.aside-*")} == {f"step-00000002.aside-{number}" for number in (1, 2)}


def test_a_checkpoint_that_is_not_there_or_not_whole_is_not_gone_back_to(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, keep_last=3)
    path = next((tmp_path / "step-00000002").glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:100])
    for steps in (2, 7):
        with pytest.raises(RuntimeError, match=f"of step {steps}; it has: step-00000001, step-00000003$"):
            open_folder(going_back(tmp_path, steps))
    counters = open_folder(config(tmp_path, resume=True)).load(make_shards(0))
    assert counters is not None
    assert counters.steps == 3


def test_differences_name_key_and_both_values() -> None:
    assert differences({"seed": 1, "same": 2}, {"seed": 3, "same": 2}) == ["seed: 1 then, 3 now"]


@pytest.mark.parametrize(
    ("value_type", "name", "dtype"), [("fp32", "F32", torch.float32), ("bf16", "BF16", torch.bfloat16)]
)
def test_the_export_of_a_model_of_one_s_own_keeps_its_names(
    tmp_path: Path, value_type: str, name: str, dtype: torch.dtype
) -> None:
    save(tmp_path / "saved", 1, 2, value_type=value_type)

    assert export(tmp_path / "saved", tmp_path / "out") == 2

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    content = (tmp_path / "out" / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    assert {key: tuple(entry["shape"]) for key, entry in header.items()} == SHAPES
    for shard in make_shards(2):
        entry = header[shard.name]
        assert entry["dtype"] == name
        begin, stop = (8 + length + offset for offset in entry["data_offsets"])
        found = torch.frombuffer(bytearray(content[begin:stop]), dtype=dtype)
        assert torch.equal(found, shard.master.to(dtype))
    assert stop == len(content) or shard.name != list(header)[-1]


def test_exporting_what_is_no_checkpoint_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["export", str(tmp_path), str(tmp_path / "out")])

    assert main() == 2
    assert "checkpoint.json does not describe a checkpoint" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
