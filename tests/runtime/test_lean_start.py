"""The lean start runs a module's main with its own arguments and exit code; the agent starts lean, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .launched_runs import write_corpus

MODULE = """
import atexit, gc, os, sys

def main():
    atexit.register(os.abort)  # as a thread of a library may, while the process is taken apart
    print(sys.argv, gc.isenabled())
    if sys.argv[1] == "raise":
        raise ValueError("on purpose")
    if sys.argv[1] in ("exit 2", "say"):
        sys.exit(2 if sys.argv[1] == "exit 2" else "no such file")
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


@pytest.mark.parametrize(
    ("argument", "code", "last"),
    [("raise", 1, "ValueError: on purpose"), ("exit 2", 2, ""), ("say", 1, "no such file")],
)
def test_an_error_ends_with_its_own_exit_code_and_words(tmp_path: Path, argument: str, code: int, last: str) -> None:
    done = started(tmp_path, argument)
    assert done.returncode == code
    assert done.stderr.strip().endswith(last)


@pytest.mark.torch
def test_a_rank_that_is_started_without_it_also_leaves_at_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n", encoding="utf-8")
    command = [sys.executable, "-m", "holmes_runtime.train", str(tmp_path / "absent.json")]
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "RANK": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (
        1,
        "RuntimeError: LOCAL_RANK, WORLD_SIZE not set: start this module with torchrun",
    )


def test_agent_imports_nothing_that_takes_long() -> None:
    # site may import some of them on its own
    program = "import sys, holmes_runtime.node.agent; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    slow = {"dataclasses", "inspect", "logging", "email", "importlib.metadata", "concurrent.futures", "asyncio"}
    assert slow & set(done.stdout.split()) == set()


TRAINS = """
import sys, torch, holmes_runtime.train
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer
from tests.runtime.launched_runs import make_config

config = make_config(sys.argv[1])
corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu")).step(0)
print({'torch._dynamo', 'torch.distributed.tensor'} & set(sys.modules))
"""


@pytest.mark.torch
def test_a_rank_imports_no_compiler_and_no_checkpoints_before_a_job_asks_for_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINS, str(write_corpus(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "set()\n"
