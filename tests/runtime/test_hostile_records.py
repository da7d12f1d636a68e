"""Records that came from a peer or a file: whatever it says, a name is a plain one and a number is in its bounds."""

from __future__ import annotations

import dataclasses
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.checkpoint.checkpoint_writer import check_written_by
from holmes_runtime.checkpoint.host_folders import FolderMark
from holmes_runtime.checkpoint.piece_loading import PieceRequests, Request
from holmes_runtime.config.islands.roster import Arrival, Roster, SyncPoint
from holmes_runtime.config.strict_json import parse, to_json
from holmes_runtime.node.checkpoint_files.checkpoint_names import CheckpointName, PieceName, SaveId
from holmes_runtime.node.checkpoint_files.piece_index import (
    MAX_SIZE,
    DamagedPiece,
    Merged,
    PieceFile,
    PieceIndex,
    ReadIndex,
    Written,
    WrittenBox,
    WrittenTensor,
    read_box,
)
from holmes_runtime.node.checkpoint_files.whole_checkpoints import FolderCheckpoint, Offers
from holmes_runtime.outer.lanes import FlatSlice, ShardLayout
from holmes_runtime.outer.rendezvous import Rendezvous
from tests.hostile_checkpoints import NAMES, NUMBERS, leaves
from tests.runtime.launched_runs import ONE_ISLAND

SAVE, FIRST, SECOND = SaveId("a" * 32), PieceName("__0_0.distcp"), PieceName("__1_0.distcp")
BOXES = (WrittenBox((0, 0), (1, 3), FIRST, 0, 1300, "d"), WrittenBox((1, 0), (1, 3), SECOND, 8, 1300, ""))
FILES = (PieceFile(FIRST, 0, 1300, ("a",)), PieceFile(SECOND, 1, 1308, ("b", "a")))
TENSORS = (WrittenTensor("weight/w", (2, 3), BOXES),)
INDEX = PieceIndex(1, SAVE, "begun", 2, 100, "digest", FILES, TENSORS)
OFFER = FolderCheckpoint(CheckpointName.after(100), SAVE, "begun", 2, 100, FILES, (FIRST,), {SECOND: "is missing"})
COMING = Arrival(0, 1, 8, 4, "same", False, 100, 0.5, 10.0, 3)
RECORDS = (
    INDEX,
    Merged(SAVE, INDEX, None),
    ReadIndex(INDEX, "{}", None),
    Written(TENSORS, None),
    Offers("a", "/ck", CheckpointName.after(100), (OFFER,), ()),
    PieceRequests((Request(1, (0, 1)),), None, ()),
    FolderMark(SAVE),
    COMING,
    Roster(7, 4, (COMING,), (replace(COMING, island=1, is_behind=True),)),
    SyncPoint(7, 4, "x"),
    ShardLayout(((FlatSlice("w", (4, 6), (0, 3), (4, 3), 1, 8),),)),
)
NAME_TYPES: dict[str, Any] = {
    "file": PieceName,
    "name": (PieceName, CheckpointName),
    "save_id": SaveId,
    "latest": CheckpointName,
}
CASES = 400


def values(record: Any) -> Iterator[tuple[str, Any]]:
    """Every field of a record and of those in it, by its name."""
    fields = record._asdict() if hasattr(record, "_asdict") else {f.name: getattr(record, f.name) for f in _of(record)}
    for name, value in fields.items():
        for each in _flat(value):
            if hasattr(each, "_fields") or dataclasses.is_dataclass(each):
                yield from values(each)
            elif not (name == "name" and isinstance(record, WrittenTensor | FlatSlice)):
                yield name, each


def _flat(value: Any) -> Iterator[Any]:
    """The elements of a tuple of whatever depth."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _of(record: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(record)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_of_a_writer_is_read_as_it_was_written(record: Any) -> None:
    assert parse(type(record), to_json(record)) == record


def test_no_record_of_a_peer_has_a_name_that_leads_elsewhere_or_a_number_out_of_bounds() -> None:
    lengths: list[int] = []
    for seed in range(CASES):
        rng = random.Random(seed)
        record = rng.choice(RECORDS)
        data = json.loads(to_json(record))
        for at, key in rng.sample(list(leaves(data)), k=1 if len(data) == 1 else rng.choice((1, 1, 2))):
            at[key] = rng.choice((*NAMES, *NUMBERS, [rng.choice(NUMBERS)] * 3))
        try:
            got = parse(type(record), json.dumps(data))
        except ValueError as error:
            lengths.append(len(str(error)))
            continue
        for name, value in values(got):
            least = -1 if name == "groups" else 0
            assert not isinstance(value, int) or least <= value <= 2 * MAX_SIZE, (seed, name, value)
            if name in NAME_TYPES and value is not None:
                assert isinstance(value, NAME_TYPES[name]), (seed, name, value)
    assert len(lengths) > CASES // 2
    assert max(lengths) < 2000


@pytest.mark.parametrize("text", NAMES)
def test_no_other_text_is_the_name_of_a_piece_a_checkpoint_or_a_save(text: str) -> None:
    for kind in (PieceName, CheckpointName, SaveId):
        if kind is CheckpointName and text == "step-00000010":
            continue
        with pytest.raises(ValueError, match="must be the "):
            kind(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"size_bytes": 10**12},
        {"size_bytes": 2**62},
        {"size_bytes": -1},
        {"first_byte": 2**70},
        {"first_byte": -1},
        {"sizes": (2**40, 2**40)},
        {"sizes": (1,)},
        {"offsets": (-1, 0)},
    ],
)
def test_a_box_whose_bytes_are_not_those_of_its_numbers_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(BOXES[0], **changes)


def test_a_box_beyond_the_end_of_its_file_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(b"short")
    box = WrittenBox((0,), (1 << 48,), FIRST, 0, 1 << 50, "")
    with pytest.raises(DamagedPiece, match="has only 5 of the bytes"):
        read_box(tmp_path, box)


def test_a_rank_that_says_it_wrote_the_file_of_another_is_refused() -> None:
    check_written_by(0, Written((replace(TENSORS[0], boxes=BOXES[:1]),), None))
    with pytest.raises(ValueError, match=r"rank 0 says that it wrote __1_0\.distcp, another rank's file"):
        check_written_by(0, Written(TENSORS, None))


class Says:
    """A store in which an island has said this."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def get(self, _: str) -> bytes:
        return self._value


@pytest.mark.parametrize("value", [zlib.compress(b"[" * (65 << 20)), b"x", zlib.compress(b"[]")[:-1]])
def test_pieces_of_another_island_that_unpack_to_too_much_are_refused(value: bytes) -> None:
    store: Any = Says(value)
    meeting = Rendezvous(store, ONE_ISLAND, 0, 1.0)
    with pytest.raises(ValueError, match="the pieces of a rank"):
        meeting.layout(1, 1, 1)


@pytest.mark.parametrize("boxes", [(1, 0), (0, 0), (-1,), (1 << 40,)])
def test_a_peer_asks_for_each_box_once_and_by_its_number(boxes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="boxes: must be"):
        Request(0, boxes)
