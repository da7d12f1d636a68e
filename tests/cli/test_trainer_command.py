"""A trainer's own command, launched under a plan: losses, endings, restarts, and what is left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.builders.local_runs import holmes, nothing_is_left, small_job, write_plan

pytestmark = pytest.mark.process

DDP = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

assert "HOLMES_RANK_KEY" not in os.environ
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1, 5):
    torch.manual_seed(100 * step + dist.get_rank())
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.17g}", flush=True)
print("ran in", os.getcwd(), "attempt", os.environ.get("HOLMES_ATTEMPT"), flush=True)
dist.destroy_process_group()
os._exit(0)  # DDP keeps Gloo's threads, and one that lets go of a tensor while Python ends aborts the process
"""
FAILS = """
import os, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("step 1 loss 3", flush=True)
dist.barrier()
if dist.get_rank() == 1 and os.environ["HOLMES_ATTEMPT"] in sys.argv[2:]:
    if sys.argv[1] == "raises":
        raise ValueError("a bad batch")
    os.kill(os.getpid(), 9)
dist.barrier()
print("because of", os.environ["HOLMES_ATTEMPT_REASON"], flush=True)
"""


def launched(folder: Path, script: str, *words: str, options: tuple[str, ...] = (), **trainer: Any) -> Any:
    """A launch of `script` as train.py, sent from the folder src. `words` are its arguments, or a whole command."""
    (folder / "src").mkdir()
    for name, text in {"train.py": script, **trainer.pop("files", {})}.items():
        (folder / "src" / name).write_text(text, encoding="utf-8")
    command = trainer.pop("command", ["python", "train.py", *words])
    small = {key: value for key, value in small_job(folder).items() if key not in ("data", "optimizer", "checkpoint")}
    own = {"engine": "torch", "command": command, **trainer}
    changes = {**dict.fromkeys(set(small_job(folder)) - set(small)), "trainer": own, "launch": {"code": "src"}}
    write_plan(folder, **{**changes, "parallel": {"tp": 1, "pp": 1, "dp": 2}})
    return holmes(folder, "launch", "plan.json", *options)


def run_of(folder: Path) -> Run:
    """The record of the only run."""
    (runs,) = (folder / "runs").iterdir()
    return read_file(Run, runs / "run.json")


def log_of(folder: Path, name: str) -> str:
    (runs,) = (folder / "runs").iterdir()
    return (runs / "logs" / name).read_text(encoding="utf-8")


def losses(text: str) -> list[str]:
    # A rank's line and its end may be two writes, with another rank's words between them.
    return re.findall(r"step \d+ loss (\d+\.\d+(?:e-?\d+)?)", text)


def test_losses_are_those_of_bare_torchrun(tmp_path: Path) -> None:
    done = launched(tmp_path, DDP)
    assert done.returncode == 0, done.stderr
    # On loopback alone, as the launch is: a host's name may be that of an interface which comes and goes.
    words = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(tmp_path / "src" / "train.py")]
    command, environment = [sys.executable, "-m", "torch.distributed.run", *words], {"GLOO_SOCKET_IFNAME": "lo"}
    bare = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **environment}
    )
    assert bare.returncode == 0, bare.stderr
    ours = log_of(tmp_path, "a1-rank0.log")
    assert losses(ours) == losses(bare.stdout)
    assert len(losses(ours)) == 4
    run = run_of(tmp_path)
    assert (run.state, run.steps_done, run.last_loss) == ("done", 4, float(losses(ours)[-1]))
    assert f"ran in {tmp_path / 'home'} attempt 0" in ours
    assert nothing_is_left(tmp_path)


def test_wrapper_script_and_module_run_like_a_script(tmp_path: Path) -> None:
    alone = DDP.replace("DistributedDataParallel(", "(")  # which imports torch's compiler
    wrapper = 'cd "$(dirname "$0")" && exec python -m train "$@"\n'
    done = launched(tmp_path, alone, command=["sh", "run.sh"], files={"run.sh": wrapper})
    assert done.returncode == 0, done.stderr
    assert len(losses(log_of(tmp_path, "a1-rank0.log"))) == 4
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        pytest.param("raises", "ValueError: a bad batch", marks=pytest.mark.exhaustive),
        ("dies", "Signal 9 (SIGKILL) received"),
    ],
)
def test_restart_knows_the_reason(how: str, reason: str, tmp_path: Path) -> None:
    done = launched(tmp_path, FAILS, how, "0", options=("--restarts", "1"))
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1 on the same hosts" in done.stderr + done.stdout
    assert f"because of {reason}" in log_of(tmp_path, "a1-rank0.log")
    assert run_of(tmp_path).state == "done"
    assert nothing_is_left(tmp_path)


def test_cause_of_the_end_is_the_rank_s_last_line(tmp_path: Path) -> None:
    done = launched(tmp_path, FAILS, "raises", "0")
    assert done.returncode == 1
    assert "rank 1 failed first: exit code 1\nValueError: a bad batch" in done.stderr
    assert nothing_is_left(tmp_path)


def test_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = launched(tmp_path, DDP, command=["no-such-trainer", "--fast"])
    assert done.returncode == 127
    assert "cannot run 'no-such-trainer' in ~/" in done.stderr
    assert nothing_is_left(tmp_path)


def test_syntax_error_of_the_script_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    done = launched(tmp_path, "def broken(:\n")
    assert done.returncode == 2
    assert "trainer.command" in done.stderr
    assert "line 1" in done.stderr
    assert list(tmp_path.glob("runs/*")) == []
