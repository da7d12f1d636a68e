"""`holmes launch` of islands of a script of plain torch: one is killed and comes back, and scripts that do not join."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from launcher.journal.run_folder import read_run
from tests.builders.local_runs import ROOT, holmes, nothing_is_left
from tests.eventually import eventually
from tests.free_ports import free_port

from .test_islands_runs import agent_of, exchanges, launched, run_folder

pytestmark = pytest.mark.process

EXAMPLE = ROOT / "examples" / "own-trainer-islands"
STEP = "    step = island.step()\n"
# Island 0 waits before a step until the other is about to come back, and has many steps left then.
WAITS = """
    while island.number == 0 and step == 24 and not os.path.exists(sys.argv[0] + ".go"):
        time.sleep(0.1)
"""
# Island 1 takes steps and has nothing to send. Island 0 is slow until the other is lost.
DIVERGES = """
    if island.number == 1:
        for each in model.parameters():
            each.data.mul_(float("nan"))
    elif not os.path.exists(sys.argv[0] + ".go"):
        import time
        time.sleep(0.5)
"""
DIGEST = """
import hashlib
whole = [each.full_tensor() for each in model.parameters()]
if dist.get_rank() == 0:
    text = b"".join(each.detach().numpy().tobytes() for each in whole)
    print("weights", hashlib.sha256(text).hexdigest(), flush=True)
dist.barrier()
"""
NEVER_JOINS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, int(sys.argv[1])):
    dist.barrier()
    if dist.get_rank() == 0 and {prints}:
        print(f"step {{step}} loss 1.5", flush=True)
    time.sleep({pause_s})
dist.destroy_process_group()
"""

ACCELERATE = """
import hashlib, os, sys, torch, torch.distributed as dist
from accelerate import Accelerator
from holmes_runtime.outer.island import Island

steps, accelerator = int(sys.argv[1]), Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
island = Island(model.named_parameters(), steps)
step = island.begin(0)
generator = torch.Generator().manual_seed(dist.get_rank() * island.count + island.number)
while step < steps:
    inputs = torch.randn(16, 64, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :8].argmax(1))
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step + 1} loss {loss.item()}", flush=True)
    step = island.step()
text = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print("weights", hashlib.sha256(text).hexdigest(), flush=True)
dist.barrier()
os._exit(0)
"""


def plan_script(folder: Path, script: str, **changes: object) -> None:
    """plan.json of the example's two islands, with another script and other keys of job.yaml."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    (folder / "src" / "train.py").write_text(script, encoding="utf-8")
    job = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "master_port": free_port(), **changes}), encoding="utf-8")
    for words in (("probe", "hosts.yaml"), ("plan", "job.yaml")):
        done = holmes(folder, *words)
        assert done.returncode == 0, done.stderr


def printed(island: Path, pattern: str) -> list[str]:
    """Return all matches in the output of an island's ranks, over all attempts."""
    return [
        found for file in sorted((island / "logs").glob("*.log")) for found in re.findall(pattern, file.read_text())
    ]


