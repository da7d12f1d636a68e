"""Tokens of text that a host has tokenized, kept in its cache: once for all its ranks and for later runs.

The first rank that needs them writes them; others wait for it. Tokens are read from the file and not held, so all ranks
share the one copy in the system's page cache. Free of torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.stored_bytes import FileBytes, digest_of
from holmes_runtime.node.data_files.text import Tokenizer, tokenized
from holmes_runtime.node.data_files.token_file import TokenFile, TokenFileWriter, index_path, read_index, token_type_of

FORMAT = "1"  # of the kept tokens; a file in another format is made again
UNUSED_S = 30 * 24 * 3600.0  # unused tokens of this age are removed when others are made
PROGRESS_S = 10.0
LOOK_S = 0.2  # between two checks for the tokens


def kept_tokens(path: Path, tokenizer_file: str | None, tokenizer: Tokenizer, bad_lines: BadLines) -> TokenFile:
    """Return the tokens of the text file `path`, tokenizing it now if this host has not done so.

    Skipped lines count in `bad_lines`, even if another process made the tokens.

    Raises:
        ValueError: the file is not text or has too many bad lines; the message names it and the position.
        OSError: the file cannot be read, or its tokens cannot be stored.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "holmes" / "tokens"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / f"{_key(path, tokenizer_file, tokenizer)}.bin"
    with _alone(kept.with_suffix(".lock"), path):
        if index_path(kept).is_file():
            os.utime(index_path(kept))  # it is in use
        else:
            _remove_old(folder)
            for left in folder.glob(f".{kept.stem}.*"):  # left by a process that was killed
                left.unlink()
            try:
                _make(path, tokenizer, kept, BadLines(bad_lines.limit))
            except OSError as error:
                raise OSError(
                    f"{path} cannot be tokenized into {folder}: {error}; make room there, name another folder with "
                    "XDG_CACHE_HOME in `launch.environment`, or train on what `holmes data` writes"
                ) from None
    if _skipped_file(kept).is_file():
        count, first = json.loads(_skipped_file(kept).read_text(encoding="utf-8"))
        bad_lines.skip(first, count)
    return read_index(kept)


def _skipped_file(kept: Path) -> Path:
    """Return the path of the file with the number of skipped lines and the first one. No file: none was skipped."""
    return kept.with_suffix(".skipped")


def _key(path: Path, tokenizer_file: str | None, tokenizer: Tokenizer) -> str:
    """Return a name from all that determines the tokens: content and time of the text, and the tokenizer."""
    parts = [FORMAT, path.suffix, str(path.stat().st_mtime_ns), digest_of([FileBytes(path)])]
    parts += [str(tokenizer.begin_of_document), str(tokenizer.end_of_document)]
    if tokenizer_file is not None:
        parts.append(hashlib.sha256(Path(tokenizer_file).read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@contextmanager
def _alone(lock: Path, path: Path) -> Iterator[None]:
    """Let one process in at a time. The others print what they wait for."""
    with open(lock, "w", encoding="utf-8") as file:
        printed_s = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= printed_s + PROGRESS_S:
                    printed_s = time.monotonic()
                    print(f"waiting for another rank of this host, which is tokenizing {path}", flush=True)
                time.sleep(LOOK_S)
        yield


def _make(path: Path, tokenizer: Tokenizer, kept: Path, bad_lines: BadLines) -> None:
    size, done, printed_s = path.stat().st_size, 0, time.monotonic()
    with TokenFileWriter(kept, token_type_of(tokenizer.vocab_size)) as writer:
        for piece, parts in tokenized(path, tokenizer, bad_lines):
            for part in parts:
                writer.add(part)
            if piece.ends_document:
                writer.end_document()
            done += piece.source_bytes
            if time.monotonic() >= printed_s + PROGRESS_S:
                printed_s = time.monotonic()
                print(f"tokenizing {path}: {done / max(1, size):.0%}", flush=True)
        if bad_lines.count:
            _skipped_file(kept).write_text(json.dumps([bad_lines.count, bad_lines.first]), encoding="utf-8")


def _remove_old(folder: Path) -> None:
    """Remove the tokens that no run has used for a long time."""
    for file in folder.iterdir():
        unused = file if file.name.startswith(".") else index_path(file)
        try:
            age_s = time.time() - (unused if unused.exists() else file).stat().st_mtime
            if age_s > UNUSED_S:
                file.unlink()
        except FileNotFoundError:
            continue  # another process removed it
