"""Checkpoint folders that nobody's run would leave, by seed, and a child that reads them with bounded memory and time.

`python -m tests.hostile_checkpoints commands|resume FOLDER SEED CASES` prints a JSON line for each case that ended in
another way than a sentence, and at last how many cases there were.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holmes_runtime.node.checkpoint_files.piece_index import digest_of

CASE_CPU_S, CASE_S = 10, 120  # a pipe that is waited for takes no CPU; a busy machine takes long
CASE_BYTES = 2 << 30
SECRET = b"the key of whoever runs this"
STEP = "step-00000010"
FILES = ("pieces.json", "checkpoint.json", ".metadata", "__0_0.distcp", "../latest")
NAMES = (
    *("", ".", "..", "/", "/etc/passwd", "../../secret/key", "a/b", "a\\b", "__0_0.distcp/../../x", "./__0_0.distcp"),
    *("__0_0.distcp\0", "\0", "\ud800", "\x1b[2J", "__0_0.distcp\n", "é" * 200, "a" * 5000, "~/.ssh/rc", "latest"),
    *("pieces.json", "checkpoint.json", ".metadata", "__\u0663_0.distcp", "__-1_0.distcp", "__0_0.DISTCP", "CON", "*"),
    *("__99999999_0.distcp", "__0_0.distcp ", "step-00000010", "file:///etc/passwd", "\u202egnp.exe", "__0__0.distcp"),
)
NUMBERS: tuple[Any, ...] = (
    -1,
    10**12,
    2**62,
    2**63,
    2**70,
    10**300,
    -(2**70),
    1.5,
    1e308,
    True,
    None,
    "5",
    "",
    [],
    {},
    [1],
    {"a": 1},
)
LATEST = (b"\xff" * 64, b"", b"\n", b"../../etc", b"/etc", b"step-", b"step-1e9", b"step-00000010\0", b"step-99999999")
CHANGES = ("name", "number", "type", "depth", "link", "pipe", "bytes", "size", "latest", "values", "description")


class Hang(BaseException):
    """A command has taken longer than it may."""


def change(folder: Path, secret: Path, rng: random.Random) -> str:
    """Make one thing of the run's folder hostile; in words what."""
    kind, step = rng.choice(CHANGES), folder / STEP
    target = step / rng.choice(FILES)
    if kind == "latest":
        target = folder / "latest"
        target.write_bytes(rng.choice(LATEST))
        return f"latest {target.read_bytes()!r:.60}"
    if kind in ("name", "number", "type"):
        return f"{kind} {_change_index(step, kind, rng)}"
    if kind == "description":
        return f"{kind} {_change_description(step, rng)}"
    if kind in ("depth", "values"):
        text = rng.choice((b"[" * 200_000, b'{"a":' * 100_000)) if kind == "depth" else b"[" + b"[]," * 10**6 + b"0]"
        if rng.random() < 0.5:
            target.write_bytes(text)
            return f"{kind} {target.name}"
        digest = f'{{"digest": "{digest_of(text)}", "index": '.encode()
        (step / "pieces.json").write_bytes(digest + text + b"}")
        return f"{kind} in the index"
    target.unlink(missing_ok=True)
    return f"{kind} {target.name} {_replace(target, kind, secret, rng)}"


def _replace(target: Path, kind: str, secret: Path, rng: random.Random) -> object:
    """Put something else in the place of a file."""
    if kind == "link":
        to = rng.choice((str(secret), "/dev/zero", "/", str(target), "nowhere", "checkpoint.json", "/proc/self/mem"))
        target.symlink_to(to)
        return to
    if kind == "pipe":
        what = rng.choice(("fifo", "socket", "folder"))
        if what == "fifo":
            os.mkfifo(target)
        elif what == "folder":
            target.mkdir()
        else:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.path.relpath(target))  # a path of at most 107 bytes
        return what
    if kind == "size":
        with open(target, "wb") as file:
            return file.truncate(rng.choice((0, 1, 1 << 20, 100 << 20, 1 << 40)))
    content = rng.choice((b"\xff\xfe\x00", b"\x00" * 99, b"\xef\xbb\xbf{}", b"{}", b"null", b'"', rng.randbytes(300)))
    return target.write_bytes(content)


def _change_index(step: Path, kind: str, rng: random.Random) -> str:
    """Put something else in one place of `pieces.json`, whose digest is right."""
    index = json.loads((step / "pieces.json").read_text())["index"]
    names = ("file", "name", "save_id", "begun_by")
    at, key = rng.choice([each for each in leaves(index) if kind != "name" or each[1] in names])
    what: Any = rng.choice(NAMES if kind == "name" else NUMBERS)
    at[key] = [[what]] * 3 if kind == "type" else what
    if kind == "name" and rng.random() < 0.5:  # consistently, so that nothing but the name is wrong
        _rename(index, what)
    _write_index(step, index)
    return f"{key} {what!r:.60}"


