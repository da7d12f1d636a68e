"""Files made to harm: each is refused in a sentence, in little memory, with nothing written and no traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders.local_runs import write_inputs
from tests.cli.conftest import Command, Done
from tests.seeds import few_of

GIB_IN_KIB = 1 << 20
DEEP = 100_000
HUGE = "9" * 5000


@dataclass(frozen=True)
class Attack:
    """What stands in place of a file."""

    name: str
    place: Callable[[Path, str], None]
    """Puts it at the path, whose honest text is given."""


def _text(make: Callable[[str], str]) -> Callable[[Path, str], None]:
    return lambda path, honest: _replace(path, make(honest).encode("utf-8", errors="surrogatepass"))


def _replace(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _fifo(path: Path, _: str) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(target: str) -> Callable[[Path, str], None]:
    def place(path: Path, _: str) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return place


def _folder(path: Path, _: str) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _sparse(path: Path, _: str) -> None:
    """A terabyte that takes no room."""
    _replace(path, b"")
    os.truncate(path, 1 << 40)


def _bomb(merge: bool) -> str:
    """Twenty-five levels of aliases, each of which stands for nine of the one before."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, 26):
        many = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{many}]}}" if merge else f"[{many}]"))
    return "\n".join(lines)


ANY = [
    Attack("pipe", _fifo),
    Attack("device", _link("/dev/zero")),
    Attack("folder", _folder),
    Attack("link to a folder", _link(".")),
    Attack("terabyte", _sparse),
    Attack("empty", _text(lambda _: "")),
    Attack("nothing but nul", _text(lambda _: "\0" * 1000)),
    Attack("not utf-8", lambda path, _: _replace(path, b"\xff\xfe\x80" * 99)),
    Attack("lone surrogate", _text(lambda honest: '{"\ud800": 1}' + honest)),
    Attack("deep lists", _text(lambda _: "[" * DEEP)),
    Attack("deep keys", _text(lambda _: '{"a":' * DEEP)),
    Attack("closed deep lists", _text(lambda _: "[" * 900 + "]" * 900)),
    Attack("million lists", _text(lambda _: "[" + "[]," * 1_000_000 + "[]]")),
    Attack("million hosts", _text(lambda _: '{"hosts": [' + "1," * 1_000_000 + "1]}")),
    Attack("many faults", _text(lambda _: '{"hosts": [' + "1," * 200_000 + "1]}")),
    Attack("number of 5,000 digits", _text(lambda _: '{"steps": ' + HUGE + "}")),
    Attack("list", _text(lambda _: "[1]")),
    Attack("string", _text(lambda _: '"text"')),
    Attack("not a number", _text(lambda _: '{"steps": NaN, "digest": 1e999, "kind": null}')),
    Attack("escapes", _text(lambda _: '{"\\u001b]0;x\\u0007\\u001b[2J": "\\u009b31m"}')),
]
YAML = [
    Attack("aliases", _text(lambda _: _bomb(merge=False))),
    Attack("merged aliases", _text(lambda _: _bomb(merge=True))),
    Attack("alias of itself", _text(lambda _: "hosts: &a [*a]")),
    Attack("python object", _text(lambda _: "hosts: !!python/object/apply:os.system ['touch canary']")),
    Attack("powers of sixty", _text(lambda _: "steps: " + "59:" * 200_000 + "59")),
    Attack("hexadecimal", _text(lambda _: "steps: 0x" + "f" * 100_000)),
    Attack("date that is none", _text(lambda _: "steps: 2026-99-99")),
    Attack("key that is a list", _text(lambda _: "? [a, b]\n: 1")),
    Attack("deep blocks", _text(lambda _: "- " * 20_000 + "a")),
    Attack("absurd steps", _text(lambda honest: honest + "\nsteps: 99999999999999999999999999\n")),
]
USER_FILES = {"job.yaml": ("plan", "job.yaml"), "hosts.yaml": ("probe", "hosts.yaml")}
HOLMES_FILES = {
    "inventory.json": ("plan", "job.yaml"),
    "plan.json": ("launch", "plan.json"),
    "recording/a1/recording.json": ("probe", "--replay", "recording", "--json"),
    "recording/a1/host.json": ("probe", "--replay", "recording", "--json"),
    "run/run.json": ("status", "run"),
    "run/plan.json": ("logs", "run", "--rank", "0"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what the first test of this process made."""
    return tmp_path_factory.mktemp("kept") / "honest"


@pytest.fixture
def honest(command: Command, tmp_path: Path, kept: Path) -> dict[str, str]:
    """One of every file Holmes reads, and their texts."""
    if kept.exists():
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    else:
        write_inputs(tmp_path)
        assert command("probe", "hosts.yaml", "--record", "recording").code == 0
        assert command("plan", "job.yaml").code == 0
        run = tmp_path / "run"
        (run / "logs").mkdir(parents=True)
        (run / "plan.json").write_bytes((tmp_path / "plan.json").read_bytes())
        (run / "events.jsonl").touch()
        _write_run(run)
        shutil.copytree(tmp_path, kept)
    return {name: (tmp_path / name).read_text(encoding="utf-8") for name in (*USER_FILES, *HOLMES_FILES)}


def _write_run(folder: Path) -> None:
    from holmes_core.records.record_file import write_signed
    from holmes_core.records.run import Run

    write_signed(folder / "run.json", Run(run_id="r", plan_digest="", state="done", started_at_s=0.0))


def _mutants(text: str, count: int) -> Iterator[str]:
    """The text with bytes cut, doubled, or changed for what parsers care about."""
    chance = random.Random(text[:40])
    for _ in range(count):
        at, length = chance.randrange(len(text)), chance.choice((1, 5, 200))
        yield text[:at] + chance.choice(("", "{", "]", '"', "\\u0000", HUGE, "-1", "null", ": ")) + text[at + length :]


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Twenty attacks on each of eight files, ten more on YAML, five mutants of all but hosts.yaml, since a probe would ask
# whatever hosts they name: 215 in all.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), [*USER_FILES.items(), *HOLMES_FILES.items()])
def test_every_hostile_file_is_refused_in_a_sentence(
    command: Command, honest: dict[str, str], tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak of memory begins anew
    at_first_kib = _peak_memory_kib()
    for attack in (*ANY, *(YAML if name in USER_FILES else ())):
        attack.place(tmp_path / name, honest[name])
        before = _tree(tmp_path)
        done = command(*arguments)
        assert done.code == 2, f"{attack.name}: {done}"
        assert _tree(tmp_path) == before, f"{attack.name}: {done}"
        _check_manners(done, attack.name)
        _restore(tmp_path / name, honest[name])
    for mutant in _mutants(honest[name], 0 if name == "hosts.yaml" else 5):
        _replace(tmp_path / name, mutant.encode())
        done = command(*arguments)
        assert done.code in (0, 1, 2), f"{mutant}: {done}"  # it may have changed nothing that counts
        _check_manners(done, mutant)
    assert not (tmp_path / "canary").exists()
    assert _peak_memory_kib() - at_first_kib < GIB_IN_KIB


def _peak_memory_kib() -> int:
    """Return the most memory that this process has held since its peak began anew."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _check_manners(done: Done, attack: str) -> None:
    if done.code == 2:
        assert done.stderr.count("hint: ") == 1, f"{attack}: {done}"
        assert len(done.stderr) < 5000, f"{attack}: {done}"
    assert "Traceback" not in done.stderr + done.stdout, f"{attack}: {done}"
    assert not set("\x1b\x07\x9b") & set(done.stderr + done.stdout), f"{attack}: {done}"


def _restore(path: Path, text: str) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    _replace(path, text.encode())


@pytest.mark.parametrize("name", few_of(1, ["recording/a1/00.txt", "recording/trunks.json", "run/logs/a1-rank0.log"]))
@pytest.mark.parametrize("target", few_of(1, ["secret", "/dev/zero", "/proc/self/environ"]))
def test_links_out_of_a_recording_or_run_folder_are_not_followed(
    command: Command, honest: dict[str, str], tmp_path: Path, name: str, target: str
) -> None:
    (tmp_path / "secret").write_text("s3cr3t-word", encoding="utf-8")
    entries = json.loads(honest["recording/a1/recording.json"])
    entries[0]["file"] = "00.txt"
    (tmp_path / "recording/a1/00.txt").write_text("", encoding="utf-8")
    (tmp_path / "recording/a1/recording.json").write_text(json.dumps(entries), encoding="utf-8")
    _link(str(tmp_path / target))(tmp_path / name, "")
    arguments = ("logs", "run") if name.startswith("run") else ("probe", "--replay", "recording", "--json")
    done = command(*arguments)
    assert done.code == 2, done
    assert "s3cr3t-word" not in done.stdout + done.stderr


@pytest.mark.slow
def test_escapes_of_a_rank_s_output_do_nothing_in_a_terminal(
    command: Command, honest: dict[str, str], tmp_path: Path
) -> None:
    assert honest
    (tmp_path / "run/logs/a1-rank0.log").write_text("\x1b]0;owned\x07\x1b[2Jloss\x9b31m\n", encoding="utf-8")
    done = command("logs", "run")
    assert done.code == 0
    assert "\\x1b]0;owned" in done.stdout
    assert "\\x1b[2Jloss\\x9b31m" in done.stdout
    assert not set("\x1b\x07\x9b") & set(done.stdout)


@pytest.mark.slow
def test_logs_tell_when_each_line_came_where_they_are_asked(
    command: Command, honest: dict[str, str], tmp_path: Path
) -> None:
    assert honest
    text = "2026-11-23T09:41:12.345Z loss 1\nof before\n"
    (tmp_path / "run/logs/a1-rank0.log").write_text(text, encoding="utf-8")
    assert command("logs", "run").stdout.splitlines() == ["a1 rank 0 | loss 1", "a1 rank 0 | of before"]
    assert command("logs", "run", "--times").stdout.splitlines() == [
        "2026-11-23T09:41:12.345Z a1 rank 0 | loss 1",
        "- a1 rank 0 | of before",
    ]


def test_run_folder_is_its_user_s_alone(tmp_path: Path) -> None:
    from launcher.journal.run_events import LogLine
    from launcher.journal.run_folder import RunFolder

    folder = RunFolder(tmp_path / "runs" / "r")
    folder.write_files({"node-0.env": "TOKEN=x"})
    folder.write_event(LogLine("a1", "a", 0, "text"))
    folder.close()
    modes = {path.name: path.stat().st_mode & 0o077 for path in (folder.path, *folder.path.rglob("*"))}
    assert set(modes) >= {"r", "logs", "a1-rank0.log", "events.jsonl", "node-0.env"}
    assert set(modes.values()) == {0}
