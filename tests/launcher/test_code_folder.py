"""The folder of the user's own code: what of it travels, what is refused, and what the record says of it."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from launcher.emit.emit import emit
from launcher.emit.write_folder import write_folder
from launcher.prepare import code_folder
from launcher.prepare.code_folder import read_code, read_code_files
from launcher.prepare.prepare import Attempt, prepare, run_config_of
from launcher.prepare.trusted_parts import brought_by_plan
from launcher.prepare.user_variables import read_user_variables
from tests.launcher.plans import cpu_plan
from tests.planner.fleets import bed_job


def write(folder: Path, **files: str) -> Path:
    """`folder` with files by name; `__` in a keyword stands for a slash, `_py` for its end."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def plan_with_code(code: str = "src", factory: str = "net/mine.py:build") -> Plan:
    model = {**vars(bed_job().model), "factory": factory}
    return cpu_plan(model=model, launch={"code": code})


def test_what_is_code_travels_and_what_is_not_stays(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="x = 1\n", net__part_py="y = 2\n", table="1 2 3")
    (code / "weights.bin").write_bytes(b"\xff\0\xfe")
    for left_out in (".git/config", ".env", "__pycache__/mine.cpython-312.pyc", "net/old.pyc"):
        write(code, **{left_out: "no"})
    write(code, **{"venv/pyvenv.cfg": "", "venv/lib/torch.py": "no", "runs/1/controller.lock": "", "runs/1/a.py": "no"})
    assert read_code_files(code) == {
        "mine.py": "x = 1\n",
        "net/part.py": "y = 2\n",
        "table": "1 2 3",
        "weights.bin": "\udcff\0\udcfe",
    }


def test_a_link_inside_is_sent_as_a_file_and_one_that_leads_out_is_refused(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="x = 1\n")
    (code / "same.py").symlink_to("mine.py")
    assert read_code_files(code)["same.py"] == "x = 1\n"
    (tmp_path / "key").write_text("secret", encoding="utf-8")
    (code / "out.py").symlink_to("../key")
    with pytest.raises(HolmesError, match=r"launch\.code: .*/out\.py: cannot be sent: leads out of .*src, to .*/key"):
        read_code_files(code)


@pytest.mark.parametrize("target", ["/etc", "..", "net", "gone"])
def test_a_link_to_a_folder_or_to_nothing_is_refused(tmp_path: Path, target: str) -> None:
    code = write(tmp_path / "src", net__mine_py="x = 1\n")
    (code / "link").symlink_to(target)
    with pytest.raises(HolmesError, match=r"launch\.code: .*/link: cannot be sent: ") as refused:
        read_code_files(code)
    assert refused.value.exit_code == 2


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="")
    os.mkfifo(code / "pipe")
    with pytest.raises(HolmesError, match=r"/pipe: cannot be sent: a pipe, socket or device"):
        read_code_files(code)


def test_a_folder_that_is_too_much_is_refused_by_its_largest_files(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="x = 1\n")
    for name, size in (("checkpoint.pt", code_folder.MAX_BYTES), ("small.bin", 2_000_000)):
        with open(code / name, "wb") as file:
            file.truncate(size)
    with pytest.raises(HolmesError, match=r"largest: checkpoint\.pt \(67\.11 MB\), small\.bin \(2\.00 MB\), mine\.py"):
        read_code_files(code)


@pytest.mark.slow
def test_too_many_files_are_not_looked_through(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="x = 1\n")
    for number in range(code_folder.MAX_FILES):
        (code / f"{number}.txt").touch()
    with pytest.raises(HolmesError, match=r"src holds more than 10000 files"):
        read_code_files(code)


@pytest.mark.parametrize(("code", "said"), [("nowhere", "does not exist"), ("src/net/mine.py", "is not a folder")])
def test_a_folder_that_is_none_is_named(tmp_path: Path, code: str, said: str) -> None:
    write(tmp_path / "src", net__mine_py="")
    with pytest.raises(HolmesError, match=rf"launch\.code: .*{code}: {said}"):
        read_user_variables(plan_with_code(code).job, {}, tmp_path)


def test_the_model_must_be_in_it_and_be_python(tmp_path: Path) -> None:
    write(tmp_path / "src", net__mine_py="def build(layers, job)\n")
    with pytest.raises(HolmesError, match=r"net/mine\.py, line 1: expected ':'"):
        read_user_variables(plan_with_code().job, {}, tmp_path)
    with pytest.raises(HolmesError, match=r"model\.factory: mine\.py is not among the files of launch\.code, .*src"):
        read_user_variables(plan_with_code(factory="mine.py:build").job, {}, tmp_path)


