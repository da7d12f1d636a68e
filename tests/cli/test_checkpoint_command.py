"""`holmes checkpoint`: what the folders of several hosts hold, checked byte by byte, and put together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.node.checkpoint_files.checkpoint_folder import CheckpointFolder
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.description import (
    FORMAT_VERSION,
    Counters,
    Description,
    Origin,
    OuterCounters,
    Validated,
)
from holmes_runtime.node.checkpoint_files.piece_index import (
    PieceFile,
    PieceIndex,
    WrittenBox,
    WrittenTensor,
    digest_of,
    index_text,
)
from tests.cli.conftest import Command

DESCRIPTION = Description(
    FORMAT_VERSION, Counters(1, 1, 1.0, 0, 8), "fp32", {}, {"global_batch_size": 8}, Origin(None, None)
).to_json()
FIRST, SECOND = PieceName("__0_0.distcp"), PieceName("__1_0.distcp")
CONTENT = {FIRST: b"first rank", SECOND: b"second"}
HOSTS = {FIRST: ("a1", "b1"), SECOND: ("b1", "a1")}


def save(
    folder: Path, steps: int, *names: str, run: str = "begun", save_id: str = "one", description: str = DESCRIPTION
) -> Path:
    """A checkpoint in a folder that holds those of its two files; its path."""
    boxes = [
        WrittenBox((at,), (1,), name, 0, len(CONTENT[name]), digest_of(CONTENT[name]))
        for at, name in enumerate(CONTENT)
    ]
    files = tuple(PieceFile(name, int(name[2]), len(content), HOSTS[name]) for name, content in CONTENT.items())
    tensors = (WrittenTensor("weight/w", (2,), tuple(boxes)),)
    saved = (SaveId(digest_of(f"{save_id}-{steps}".encode())), run, 1, steps, digest_of(description.encode()))
    index = PieceIndex(1, *saved, files, tensors)
    target = CheckpointFolder(folder, keep_last=9)
    target.make_ready()
    partial = target.partial(steps)
    partial.mkdir()
    for name in map(PieceName, names):
        (partial / name).write_bytes(CONTENT[name])
    (partial / "checkpoint.json").write_text(description)
    (partial / "pieces.json").write_text(index_text(index))
    (partial / ".metadata").write_text("torch's")
    target.publish(steps)
    return folder / f"step-{steps:08d}"


def rows(stdout: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines() if line.startswith("│")]


def test_a_checkpoint_of_an_older_form_is_not_called_whole(tmp_path: Path, command: Command) -> None:
    older = DESCRIPTION.replace(f'"format_version": {FORMAT_VERSION}', '"format_version": 1')
    save(tmp_path / "a1", 10, "__0_0.distcp", "__1_0.distcp", description=older)

    for what in (("list", "a1"), ("verify", "a1"), ("gather", "a1", "-o", "whole")):
        done = command("checkpoint", *what)
        assert done.code != 0
        assert f"format_version 1, this Holmes reads {FORMAT_VERSION}" in done.stdout + done.stderr
    assert not (tmp_path / "whole").exists()


def test_folders_that_hold_a_checkpoint_together_are_told_as_one(tmp_path: Path, command: Command) -> None:
    save(tmp_path / "a1", 10, "__0_0.distcp")
    save(tmp_path / "b1", 10, "__1_0.distcp")

    both = command("checkpoint", "list", "a1", "b1")
    one = command("checkpoint", "list", "a1")

    assert (both.code, one.code) == (0, 1)
    assert rows(both.stdout) == [["step-00000010", "1", "2 of 2", "16 B", "yes"]]
    assert rows(one.stdout) == [["step-00000010", "1", "1 of 2", "16 B", "no"]]
    assert "step-00000010: __1_0.distcp is in none of these folders; it was on b1, a1" in one.stdout


def test_whose_weights_an_island_has_saved_is_said_of_each_checkpoint(tmp_path: Path, command: Command) -> None:
    for steps, outer in (
        (10, OuterCounters(3, "lineage", (8, 10), (0, 2))),
        (20, OuterCounters(8, "lineage", (20, 20), (0, 1, 2), are_common=True)),
        (30, None),
    ):
        counters = Counters(steps, steps, 1.0, 0, 8 * steps, outer=outer)
        saved = Description(FORMAT_VERSION, counters, "fp32", {}, {"global_batch_size": 8}, Origin(None, None))
        save(tmp_path / "island", steps, *CONTENT, description=saved.to_json())

    done = command("checkpoint", "list", "island")

    assert done.code == 0
    said = [line for line in done.stdout.splitlines() if line.startswith("step-")]
    assert said == [
        "step-00000020: the common model after exchange 8, the last, of islands 0, 1, 2",
        "step-00000010: one island's own weights since exchange 3 with islands 0, 2: those of the others differ",
    ]


def save_with_losses(folder: Path, losses: dict[int, float | None]) -> None:
    for steps, loss in losses.items():
        validated = None if loss is None else Validated(loss, steps, loss, steps, 0)
        counters = Counters(steps, steps, 1.0, 0, 8 * steps, validated=validated)
        saved = Description(FORMAT_VERSION, counters, "fp32", {}, {"global_batch_size": 8}, Origin(None, None))
        save(folder, steps, *CONTENT, description=saved.to_json())


def test_the_best_by_validation_is_marked_and_gathered(tmp_path: Path, command: Command) -> None:
    save_with_losses(tmp_path / "a1", {10: 2.0, 20: 1.5, 30: 1.75, 40: None})

    listed = command("checkpoint", "list", "a1")
    gathered = command("checkpoint", "gather", "a1", "-o", "whole", "--best")

    assert [row[4] for row in rows(listed.stdout)] == ["-", "1.7500", "1.5000 (best)", "2.0000"]
    assert (listed.code, gathered.code) == (0, 0)
    assert (tmp_path / "whole" / "latest").read_text() == "step-00000020\n"


def test_a_best_that_is_not_whole_is_not_marked_nor_gathered(tmp_path: Path, command: Command) -> None:
    save_with_losses(tmp_path / "a1", {10: 2.0, 20: 1.5})
    (tmp_path / "a1" / "step-00000020" / FIRST).unlink()

    assert [row[4] for row in rows(command("checkpoint", "list", "a1").stdout)] == ["1.5000", "2.0000 (best)"]
    assert command("checkpoint", "gather", "a1", "-o", "whole", "--best").code == 0
    assert (tmp_path / "whole" / "latest").read_text() == "step-00000010\n"


def test_a_best_is_not_gathered_where_no_checkpoint_has_a_loss(tmp_path: Path, command: Command) -> None:
    save_with_losses(tmp_path / "a1", {10: None})

    done = command("checkpoint", "gather", "a1", "-o", "whole", "--best")

    assert done.code == 1
    assert "no whole checkpoint in these folders has a validation loss" in done.stderr
    assert command("checkpoint", "list", "a1", "--best").code == 2


def test_every_file_that_is_not_as_it_was_written_is_named(tmp_path: Path, command: Command) -> None:
    kept = save(tmp_path / "a1", 10, *CONTENT)
    assert command("checkpoint", "verify", "a1").code == 0

    (kept / "__0_0.distcp").write_bytes(b"first rAnk")
    done = command("checkpoint", "verify", "a1")

    assert done.code == 1
    assert "a1/step-00000010/__0_0.distcp: bytes 0 to 9 are not those that were written" in done.stdout


def test_the_newest_that_is_whole_becomes_one_folder_of_sound_files(tmp_path: Path, command: Command) -> None:
    save(tmp_path / "a1", 10, *CONTENT)
    newest = save(tmp_path / "a1", 20, *CONTENT)
    save(tmp_path / "b1", 20, *CONTENT)
    save(tmp_path / "b1", 30, "__1_0.distcp")
    (newest / "__1_0.distcp").write_bytes(b"sEcond")

    done = command("checkpoint", "gather", "a1", "b1", "-o", "one")

    assert done.code == 0
    assert (tmp_path / "one" / "latest").read_text() == "step-00000020\n"
    assert {name: (tmp_path / "one" / "step-00000020" / name).read_bytes() for name in CONTENT} == CONTENT
    assert command("checkpoint", "verify", "one").code == 0


def test_nothing_is_left_where_no_folder_has_a_file_as_it_was_written(tmp_path: Path, command: Command) -> None:
    kept = save(tmp_path / "a1", 10, *CONTENT)
    (kept / "__1_0.distcp").write_bytes(b"sEcond")

    done = command("checkpoint", "gather", "a1", "-o", "one")

    assert done.code == 1
    assert "no folder has __1_0.distcp as it was written" in done.stderr
    assert "add the folder of another host that had it: b1, a1" in done.stderr
    assert list((tmp_path / "one").iterdir()) == []


def test_folders_of_different_runs_are_not_put_together(tmp_path: Path, command: Command) -> None:
    save(tmp_path / "a1", 10, *CONTENT)
    save(tmp_path / "b1", 10, *CONTENT, run="other", save_id="two")

    done = command("checkpoint", "list", "a1", "b1")

    assert done.code == 2
    assert "checkpoints of different runs: " in done.stderr
    assert "b1 of run other" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "nowhere"), "nowhere is not a folder"),
        (("list", "a1", "-o", "one"), "--output is for gather and export"),
        (("list", "a1", "--merge"), "--published and --merge are for export"),
        (("export", "a1"), "--output is for gather and export, which need it"),
        (("export", "a1", "a1", "-o", "one"), "reads one folder, but 2 are named"),
        (("export", "a1", "-o", "one"), "export: "),
        (("gather", "a1"), "--output is for gather and export, which need it"),
        (("gather", "a1", "-o", "a1"), "--output a1 exists and is not empty"),
    ],
)
def test_wrong_usage_touches_nothing(tmp_path: Path, command: Command, words: tuple[str, ...], said: str) -> None:
    save(tmp_path / "a1", 10, *CONTENT)

    done = command("checkpoint", *words)

    assert done.code == 2
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a1"]


SECRET = b"the key of whoever runs this"


def hostile_index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change `pieces.json`, whose digest is made anew."""

    def rewrite(step: Path) -> None:
        index = json.loads((step / "pieces.json").read_text())["index"]
        change(index)
        digest = digest_of(json.dumps(index).encode())
        (step / "pieces.json").write_text(json.dumps({"digest": digest, "index": index}))

    return rewrite


