"""A run whose model lies in a folder of the user's code: sent once, imported from, and noted in the run's record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.journal.run_folder import read_run
from tests.builders.local_runs import holmes, nothing_is_left, small_job, write_plan
from tests.eventually import eventually

pytestmark = pytest.mark.process

OWN_MODEL = Path(__file__).parents[2] / "examples" / "own-model-file" / "own_model.py"
MINE = """
import typing_of_mine
from net import whole
from net.whole import build as build_whole

assert whole.__file__.endswith("code/net/whole.py"), whole.__file__

def build(stage_layers, job):
    print("built with", typing_of_mine.NAME, flush=True)
    return build_whole(stage_layers, job)
"""


def with_code(folder: Path) -> Path:
    """A plan in `folder` whose model imports others of `src`; the folder of code."""
    code = folder / "src"
    (code / "net").mkdir(parents=True)
    shutil.copy(OWN_MODEL, code / "net" / "whole.py")
    (code / "net" / "mine.py").write_text(MINE, encoding="utf-8")
    (code / "typing_of_mine.py").write_text("NAME = 'a module beside'\n", encoding="utf-8")
    write_plan(folder, model={**small_job(folder)["model"], "factory": "net/mine.py:build"}, launch={"code": "src"})
    return code


def test_ranks_import_the_users_code_which_is_sent_once_shown_and_kept_for_a_detached_run(tmp_path: Path) -> None:
    code = with_code(tmp_path)
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 0, done.stderr
    detached = holmes(tmp_path, "launch", "plan.json", "--detach")
    assert detached.returncode == 0, detached.stderr
    kept = code.rename(tmp_path / "gone")
    last = tmp_path / "runs" / detached.stdout.strip()
    assert eventually(lambda: read_run(last).state != "running")
    assert read_run(last).state == "done"
    kept.rename(code)
    parcels = {each.parent: each for each in (tmp_path / "home/.cache/holmes/parcels").glob("*/code")}
    assert len(parcels) == 1
    folder = next(each for each in (tmp_path / "runs").iterdir() if each != last)
    assert "built with a module beside" in (folder / "logs" / "a1-rank0.log").read_text(encoding="utf-8")
    for run in (folder, last):
        sent = read_run(run).code
        assert sent is not None
        assert (sent.folder, sent.files) == (str(code), 3)
    assert f"code: {code}, 3 files, " in holmes(tmp_path, "status", str(folder)).stdout
    assert (folder / "code" / "net" / "mine.py").read_text(encoding="utf-8") == MINE
    assert eventually(lambda: nothing_is_left(tmp_path))


def test_a_model_named_as_a_module_of_python_is_told_from_it(tmp_path: Path) -> None:
    code = tmp_path / "src"
    code.mkdir()
    shutil.copy(OWN_MODEL, code / "tokenize.py")
    write_plan(tmp_path, model={**small_job(tmp_path)["model"], "factory": "tokenize.py:build"}, launch={"code": "src"})
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 1
    assert "code/tokenize.py: another module is already named tokenize: /" in done.stderr
    assert "rename the file" in done.stderr
