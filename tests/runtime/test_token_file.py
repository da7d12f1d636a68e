"""Megatron's format, byte for byte, and what a broken file is called."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_runtime.node.data_files.token_file import (
    LONGEST_SEQUENCE,
    NOTE,
    DocumentStarts,
    TokenFile,
    TokenFileWriter,
    index_path,
    read_index,
)


def write(path: Path) -> None:
    with TokenFileWriter(path, "uint16") as writer:
        writer.add([1, 2])
        writer.add([300])
        writer.end_document()
        writer.end_document()
        writer.add([4])


def test_a_token_file_is_megatrons_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path / "t.bin")

    assert (tmp_path / "t.bin").read_bytes() == struct.pack("<4H", 1, 2, 300, 4)
    assert (tmp_path / "t.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QB", 1, 8)  # version, uint16
        + struct.pack("<QQ", 2, 3)  # two sequences; where three documents begin, the last of them where all end
        + struct.pack("<2i", 3, 1)  # lengths
        + struct.pack("<2q", 0, 6)  # first bytes
        + struct.pack("<3q", 0, 1, 2)
        + b"HOLMESMX"  # where Megatron has stopped reading
        + struct.pack("<q", 300)
    )
    assert read_index(tmp_path / "t.bin") == TokenFile(tmp_path / "t.bin", "uint16", 4, 2, 3, largest_token=300)


def test_a_document_longer_than_the_longest_sequence_takes_several(tmp_path: Path) -> None:
    assert LONGEST_SEQUENCE == 2**31 - 1  # what its length, an int32, can say
    with TokenFileWriter(tmp_path / "t.bin", "uint8", longest_sequence=3) as writer:
        writer.add(range(7))

    index = (tmp_path / "t.idx").read_bytes()
    assert struct.unpack_from("<QQ3i", index, 18) == (3, 2, 3, 3, 1)
    assert struct.unpack_from("<2q", index, len(index) - NOTE.size - 16) == (0, 3)
    assert read_index(tmp_path / "t.bin").num_tokens == 7


def write_packed(path: Path, num_tokens: int) -> None:
    with TokenFileWriter(path, "int32", packed_length=4) as writer:
        writer.add([~900, 5, *[~0] * (num_tokens - 2)])


def test_packed_examples_have_their_length_in_the_index(tmp_path: Path) -> None:
    write_packed(tmp_path / "t.bin", 9)

    found = read_index(tmp_path / "t.bin")

    assert found == TokenFile(tmp_path / "t.bin", "int32", 9, 1, 2, largest_token=900, packed_length=4)
    assert (tmp_path / "t.bin").read_bytes()[:8] == struct.pack("<2i", ~900, 5)


@pytest.mark.parametrize("length", [0, -4, 3, 2**62])
def test_a_length_in_which_nothing_is_packed_is_refused(tmp_path: Path, length: int) -> None:
    write_packed(tmp_path / "t.bin", 9)
    index = (tmp_path / "t.idx").read_bytes()
    (tmp_path / "t.idx").write_bytes(index[:-8] + struct.pack("<q", length))

    with pytest.raises(ValueError, match=rf"t\.idx: 9 tokens are not packed in sequences of {length}$"):
        read_index(tmp_path / "t.bin")


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def write_what_does_not_fit() -> None:
        with TokenFileWriter(tmp_path / "t.bin", "uint8") as writer:
            writer.add([1, 2])
            writer.add([256])

    with pytest.raises(OverflowError):
        write_what_does_not_fit()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("synced", [0, 1])
def test_a_disk_that_is_full_at_the_end_leaves_neither_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: int
) -> None:
    has_room: Iterator[bool] = iter([True] * synced)

    def sync(_: int) -> None:
        if not next(has_room, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="No space left"), TokenFileWriter(tmp_path / "o.bin", "uint16") as writer:
        writer.add([1, 2, 3])
    assert [*tmp_path.iterdir()] == []


def test_tokens_without_an_index_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "t.bin")
    index_path(tmp_path / "t.bin").unlink()

    with pytest.raises(ValueError, match=r"t\.bin has no index: .*t\.idx is missing"):
        read_index(tmp_path / "t.bin")


def test_tokens_and_index_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "t.bin")
    (tmp_path / "t.bin").write_bytes(b"123")

    with pytest.raises(ValueError, match=r"t\.bin has 3 bytes, but its index .* says 8"):
        read_index(tmp_path / "t.bin")


@pytest.mark.parametrize("length", [0, 5, 33, 40])
def test_an_index_that_ends_early_is_refused(tmp_path: Path, length: int) -> None:
    write(tmp_path / "t.bin")
    whole = index_path(tmp_path / "t.bin").read_bytes()
    index_path(tmp_path / "t.bin").write_bytes(whole[:length])

    with pytest.raises(ValueError, match=r"t\.idx (ends early|is not an index)"):
        read_index(tmp_path / "t.bin")


def test_another_type_of_tokens_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t.bin")
    whole = bytearray(index_path(tmp_path / "t.bin").read_bytes())
    whole[17] = 7
    index_path(tmp_path / "t.bin").write_bytes(whole)

    with pytest.raises(ValueError, match="version 1 with token type 7"):
        read_index(tmp_path / "t.bin")


@pytest.mark.parametrize("first_byte", [-8, 10, 2**62])
def test_a_document_that_begins_outside_of_the_tokens_is_refused(tmp_path: Path, first_byte: int) -> None:
    write(tmp_path / "t.bin")
    found = read_index(tmp_path / "t.bin")
    whole = bytearray(index_path(tmp_path / "t.bin").read_bytes())
    struct.pack_into("<q", whole, found.first_pointer, first_byte)
    index_path(tmp_path / "t.bin").write_bytes(whole)

    with pytest.raises(ValueError, match=r"t\.idx: document 0 begins at token"):
        DocumentStarts(found)[0]
