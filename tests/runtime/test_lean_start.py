"""The lean start runs a module's main with its own arguments and exit code; the agent starts lean, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import gc, sys

def main():
    print(sys.argv, gc.isenabled())
    if sys.argv[1] == "raise":
        raise ValueError("on purpose")
    return int(sys.argv[1])
"""


def started(folder: Path, argument: str) -> subprocess.CompletedProcess[str]:
    (folder / "given.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "holmes_runtime.node.lean_start", "given", argument]
    environment = {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("code", [0, 7])
def test_exit_code_and_output_are_those_of_main(tmp_path: Path, code: int) -> None:
    done = started(tmp_path, str(code))
    assert done.returncode == code
    assert done.stdout == f"['given', '{code}'] True\n"


def test_exception_takes_the_ordinary_way_out(tmp_path: Path) -> None:
    done = started(tmp_path, "raise")
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr


def test_agent_imports_nothing_that_takes_long() -> None:
    # site may import some of them on its own
    program = "import sys, holmes_runtime.node.agent; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    slow = {"dataclasses", "inspect", "logging", "email", "importlib.metadata", "concurrent.futures", "asyncio"}
    assert slow & set(done.stdout.split()) == set()
