"""`holmes demo` where it cannot run; docs/tutorials/laptop.md, which is tested, runs it to the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holmes_cli.demo import demo_run
from tests.cli.conftest import Command


def test_demo_leaves_a_folder_that_is_there_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "holmes-demo").mkdir()
    done = command("demo")
    assert done.code == 2
    assert "holmes-demo: cannot be made: File exists\nhint: name another: `holmes demo FOLDER`" in done.stderr
    assert list((tmp_path / "holmes-demo").iterdir()) == []


def test_demo_says_in_a_line_that_this_kernel_lets_nobody_train(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "may_filter", lambda: False)
    done = command("demo", "tried")
    assert done.code == 1
    assert done.stderr.splitlines()[0].startswith("error: the kernel lets only root attach socket filters")
    assert "hint: run the demo as root" in done.stderr


def test_demo_without_torch_says_how_to_get_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = command("demo")
    assert done.code == 2
    assert "has no torch" in done.stderr
    assert "pip install 'torch>=" in done.stderr
    assert list(tmp_path.iterdir()) == []
