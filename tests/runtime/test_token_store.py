"""Text is tokenized once on a host, whole or not at all, and anew when it or its tokenizer is another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from holmes_runtime.data import token_store
from holmes_runtime.data.token_store import kept_tokens
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.text import ByteTokenizer

LINES = b'{"text": "one"}\n{"text": "two"}\n'


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "holmes" / "tokens"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    return tmp_path / "a.jsonl"


def test_tokens_are_made_once(text: Path) -> None:
    first = kept_tokens(text, None, ByteTokenizer(0), BadLines(0))
    inode = first.path.stat().st_ino

    assert kept_tokens(text, None, ByteTokenizer(0), BadLines(0)) == first
    assert first.path.stat().st_ino == inode
    assert first.path.read_bytes() == b"one\0two\0"
    assert first.token_type == "uint8"


def other_end(_: Path) -> ByteTokenizer:
    return ByteTokenizer(10)


def other_text(text: Path) -> ByteTokenizer:
    text.write_bytes(LINES.replace(b"one", b"ten"))
    return ByteTokenizer(0)


@pytest.mark.parametrize("change", [other_text, other_end])
def test_another_text_or_tokenizer_has_tokens_of_its_own(text: Path, change: Callable[[Path], ByteTokenizer]) -> None:
    first = kept_tokens(text, None, ByteTokenizer(0), BadLines(0))

    assert kept_tokens(text, None, change(text), BadLines(0)).path != first.path


def test_what_a_killed_process_left_is_not_taken_for_tokens(text: Path) -> None:
    whole = kept_tokens(text, None, ByteTokenizer(0), BadLines(0)).path
    whole.with_suffix(".idx").unlink()
    whole.write_bytes(b"on")
    left = whole.with_name(f".{whole.name}.4711")
    left.write_bytes(b"o")

    assert kept_tokens(text, None, ByteTokenizer(0), BadLines(0)).path.read_bytes() == b"one\0two\0"
    assert not left.exists()


def test_text_that_is_wrong_leaves_no_tokens(store: Path, text: Path) -> None:
    text.write_bytes(LINES + b"{")

    with pytest.raises(ValueError, match=r"a\.jsonl, line 3"):
        kept_tokens(text, None, ByteTokenizer(0), BadLines(0))
    assert [file.suffix for file in store.iterdir()] == [".lock"]


def test_tokens_unused_for_a_month_are_removed_when_others_are_made(store: Path, text: Path) -> None:
    old = kept_tokens(text, None, ByteTokenizer(0), BadLines(0)).path
    used = kept_tokens(text, None, ByteTokenizer(1), BadLines(0)).path
    for file in store.iterdir():
        os.utime(file, (0, 0))
    os.utime(used.with_suffix(".idx"), (time.time(), time.time()))

    new = kept_tokens(text, None, ByteTokenizer(2), BadLines(0)).path

    assert {file.stem for file in store.iterdir()} == {used.stem, new.stem}
    assert not old.exists()


def _count_made(text: str, made: str) -> None:
    """Tokenize as a rank does, and note each time that it is this process that makes the tokens."""
    make = token_store._make

    def noted(*given: object) -> None:
        with open(made, "a", encoding="utf-8") as file:
            file.write("made\n")
        time.sleep(1.0)
        make(*given)  # type: ignore[arg-type]

    token_store._make = noted  # type: ignore[assignment]
    assert kept_tokens(Path(text), None, ByteTokenizer(0), BadLines(0)).num_tokens == 8


@pytest.mark.process
def test_of_ranks_that_start_together_one_makes_the_tokens(text: Path, tmp_path: Path) -> None:
    ranks = [get_context("fork").Process(target=_count_made, args=(str(text), str(tmp_path / "made"))) for _ in "1234"]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)

    assert [rank.exitcode for rank in ranks] == [0, 0, 0, 0]
    assert (tmp_path / "made").read_text() == "made\n"
