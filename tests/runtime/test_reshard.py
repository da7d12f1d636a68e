"""Flat ranges as boxes, and pieces of one plan loaded as those of another."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from holmes_runtime.checkpoint.host_folders import HostFolders
from holmes_runtime.checkpoint.piece_files import files_of, write_pieces
from holmes_runtime.checkpoint.piece_loading import OwnFiles, PieceLoading
from holmes_runtime.checkpoint.tensor_piece import (
    Chunk,
    ShardSlice,
    TensorPiece,
    boxes,
    pieces_of,
)
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.node.checkpoint_files.checkpoint_names import SaveId
from holmes_runtime.node.checkpoint_files.piece_index import INDEX_VERSION, PieceIndex
from holmes_runtime.parallel.gradient_buckets import make_buckets

pytestmark = [
    pytest.mark.usefixtures("lone_group"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def test_a_range_of_a_matrix_is_a_tail_whole_rows_and_a_head() -> None:
    assert boxes((4, 5), 3, 17) == [
        ShardSlice((0, 3), (1, 2), 3),
        ShardSlice((1, 0), (2, 5), 5),
        ShardSlice((3, 0), (1, 2), 15),
    ]
    assert boxes((4, 5), 6, 9) == [ShardSlice((1, 1), (1, 3), 6)]
    assert boxes((4, 5), 0, 20) == [ShardSlice((0, 0), (4, 5), 0)]
    assert boxes((9,), 2, 5) == [ShardSlice((2,), (3,), 2)]
    assert boxes((4, 5), 7, 7) == []


@pytest.mark.parametrize("shape", [(7,), (3, 4), (1, 6), (5, 1), (2, 3, 4)])
def test_every_range_is_its_boxes_in_order(shape: tuple[int, ...]) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    for start, stop in itertools.combinations_with_replacement(range(whole.numel() + 1), 2):
        found = boxes(shape, start, stop)
        cut = [whole[tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))] for box in found]

        assert [value for box in cut for value in box.flatten().tolist()] == list(range(start, stop))
        assert [box.start for box in found] == [int(box.flatten()[0]) for box in cut]
        assert len(found) <= 2 * len(shape) - 1


def cut(whole: torch.Tensor, dim: int | None, parts: int, shards: int) -> list[TensorPiece]:
    """`whole` split over `parts` tensor-parallel ranks along `dim`, and each part's flat range over `shards`."""
    locals_ = [whole] if dim is None else list(whole.chunk(parts, dim))
    pieces = []
    offset = [0] * whole.dim()
    for local in locals_:
        bounds = [round(local.numel() * share / shards) for share in range(shards + 1)]
        for start, stop in itertools.pairwise(bounds):
            values = local.flatten()[start:stop].clone()
            part = TensorPart(tuple(whole.shape), tuple(offset), tuple(local.shape))
            pieces.append(TensorPiece(values, part, start, stop))
        if dim is not None:
            offset[dim] += local.shape[dim]
    return pieces


@pytest.mark.parametrize("saved", [(None, 1, 1), (0, 2, 3), (1, 3, 2), (None, 1, 4)])
@pytest.mark.parametrize("loaded", [(None, 1, 5), (1, 2, 2), (0, 7, 1)])
def test_what_one_cut_saves_another_loads_bit_equal(
    tmp_path: Path, saved: tuple[int | None, int, int], loaded: tuple[int | None, int, int]
) -> None:
    whole = torch.randn(7, 6)
    pieces = cut(whole, *saved)
    # One process stands for all ranks: what each would hold is saved as if it held it all.
    index = save({"w": AllPieces(pieces)}, tmp_path / "step-00000001")

    targets = cut(torch.zeros_like(whole), *loaded)
    for target in targets:
        assert load({"w": target}, tmp_path / "step-00000001", index) is None

    expected = cut(whole, *loaded)
    assert all(torch.equal(one.values, other.values) for one, other in zip(targets, expected, strict=True))


def test_a_checkpoint_cut_at_odd_numbers_loads_into_the_aligned_parts_of_buckets(tmp_path: Path) -> None:
    whole = torch.randn(7, 11)
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    saved: dict[str, TensorPiece] = {f"{kind}/weight": AllPieces(cut(whole, None, 1, 3)) for kind in kinds}
    index = save(saved, tmp_path / "step-00000001")

    for position in range(3):
        named = dict(nn.Linear(11, 7, bias=False).named_parameters())
        part = TensorPart((7, 11), (0, 0), (7, 11))
        (bucket,) = make_buckets([[named]], (), 3, position, None)
        shards = list(bucket.shards({"weight": part}))
        assert load(pieces_of(shards), tmp_path / "step-00000001", index) is None
        for shard in shards:
            assert torch.equal(shard.master, whole.flatten()[shard.start : shard.stop])
            assert shard.start % 32 == 0


class AllPieces(TensorPiece):
    """The pieces of all ranks as one."""

    def __init__(self, pieces: list[TensorPiece]) -> None:
        super().__init__(**vars(pieces[0]))
        self.__dict__["pieces"] = pieces

    def chunks(self) -> list[tuple[Chunk, torch.Tensor]]:
        return [chunk for piece in self.__dict__["pieces"] for chunk in piece.chunks()]


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    index = save({"w": cut(torch.zeros(2, 3), None, 1, 1)[0]}, tmp_path / "step-00000001")

    for name, said in (
        ("w", r"w has the shape \(2, 3\), this run has it with the shape \(3, 2\)"),
        ("v", "v is missing"),
    ):
        fault = load({name: cut(torch.zeros(3, 2), None, 1, 1)[0]}, tmp_path / "step-00000001", index)
        assert fault is not None
        assert re.search(said, fault)


def save(pieces: dict[str, TensorPiece], path: Path) -> PieceIndex:
    """The index of `pieces`, written to a checkpoint by one rank."""
    tensors = write_pieces(path, pieces, 0)
    return PieceIndex(INDEX_VERSION, SaveId(32 * "0"), "begun", 1, 1, "", files_of(tensors, {}), tensors)


def load(pieces: dict[str, TensorPiece], path: Path, index: PieceIndex) -> str | None:
    """What keeps one process from loading what was saved, if anything does."""
    me = Rank(0, "a", "one", 0, 0, 0)
    holders = {file.name: (0,) for file in index.files}
    group = dist.distributed_c10d._get_default_group()
    own, folders = OwnFiles(path, {}), HostFolders((("a",),), (me,))
    return PieceLoading(index, pieces, own, holders, ["a"], folders, me).load(group)[0]
