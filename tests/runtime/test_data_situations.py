"""Situations of data, each read rightly or refused with file and reason, as nodes look at it before a rank starts."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import os
import pickle
import sqlite3
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.config.run_settings import DataSettings
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.node.data_files.check_inputs import check_source

LINES = b'{"text": "one"}\n{"text": "zwei \\u00e4"}\n'
TEXT = "one\0zwei ä\0".encode()
HAS = {name: importlib.util.find_spec(name) is not None for name in ("pyarrow", "zstandard")}


def as_bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (text)")


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "text")


def late_latin(path: Path) -> None:
    """Plain text that is no UTF-8 after 100 kB."""
    path.write_bytes(b"all is well\n" * 10_000 + b"caf\xe9\n" + b"and here again\n" * 10_000)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "part.parquet.txt": (as_bytes(b"PAR1" + bytes(100) + b"PAR1"), "is Parquet, not text"),
    "a.txt.gz": (lambda path: path.write_bytes(gzip.compress(b"text")), "is gzip, not text.*gunzip"),
    "a.jsonl": (lambda path: path.write_bytes(gzip.compress(LINES)), r"is gzip, not text: .*\.jsonl\.gz"),
    "a.zst": (as_bytes(b"\x28\xb5\x2f\xfd\x04\x00\x19\x00\x00abc"), "is Zstandard, not text"),
    "part.arrow.txt": (as_bytes(b"ARROW1\x00\x00" + bytes(64)), "is Arrow, not text"),
    "a.feather": (as_bytes(b"FEA1" + bytes(64)), "is Feather, not text"),
    "a.npy": (as_bytes(b"\x93NUMPY\x01\x00" + bytes(64)), "is a NumPy array, not text"),
    "a.npz": (archive, "is a ZIP archive"),
    "a.db": (database, "is an SQLite database"),
    "a.pkl": (lambda path: path.write_bytes(pickle.dumps({"text": "one"})), "is a Python pickle"),
    "a.png": (as_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64)), "is a PNG image"),
    "a.csv": (as_bytes(b"id,text\n1,one\n"), r"is a table \(CSV\), not text: .*\.jsonl"),
    "a.json": (as_bytes(b'[{"text": "one"}]'), r"is JSON.*\.jsonl"),
    "lines.txt": (as_bytes(LINES), "is JSON lines by its first line.*name it .jsonl"),
    "utf16.txt": (lambda path: path.write_text("text", encoding="utf-16"), "is UTF-16 text.*iconv"),
    "latin.txt": (late_latin, "is not UTF-8 text: byte 120003 is 0xe9"),
    "tokens.raw": (lambda path: path.write_bytes(struct.pack("<50H", *range(60, 110))), "byte 1 is NUL"),
    "model.safetensors": (as_bytes(struct.pack("<Q", 2) + b"{}"), r"weights \(safetensors\)"),
    "pipe": (os.mkfifo, r"is a pipe \(FIFO\)"),
    "alone.bin": (as_bytes(b"tokens"), "has no index: .*alone.idx is missing"),
    "cut.jsonl.gz": (
        lambda path: path.write_bytes(gzip.compress(LINES)[:20]),
        "line 1: the compressed file is cut off",
    ),
    "plain.jsonl.gz": (as_bytes(LINES), "line 1: cannot be decompressed"),
    "empty": (Path.mkdir, "has no file matching"),
    "fields.jsonl": (as_bytes(b'{"content": "x"}\n'), 'line 1: it has no field "text"'),
}


def data(path: Path) -> DataSettings:
    return DataSettings(str(path))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_neither_text_nor_tokens_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make, reason = REFUSED[name]
    make(tmp_path / name)

    with pytest.raises((ValueError, FileNotFoundError), match=rf"{name}.*{reason}"):
        check_source(tmp_path / name, data(tmp_path / name))


@pytest.mark.parametrize("name", ["a.png", "a.csv", "latin.txt", "tokens.raw"])
def test_bytes_are_trained_on_where_job_yaml_says_so(tmp_path: Path, name: str) -> None:
    REFUSED[name][0](tmp_path / name)

    corpus = load_corpus(replace(data(tmp_path / name), bytes=True), "a1", 4, 256)

    assert bytes(corpus.training[0].read(0, corpus.num_tokens).tolist()) == (tmp_path / name).read_bytes()


def zstd(path: Path) -> None:
    zstandard: Any = importlib.import_module("zstandard")
    frames = [zstandard.ZstdCompressor().compress(line) for line in LINES.splitlines(keepends=True)]
    path.write_bytes(b"".join(frames))


def parquet(path: Path) -> None:
    pyarrow: Any = importlib.import_module("pyarrow")
    table = pyarrow.table({"id": [1, 2], "text": ["one", "zwei ä"]})
    importlib.import_module("pyarrow.parquet").write_table(table, path)


READ: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "a.jsonl": (as_bytes(LINES), TEXT),
    "a.jsonl.gz": (lambda path: path.write_bytes(gzip.compress(LINES[:16]) + gzip.compress(LINES[16:])), TEXT),
    "a.jsonl.zst": (zstd, TEXT),
    "a.parquet": (parquet, TEXT),
    "a.txt": (lambda path: path.write_text("häl\xf8 " * 40_000), ("häl\xf8 " * 40_000).encode()),
    "a.md": (as_bytes(b"{ not JSON\nbut a text\n"), b"{ not JSON\nbut a text\n"),
}
NEEDS = {"a.jsonl.zst": "zstandard", "a.parquet": "pyarrow"}


@pytest.mark.parametrize("name", READ)
def test_text_is_read_whatever_it_is_packed_in(tmp_path: Path, name: str) -> None:
    if not HAS.get(NEEDS.get(name, ""), True):
        pytest.skip(f"{NEEDS[name]} is not installed")
    make, text = READ[name]
    make(tmp_path / name)

    corpus = load_corpus(data(tmp_path / name), "a1", 4, 256)

    assert bytes(corpus.training[0].read(0, corpus.num_tokens).tolist()) == text


@pytest.mark.parametrize("name", NEEDS)
def test_a_package_that_is_missing_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("zstandard", "compression.zstd", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"content")

    with pytest.raises(ModuleNotFoundError, match=rf"{name} needs the Python package `{NEEDS[name]}`.*holmes data"):
        check_source(tmp_path / name, data(tmp_path / name))


def test_zstandard_that_is_cut_off_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    lines = b"".join(json.dumps({"text": str(number)}).encode() + b"\n" for number in range(100_000))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines)[:-100])

    with pytest.raises(ValueError, match=r"a\.jsonl\.zst, line \d+: the compressed file is cut off"):
        load_corpus(data(tmp_path / "a.jsonl.zst"), "a1", 4, 256)


def test_text_for_a_model_of_other_tokens_names_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    expected, settings = "/models/llama/tokenizer.json", data(tmp_path)

    with pytest.raises(ValueError, match=r"a\.txt is text.*`tokenizer` in `data` to /models/llama/tokenizer\.json"):
        check_source(tmp_path, settings, expected)
    assert check_source(tmp_path, replace(settings, tokenizer="/t.json"), expected) == [tmp_path / "a.txt"]


BAD_LINES = (
    b'{"text": "one"}\n{"text": 7}\n\n{"title": "two"}\n[1]\n{"text": "cut\n{"text": "\\ud800"}\n{"text": "six"}\n'
)
NUM_BAD = 5
FIRST_BAD = 'bad.jsonl, line 2: the field "text" is 7, not a string'


@pytest.mark.parametrize("again", [False, True], ids=["tokenized now", "tokenized by an earlier run"])
def test_bad_lines_are_skipped_and_counted_as_far_as_the_job_allows(tmp_path: Path, again: bool) -> None:
    (tmp_path / "bad.jsonl").write_bytes(BAD_LINES)
    skipping = replace(data(tmp_path / "bad.jsonl"), skip_bad_lines=NUM_BAD)

    for _ in range(1 + again):
        corpus = load_corpus(skipping, "a1", 4, 256)

    assert bytes(corpus.training[0].read(0, corpus.num_tokens).tolist()) == b"one\0six\0"
    assert corpus.bad_lines.count == NUM_BAD
    assert corpus.bad_lines.first is not None
    assert corpus.bad_lines.first.endswith(FIRST_BAD)
    with pytest.raises(ValueError, match=rf"line \d.*`skip_bad_lines: {NUM_BAD - 1}`.*the first: .*{FIRST_BAD}"):
        load_corpus(replace(skipping, skip_bad_lines=NUM_BAD - 1), "a1", 4, 256)
    with pytest.raises(ValueError, match=FIRST_BAD):
        load_corpus(replace(skipping, skip_bad_lines=0), "a1", 4, 256)


def test_bad_lines_of_all_files_count_together(tmp_path: Path) -> None:
    for name in ("a.jsonl", "bad.jsonl"):
        (tmp_path / name).write_bytes(BAD_LINES)

    assert load_corpus(replace(data(tmp_path), skip_bad_lines=2 * NUM_BAD), "a1", 4, 256).bad_lines.count == 2 * NUM_BAD
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2.*`skip_bad_lines: 9`.*the first: .*a\.jsonl, line 2"):
        load_corpus(replace(data(tmp_path), skip_bad_lines=2 * NUM_BAD - 1), "a1", 4, 256)


def test_a_file_that_is_cut_off_is_refused_whatever_may_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES)[:-10])

    with pytest.raises(ValueError, match=r"a\.jsonl\.gz, line \d: the compressed file is cut off"):
        load_corpus(replace(data(tmp_path / "a.jsonl.gz"), skip_bad_lines=100), "a1", 4, 256)