def first_box(**changes: object) -> Callable[[Path], None]:
    return hostile_index(lambda index: index["tensors"][0]["boxes"][0].update(changes))


def other_file(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else in the place of a file of the checkpoint."""

    def replace(step: Path) -> None:
        path = step / name
        path.unlink()
        make(path)

    return replace


def link_to_secret(path: Path) -> None:
    secret = path.parents[2] / "id_rsa"
    secret.write_bytes(SECRET)
    path.symlink_to(secret)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "pieces.json is a pipe": other_file("pieces.json", os.mkfifo),
    "a piece is a pipe": other_file(FIRST, os.mkfifo),
    "a piece is a link": other_file(FIRST, link_to_secret),
    "pieces.json is a link": other_file("pieces.json", link_to_secret),
    "a box of 10^12 bytes": first_box(size_bytes=10**12),
    "a box of 2^62 bytes": first_box(size_bytes=2**62),
    "a box of -1 bytes": first_box(size_bytes=-1),
    "a box from byte 2^70 on": first_box(first_byte=2**70),
    "a file outside": first_box(file="../../id_rsa"),
    "a name with NUL": first_box(file="__0_0.distcp\0"),
    "10^300 steps": hostile_index(lambda index: index.update(steps=10**300)),
    "other steps": hostile_index(lambda index: index.update(steps=11)),
    "deep": lambda step: (step / "pieces.json").write_text("[" * 200_000),
    "a long latest": lambda step: (step.parent / "latest").write_bytes(b"a" * 1_000_000),
    "latest is no text": lambda step: (step.parent / "latest").write_bytes(b"\xff" * 8),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("action", ["list", "verify", "gather"])
def test_a_folder_that_no_run_leaves_is_refused_in_a_sentence(
    tmp_path: Path, command: Command, name: str, action: str
) -> None:
    HOSTILE[name](save(tmp_path / "a1", 10, *CONTENT))

    done = command("checkpoint", action, "a1", *(("-o", "one") if action == "gather" else ()))

    assert done.code == 1
    assert "a1/" in done.stdout + done.stderr
    assert len(done.stdout + done.stderr) < 3000
    assert not any(SECRET in path.read_bytes() for path in tmp_path.glob("one/**/*") if path.is_file())


def test_a_link_in_the_place_of_torchs_metadata_is_not_followed(tmp_path: Path, command: Command) -> None:
    other_file(".metadata", link_to_secret)(save(tmp_path / "a1", 10, *CONTENT))

    done = command("checkpoint", "gather", "a1", "-o", "one")

    assert done.code == 1
    assert ".metadata" in done.stderr
    assert list((tmp_path / "one").iterdir()) == []


def test_folders_that_describe_one_save_otherwise_are_two(tmp_path: Path, command: Command) -> None:
    save(tmp_path / "a1", 10, FIRST)
    hostile_index(lambda index: index["files"][1].update(hosts=["c1"]))(save(tmp_path / "b1", 10, SECOND))

    done = command("checkpoint", "list", "a1", "b1")

    assert done.code == 1
    assert [row[2] for row in rows(done.stdout)] == ["1 of 2", "1 of 2"]


def test_a_folder_without_a_checkpoint_is_told(tmp_path: Path, command: Command) -> None:
    (tmp_path / "empty").mkdir()

    done = command("checkpoint", "list", "empty")

    assert done.code == 1
    assert "empty: no checkpoint there" in done.stderr