def _change_description(step: Path, rng: random.Random) -> str:
    """Put something else in one place of `checkpoint.json`, whose digest in `pieces.json` is right."""
    data = json.loads((step / "checkpoint.json").read_text())
    at, key = rng.choice(list(leaves(data)))
    at[key] = what = rng.choice((*NUMBERS, *NAMES))
    text = json.dumps(data).encode()
    (step / "checkpoint.json").write_bytes(text)
    index = json.loads((step / "pieces.json").read_text())["index"]
    index["description_digest"] = digest_of(text)
    _write_index(step, index)
    return f"{key} {what!r:.60}"


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place in parsed JSON, as its container and key."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from leaves(inner)


def _rename(index: Any, name: object) -> None:
    """Have the first file of the index, and all boxes in it, that name."""
    before = index["files"][0]["name"] if index["files"] else None
    for tensor in index["tensors"]:
        for box in tensor["boxes"]:
            if isinstance(box, dict) and box.get("file") == before:
                box["file"] = name
    if index["files"]:
        index["files"][0]["name"] = name


def _write_index(step: Path, index: Any) -> None:
    text = json.dumps(index)
    (step / "pieces.json").write_text(json.dumps({"digest": digest_of(text.encode()), "index": index}))


def run_commands(folder: Path, output: Path) -> None:
    """Every action of `holmes checkpoint` on a run's folder. Raises what is no exit."""
    from holmes_cli.app import main

    shown = str(folder), str(folder)
    for words in (("list", shown[0]), ("verify", shown[0]), ("gather", *shown, "-o", str(output))):
        sys.argv = ["holmes", "checkpoint", *words]
        written = io.StringIO()
        try:
            with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
                main()
            code: object = "none"
        except SystemExit as ended:
            code = ended.code
        text = written.getvalue()
        assert code in (0, 1, 2), f"{words[0]}: exit code {code}"
        assert "Traceback" not in text, text[-2000:]
        assert len(text) < 100_000, f"{words[0]}: {len(text)} characters"
        assert "\x1b" not in text


def run_resume(folder: Path, output: Path) -> None:
    """A rank that resumes. Raises what is no sentence."""
    from tests.runtime.test_checkpoint import make_shards
    from tests.runtime.test_resume_situations import RESUME, opened, settings

    with contextlib.suppress(RuntimeError), contextlib.redirect_stdout(io.StringIO()):
        opened(settings(folder, **RESUME), output).load(make_shards(0))


def make_base(mode: str, folder: Path) -> None:
    """A run's folder with a checkpoint after 5 steps, and one after 10."""
    if mode == "resume":
        import torch.distributed as dist

        from tests.runtime.test_resume_situations import saved

        dist.init_process_group("gloo", init_method=f"file://{folder.parent}/store", rank=0, world_size=1)
        saved(folder)
    else:
        from tests.cli.test_checkpoint_command import save

        save(folder, 5, "__0_0.distcp", "__1_0.distcp")
        save(folder, 10, "__0_0.distcp", "__1_0.distcp")


def check_case(run: Callable[[Path, Path], None], base: Path, place: Path, seed: int) -> str | None:
    """Why one case did not end well; None if it did."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "secret").mkdir(parents=True)
    secret = place / "secret" / "key"
    secret.write_bytes(SECRET)
    shutil.copytree(base, place / "run")
    what = change(place / "run", secret, random.Random(seed))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + CASE_BYTES, resource.RLIM_INFINITY))
    signal.alarm(CASE_S)
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
    try:
        run(place / "run", place / "out")
    except BaseException:
        return f"{what}: {traceback.format_exc()[-1500:]}"
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    if {path.name for path in place.iterdir()} - {"secret", "run", "out"} or list(secret.parent.iterdir()) != [secret]:
        return f"{what}: wrote {sorted(map(str, place.rglob('*')))}"
    if secret.read_bytes() != SECRET:
        return f"{what}: wrote over the secret"
    held = [file for file in (place / "out").rglob("*") if file.is_file() and file.stat().st_size < 1 << 20]
    if any(SECRET in file.read_bytes() for file in held):
        return f"{what}: gave the secret away"
    return None


def main() -> int:
    """Run the cases of the command line."""
    mode, place, seed, cases = sys.argv[1], Path(sys.argv[2]).absolute(), int(sys.argv[3]), int(sys.argv[4])

    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGPROF, ring)
    os.environ["XDG_STATE_HOME"], os.environ["COLUMNS"] = str(place / "state"), "100"
    base = place / "base"
    base.mkdir()
    make_base(mode, base / "run")
    run = {"commands": run_commands, "resume": run_resume}[mode]
    os.chdir(place)
    run(base / "run", base / "out")  # imports what it needs
    assert list((base / "out").iterdir()), "the unchanged folder is not read"
    for case in range(seed, seed + cases):
        fault = check_case(run, base / "run", place / "case", case)
        if fault is not None:
            print(json.dumps({"seed": case, "fault": fault}), flush=True)
    print(json.dumps({"cases": cases}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