def test_the_same_code_is_one_parcel_and_changed_code_another(tmp_path: Path) -> None:
    code, plan = write(tmp_path / "src", net__mine_py="def build(): ...\n"), plan_with_code()

    def parcels() -> tuple[str, ...]:
        bundles = prepare(plan, Attempt("r"), read_user_variables(plan.job, {}, tmp_path))
        return tuple(parcel.digest for parcel in bundles[0].parcels)

    first = parcels()
    (code / "net" / "mine.py").touch()
    (code / "__pycache__").mkdir()
    assert parcels() == first
    write(code, net__other_py="")
    assert parcels()[:2] == first[:2]
    assert parcels()[2] != first[2]


def test_a_node_links_to_the_folder_and_the_run_configuration_names_the_model_in_it(tmp_path: Path) -> None:
    write(tmp_path / "src", net__mine_py="def build(): ...\n", **{"a" * 90 + "/" + "b" * 90: "long name"})
    plan = plan_with_code()
    one = prepare(plan, Attempt("r"), read_user_variables(plan.job, {}, tmp_path))[0]
    code = one.parcels[2]
    assert code.entries == ("code",)
    assert f'"{code.folder}/code"' in one.hold_command
    with tarfile.open(fileobj=BytesIO(code.archive)) as tar:
        assert sorted(tar.getnames()) == [f"code/{'a' * 90}/{'b' * 90}", "code/net/mine.py"]
    assert run_config_of(plan, "r").model.factory == "code/net/mine.py:build"
    assert "mine.py" not in one.parcels[1].files


def test_a_stored_run_finds_the_code_as_it_was_sent(tmp_path: Path) -> None:
    code, plan = write(tmp_path / "src", net__mine_py="def build(): ...\n"), plan_with_code()
    before = read_user_variables(plan.job, {}, tmp_path)
    assert before.code is not None
    write(tmp_path / "runs" / "1" / "code", net__mine_py="def build(): ...\n")
    write(code, net__mine_py="def build(): return 1\n")
    after = read_user_variables(plan.job, {}, tmp_path / "runs" / "1", stored=True)
    assert after.code is not None
    assert after.code.files == before.code.files


def test_emitted_folders_hold_the_code(tmp_path: Path) -> None:
    code, plan = write(tmp_path / "src", net__mine_py="def build(): ...\n"), plan_with_code()
    (code / "table.bin").write_bytes(b"\xff\0")
    write_folder(tmp_path / "out", emit(plan, "mpi", read_user_variables(plan.job, {}, tmp_path)))
    assert (tmp_path / "out" / "code" / "table.bin").read_bytes() == b"\xff\0"
    assert (tmp_path / "out" / "code" / "net" / "mine.py").read_text() == "def build(): ...\n"


def test_a_foreign_plan_shows_that_it_would_send_a_folder() -> None:
    brought = brought_by_plan(plan_with_code("~/.ssh"))
    assert ("send", "the folder ~/.ssh here, as launch.code") in [(each.what, each.value) for each in brought]


@pytest.mark.parametrize(
    ("factory", "code", "said"),
    [
        (None, "src", "nothing imports from it"),
        ("/on/hosts.py:build", "src", "nothing imports from it"),
        ("net/mine.py:build", None, "name the folder in launch.code"),
    ],
)
def test_code_without_its_model_and_a_model_without_its_code_are_refused(
    factory: str | None, code: str | None, said: str
) -> None:
    job = bed_job().model_dump()
    job["model"]["factory"], job["launch"]["code"] = factory, code
    with pytest.raises(ValueError, match=said):
        Job.model_validate(job)


def git(folder: Path, *words: str) -> str:
    names = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    )
    return subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True).stdout


def test_the_record_says_which_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    code = write(tmp_path / "src", net__mine_py="x = 1\n")
    none = read_code(code).sent
    assert none is not None
    assert (none.revision, none.changed, none.files, none.size_bytes) == (None, None, 1, 6)
    git(tmp_path, "init", "-q")
    write(tmp_path, **{".gitignore": "*.so\nbuilt/\n"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()

    def changed() -> bool | None:
        sent = read_code(code).sent
        assert sent is not None
        assert sent.revision == commit
        return sent.changed

    write(tmp_path, elsewhere_py="")
    write(code, **{"runs/1/controller.lock": "", "__pycache__/mine.pyc": "", ".env": ""})
    assert changed() is False
    for name in ("fast.so", "built/a.py", "new.py"):
        write(code, **{name: "no"})
        assert changed() is True, name
        (code / name).unlink()
    assert changed() is False
    write(code, net__mine_py="x = 2\n")
    assert changed() is True
    git(tmp_path, "checkout", "-q", ".")
    (code / "net" / "mine.py").rename(code / "net" / "his.py")
    assert changed() is True


def test_no_program_that_watches_a_repository_is_started(tmp_path: Path) -> None:
    code = write(tmp_path / "src", mine_py="x = 1\n")
    git(code, "init", "-q")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    git(code, "config", "core.fsmonitor", str(hook))
    read_code(code)
    assert not (tmp_path / "ran").exists()
