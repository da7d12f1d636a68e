"""Generators of folders made to harm: a run's, a model's, a recording, a host list, each by a seed and a set of kinds.

The second set has other kinds of change than the first. It was kept back until all faults of the first were mended.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record import FileRecord
from holmes_core.records.run import Run

Change = Callable[[Path, random.Random], None]

NASTY: tuple[Any, ...] = (
    *(None, True, "", [], {}, 0, -1, 1, -5, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**30, 10**300),
    *(
        1e308,
        -1e308,
        5e-324,
        1e-300,
        0.5,
        float("nan"),
        float("inf"),
        "nan",
        "1e308",
        "\u202e",
        "\x1b]0;x\x07",
        "\ud800",
    ),
    *("../../etc/passwd", "/dev/zero", "a" * 100_000, "<script>alert(1)</script>", "\u0000", "$(touch canary)", "; id"),
    *([[]], [None] * 1000, {"a": {"b": {"c": []}}}, ["x"] * 70_000),
)
FIVE_MB, MAX_CHANGED_BYTES = 5 << 20, 64 << 20
RECORDS: dict[str, tuple[type[FileRecord], ...]] = {"run.json": (Run,), "plan.json": (Plan, IslandsPlan)}


def files_of(folder: Path) -> list[Path]:
    """Return every file of `folder` that is small enough to be read and changed again."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in files if path.stat().st_size < MAX_CHANGED_BYTES)


def put(path: Path, data: bytes) -> None:
    """Replace whatever is at `path` by a file that holds `data`."""
    clear(path)
    path.write_bytes(data)