def test_a_killed_island_of_a_script_of_torch_comes_back_and_ends_with_the_others_model(tmp_path: Path) -> None:
    script = (EXAMPLE / "src" / "train.py").read_text(encoding="utf-8")
    script = script.replace("import os\n", "import os\nimport time\n").replace(STEP, WAITS + STEP)
    begin = "step = island.begin(0)\n"
    script = script.replace(begin, f'print("is about to begin", flush=True)\n{begin}')
    script = script.replace("dist.barrier()\n", DIGEST)
    assert script.count("time.sleep") == script.count("about to begin") == script.count("hashlib.sha256") == 1
    plan_script(tmp_path, script, steps=160, timeout_s=600)
    with launched(tmp_path) as process:
        assert eventually(lambda: any(exchanges(each) for each in (tmp_path / "runs").glob("*/island-1")))
        islands = [run_folder(tmp_path) / name for name in ("island-0", "island-1")]
        os.kill(agent_of(tmp_path, "island-1"), signal.SIGKILL)
        assert eventually(lambda: len(printed(islands[1], "is about to begin")) > 2)
        (runs,) = (tmp_path / "home" / ".cache" / "holmes" / "runs").glob("*-island-0")
        for code in (path.parent for path in runs.glob("*/code/train.py")):
            (code / "train.py.go").touch()
        assert process.wait(timeout=600) == 0
    assert [read_run(island).attempt for island in islands] == [0, 1]
    assert [each["has_joined"] for each in exchanges(islands[1])].count(True) == 1
    first, second = ({each["exchange"]: each["digest"] for each in exchanges(island)} for island in islands)
    last = max(first)
    assert first[last] == second[last]
    assert printed(islands[0], "weights [0-9a-f]{64}") == printed(islands[1], "weights [0-9a-f]{64}") != []
    assert nothing_is_left(tmp_path)


def test_an_island_that_diverges_after_each_return_is_lost_in_the_end(tmp_path: Path) -> None:
    script = (EXAMPLE / "src" / "train.py").read_text(encoding="utf-8")
    assert STEP in script
    plan_script(tmp_path, script.replace(STEP, DIVERGES + STEP), steps=600, timeout_s=600)
    with launched(tmp_path, "--restarts", "1") as process:
        assert eventually(lambda: any((tmp_path / "runs").glob("*/island-1/run.json")))
        islands = [run_folder(tmp_path) / name for name in ("island-0", "island-1")]
        assert eventually(lambda: read_run(islands[1]).state != "running")
        for code in (tmp_path / "home" / ".cache" / "holmes" / "runs").glob("*-island-0/*/code/train.py"):
            code.with_suffix(".py.go").touch()
        assert process.wait(timeout=600) == 1
    assert [(read_run(each).state, read_run(each).attempt) for each in islands] == [("done", 0), ("failed", 1)]
    said = holmes(tmp_path, "status", run_folder(tmp_path).name).stdout
    assert "not restarted: 1 starts in a row reached no outer sync" in said
    assert re.search("island-1 is lost: .*after step [0-9]+ parameter .*lower the learning rate", said)
    assert nothing_is_left(tmp_path)


@pytest.mark.exhaustive  # copies of weights on two ranks are in tests/runtime/test_own_trainer_islands.py, too
def test_islands_of_a_script_of_accelerate_end_with_one_model(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    trainer = {"engine": "accelerate", "command": ["python", "train.py", "{steps}"]}
    plan_script(tmp_path, ACCELERATE, trainer=trainer, parallel={"dp": 2, "zero": 1, "micro_batch_size": 16})
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 0, done.stderr
    weights = [printed(run_folder(tmp_path) / name, "weights [0-9a-f]{64}") for name in ("island-0", "island-1")]
    assert [len(each) for each in weights] == [2, 2]
    assert len({each for of_island in weights for each in of_island}) == 1
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("prints", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_script_that_does_not_join_is_ended_and_said_not_to(tmp_path: Path, prints: bool) -> None:
    plan_script(tmp_path, NEVER_JOINS.format(prints=prints, pause_s=0.5 if prints else 0.0), steps=32)
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 1
    for name in ("island-0", "island-1"):
        run = read_run(run_folder(tmp_path) / name)
        assert (run.state, run.attempt) == ("failed", 0)
        assert "has not joined the other islands" in run.failures[0].message
    assert nothing_is_left(tmp_path)


def test_a_script_is_not_resumed_by_a_launch(tmp_path: Path) -> None:
    plan_script(tmp_path, "")
    done = holmes(tmp_path, "launch", "plan.json", "--resume-step", "8")
    assert done.returncode == 2
    assert "a script of your own resumes by itself" in done.stderr
    assert not (tmp_path / "runs").exists()
