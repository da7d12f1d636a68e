"""What a peer sends of a checkpoint is read as numbers, and as nothing else."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holmes_runtime.checkpoint.piece_loading import STORAGE, values_of
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName
from holmes_runtime.node.checkpoint_files.piece_index import READ_BYTES, DamagedPiece, WrittenBox, digest_in, digest_of
from tests.seeds import few_of

VALUES = torch.arange(6.0).reshape(2, 3)


def saved(values: torch.Tensor) -> bytearray:
    """As checkpoints hold a tensor."""
    data = io.BytesIO()
    torch.save(values, data)
    return bytearray(data.getvalue())


def box_of(data: bytearray) -> WrittenBox:
    return WrittenBox((0, 0), (2, 3), PieceName("__0_0.distcp"), 0, len(data), "")


def archive(**entries: bytes) -> bytearray:
    """An archive as torch.save names its entries."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in entries.items():
            written.writestr(f"archive/{name}", content)
    return bytearray(data.getvalue())


def test_a_digest_of_bytes_in_a_file_is_theirs_however_many_they_are(tmp_path: Path) -> None:
    data, path = os.urandom(2 * READ_BYTES + 3), tmp_path / "__0_0.distcp"
    path.write_bytes(data)
    for first, size in ((0, len(data)), (1, READ_BYTES), (5, 7), (0, 0)):
        assert digest_in(path, first, size) == digest_of(data[first : first + size])
    with pytest.raises(DamagedPiece, match=r"__0_0\.distcp lacks the last 4 bytes that were written"):
        digest_in(path, 4, len(data))


def test_numbers_come_back_as_torch_saved_them() -> None:
    data = saved(VALUES)
    assert torch.equal(values_of(data, box_of(data)), VALUES)


def test_a_program_in_the_pickle_of_a_peer_is_not_run(tmp_path: Path) -> None:
    class Program:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "was here"),)

    data = archive(**{"data.pkl": pickle.dumps(Program()), STORAGE[1:]: VALUES.numpy().tobytes()})
    assert torch.equal(values_of(data, box_of(data)), VALUES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    few_of(
        4,
        [
            lambda: bytearray(200),
            lambda: saved(torch.zeros(2, 2)),
            lambda: saved(VALUES)[:-40],
            lambda: archive(**{"data.pkl": b""}),
            lambda: archive(**{STORAGE[1:]: bytes(1 << 28)}),
        ],
    ),
    ids=["zeros", "other size", "cut", "no numbers", "bomb"],
)
def test_what_is_no_tensor_of_that_size_is_damaged(make: Callable[[], bytearray]) -> None:
    data = make()
    with pytest.raises(DamagedPiece, match=r"__0_0\.distcp: no tensor at byte 0"):
        values_of(data, box_of(data))