def clear(path: Path) -> None:
    """Remove whatever is at `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def anywhere(folder: Path, draw: random.Random) -> Path:
    """Return a file of the folder, whose place a change takes."""
    files = files_of(folder)
    if files:
        return draw.choice(files)
    put(folder / "new", b"")
    return folder / "new"


# --- the first set -------------------------------------------------------------------------------------------------


def pipe(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    clear(path)
    os.mkfifo(path)


def unix_socket(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    clear(path)
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


def link(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    clear(path)
    path.symlink_to(draw.choice(["/dev/zero", "/etc/passwd", "nothing", path.name, ".", "..", "/proc/self/mem", "/"]))


def folder_for_file(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    clear(path)
    path.mkdir()


def sparse(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    if draw.random() < 0.5:
        put(path, b"")
    os.truncate(path, draw.choice([1 << 40, 100 << 20, 50 << 20, 4 << 20]))


def text(folder: Path, draw: random.Random) -> None:
    """All of a file is something else, or its end."""
    path = anywhere(folder, draw)
    before = path.read_bytes() if draw.random() < 0.3 else b""
    made = draw.choice(
        [
            b"", b"\n" * 100_000, b"\0" * 1000, b"\xff\xfe\x80" * 99, b"[" * 90_000, b'{"a":' * 90_000,
            b"[" * 900 + b"]" * 900, b"[" + b"[]," * 1_000_000 + b"[]]", b"x" * FIVE_MB, b'{"a": "' + b"y" * FIVE_MB,
            b"9" * 5000, b'{"a": ' + b"9" * 4000 + b"}", b"1e999", b"[1]", b'"text"', b"null", b"{}", b"- " * 20_000,
            b"\xef\xbb\xbf{}", b'{"\\ud800": 1}', b"\x80\x04cposix\nsystem\n(S'touch canary'\ntR.",
        ]
    )  # fmt: skip
    put(path, before + made + b"\n" * (draw.random() < 0.7))


def missing(folder: Path, draw: random.Random) -> None:
    clear(anywhere(folder, draw))


def value(folder: Path, draw: random.Random) -> None:
    """One value of JSON is another; the digest of a record fits again, where it can be one at all."""
    for _ in range(draw.choice([1, 1, 3])):
        path = draw.choice([path for path in files_of(folder) if ".json" in path.name] or [anywhere(folder, draw)])
        lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
        if not lines:
            continue
        at = draw.randrange(len(lines))
        try:
            data = json.loads(lines[at])
        except (ValueError, RecursionError):
            continue
        changed(data, draw)
        lines[at] = with_digest(path.name, data)
        put(path, b"\n".join(lines) + b"\n")


def changed(data: Any, draw: random.Random) -> None:
    """Change one value in `data`, or a key."""
    places = list(places_in(data))
    if not places:
        return
    where, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.75 or isinstance(where, list):
        where[key] = draw.choice(NASTY)
    elif kind < 0.9:
        del where[key]
    else:
        where[draw.choice(["__proto__", "event", "", "kind", "x" * 1000])] = where.pop(key)


def places_in(data: Any) -> Sequence[tuple[Any, Any]]:
    """Return all lists and objects in `data`, each with each of its keys; large data are sampled."""
    found, waiting = list[tuple[Any, Any]](), [data]
    while waiting and len(found) < 5000:
        inner = waiting.pop()
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner))) if isinstance(inner, list) else []
        found += [(inner, key) for key in keys]
        waiting += [inner[key] for key in keys]
    return found


def with_digest(name: str, data: Any) -> bytes:
    """Return the text of `data`, as the record that a file of that `name` holds where it is a possible one."""
    plain = json.dumps(data).encode()
    for cls in RECORDS.get(name, ()):
        body = {key: each for key, each in data.items() if key not in ("kind", "digest", "signature")}
        try:
            return cls.model_validate(body).to_json().encode()
        except (ValidationError, ValueError, RecursionError):
            continue
    return plain


def strange_name(folder: Path, draw: random.Random) -> None:
    """A file or folder more, by a name that means something, or nothing."""
    parent = draw.choice([folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())])
    name = draw.choice(
        [
            *("island-abc", "island-²", "island-0", "island-1", "island-007", "island-99999999999", "events.jsonl.1"),
            *("seen.json", "profile.json.gz", "trunks.json", "security.json", "a1-rank99999999999.log", "-rank1.log"),
            *("a\n-rank1.log", "\x1b[2J-rank1.log", "a1-rank0.log.1", "x" * 250, "metrics.partial", "recording.json"),
            *("tokenizer.json", "tokenizer_config.json", "generation_config.json", "pytorch_model.bin", "host.json"),
        ]
    )
    path = os.fsencode(parent / name) + draw.choice([b"", b"", b"\xff"])
    with_kind = draw.choice(["file", "folder", "pipe", "link", "copy"])
    if os.path.lexists(path):
        return
    if with_kind == "file":
        Path(os.fsdecode(path)).write_bytes(draw.choice([b"", b"{}\n", b"[" * 90_000, b"\xff" * 100]))
    elif with_kind == "pipe":
        os.mkfifo(path)
    elif with_kind == "link":
        Path(os.fsdecode(path)).symlink_to(draw.choice([".", "..", "/dev/zero", "/"]))
    else:
        Path(os.fsdecode(path)).mkdir()
        if with_kind == "copy":
            for file in parent.glob("*.json*"):
                if file.is_file():
                    shutil.copy(file, os.fsdecode(path))


def folder_elsewhere(folder: Path, draw: random.Random) -> None:
    """A folder in it is a link, a pipe or a file."""
    inner = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    if not inner:
        return
    path = draw.choice(inner)
    clear(path)
    kind = draw.choice(["/etc", ".", "nothing", "file", "pipe"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_bytes(b"x")
    else:
        path.symlink_to(kind)


FIRST: tuple[Change, ...] = (
    *(pipe, unix_socket, link, folder_for_file, sparse, text, missing, strange_name, folder_elsewhere),
    *(value, value, value, value),
)


# --- the second set ------------------------------------------------------------------------------------------------


def flipped_bytes(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 10, 1000])):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    put(path, bytes(data))


def spliced(folder: Path, draw: random.Random) -> None:
    """A part of one file stands in another."""
    one, other = anywhere(folder, draw), anywhere(folder, draw)
    mine, theirs = one.read_bytes(), other.read_bytes()
    at, start = draw.randrange(len(mine) + 1), draw.randrange(len(theirs) + 1)
    put(one, mine[:at] + theirs[start : start + draw.choice([10, 1000, 100_000])] + mine[at:])


def swapped(folder: Path, draw: random.Random) -> None:
    one, other = anywhere(folder, draw), anywhere(folder, draw)
    mine, theirs = one.read_bytes(), other.read_bytes()
    put(one, theirs)
    put(other, mine)


def recoded(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    given = path.read_bytes().decode("utf-8", "replace")
    put(path, given.encode(draw.choice(["utf-16", "utf-32", "utf-7", "cp037", "utf-8-sig"]), "replace"))


def other_lines(folder: Path, draw: random.Random) -> None:
    """Lines end otherwise, come twice, in another order, or not to their end."""
    path = anywhere(folder, draw)
    lines = path.read_bytes().split(b"\n")
    kind = draw.randrange(5)
    if kind == 0:
        put(path, b"\r\n".join(lines))
    elif kind == 1:
        put(path, b"\x0b\x0c\x85".join(lines))
    elif kind == 2:
        draw.shuffle(lines)
        put(path, b"\n".join(lines))
    elif kind == 3:
        put(path, b"\n".join(lines * 200))
    else:
        put(path, b"\n".join(lines)[: draw.randrange(1 + len(b"".join(lines)))])


def doubled_keys(folder: Path, draw: random.Random) -> None:
    path = anywhere(folder, draw)
    given = path.read_bytes()
    at = given.find(b"{")
    extra = draw.choice(
        [b'"kind": "run", ', b'"digest": "sha256:0", ', b'"event": "step", ', b'"steps": 1e400, ', b'"": ']
    )
    put(path, given[: at + 1] + extra * draw.choice([1, 1000]) + given[at + 1 :])


def numbers(folder: Path, draw: random.Random) -> None:
    """A number as JSON may write it, in a place of one."""
    import re

    path = anywhere(folder, draw)
    given = path.read_bytes()
    found = list(re.finditer(rb"(?<=[ :,\[])-?\d+(\.\d+)?(?=[,\]}\n])", given))
    for match in draw.sample(found, min(len(found), draw.choice([1, 1, 5]))):
        made = draw.choice(
            [b"-0", b"1E400", b"-1e-400", b"0.1e1", b"9" * 400, b"1" + b"0" * 30, b"1.7976931348623157e308"]
        )
        given = given.replace(match[0], made, 1)
    put(path, given)


def many_files(folder: Path, draw: random.Random) -> None:
    parent = draw.choice([folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())])
    names = draw.choice(["h-rank{}.log", "island-{}", "trace-rank{}.json.gz", "host{}", "model-{}.safetensors"])
    for number in range(2000):
        path = parent / names.format(number)
        if not path.exists():
            path.touch() if draw.random() < 0.9 else path.symlink_to("..")


def deep_folders(folder: Path, draw: random.Random) -> None:
    """Islands in islands, or links to one another, as far as names reach."""
    files = [path for path in folder.glob("*.json*") if path.is_file() and path.stat().st_size < 1 << 20]
    at = folder
    for level in range(draw.choice([5, 40])):
        at = at / f"island-{level % 2}"
        at.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, at)
        beside = at.parent / f"island-{1 - level % 2}"
        if not os.path.lexists(beside):
            beside.symlink_to(draw.choice([".", "..", at.name]))


def hard_linked(folder: Path, draw: random.Random) -> None:
    one, other = anywhere(folder, draw), anywhere(folder, draw)
    if one != other:
        clear(other)
        os.link(one, other)


def chained_links(folder: Path, draw: random.Random) -> None:
    """The file is reached by links inside the folder: forty, or none that ends."""
    path = anywhere(folder, draw)
    name = f"{draw.getrandbits(64):x}"  # it may be done more than once
    target = folder / name
    path.rename(target)
    for number in range(draw.choice([1, 5, 60])):
        (folder / f"{name}-{number}").symlink_to(target.name)
        target = folder / f"{name}-{number}"
    path.symlink_to(os.path.relpath(target, path.parent))


SECOND: tuple[Change, ...] = (
    *(flipped_bytes, flipped_bytes, spliced, swapped, recoded, other_lines, doubled_keys, numbers, numbers, numbers),
    *(many_files, deep_folders, hard_linked, chained_links),
)


def make_hostile(folder: Path, changes: Sequence[Change], seed: int) -> str:
    """Change `folder` by one to three of `changes`; return their names."""
    draw = random.Random(seed)
    names = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        change = draw.choice(changes)
        change(folder, draw)
        names.append(change.__name__)
    return f"{seed}: {', '.join(names)}"
