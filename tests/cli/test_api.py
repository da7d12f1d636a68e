"""Holmes from Python does what the commands do, which go in by the same functions."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.api import launch, plan, probe
from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, read_user_file, write_signed
from holmes_core.records.run import Settings
from launcher.journal.run_events import RunEvent
from launcher.journal.run_folder import read_run
from launcher.journal.step_metrics import StepMetrics
from tests.cli.conftest import Command
from tests.free_ports import free_port
from tests.launcher.plans import cpu_plan
from tests.planner.fleets import bed_job, cpu_inventory
from tests.testbed.rehearsal import local_site, standard_library_corpus

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "slurm-job" / "own_launcher.py"
JOB = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
    "global_batch_size": 8,
    "steps": 4,
    "device": "cpu",
    "compute": {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}},
    "parallel": {"pp": 2, "dp": 1},
    "timeout_s": 300,
}


def planned_by_command(command: Command, folder: Path) -> Plan:
    """What `holmes plan` makes of the bed's job, whose files it leaves in the folder."""
    write_signed(folder / "inventory.json", cpu_inventory((2, 2)))
    job = bed_job().model_dump(mode="json", exclude_defaults=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    assert command("plan", "job.yaml", "--json").code == 0
    return read_file(Plan, folder / "plan.json")


def test_plan_is_that_of_the_command(command: Command, tmp_path: Path) -> None:
    expected = planned_by_command(command, tmp_path)
    told: list[str] = []
    made = plan(
        read_file(Inventory, tmp_path / "inventory.json"), read_user_file(Job, tmp_path / "job.yaml"), tell=told.append
    )
    assert made == expected
    assert any("placements settled" in line for line in told)


def stub_srun(folder: Path, script: str) -> dict[str, str]:
    """Make `srun` of these lines, and return the environment that finds it."""
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "bin" / "srun").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}


def trainer_job(*command: str, **changes: Any) -> dict[str, Any]:
    """The keys of a job for a script of one's own."""
    keys = {"model", "steps", "global_batch_size", "device", "compute"}
    kept: dict[str, Any] = bed_job().model_dump(mode="json", include=keys)
    parallel = {"tp": 1, "pp": 1, "dp": 4}
    return {**kept, "parallel": parallel, "trainer": {"engine": "torch", "command": list(command)}, **changes}


def run_example(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(EXAMPLE), "inventory.json", "job.yaml"]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_example_of_twenty_lines_places_ranks_as_the_plan_does(tmp_path: Path) -> None:
    code = EXAMPLE.read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 20
    inventory, job = cpu_inventory((2, 2)), trainer_job("python", "my train.py")
    (tmp_path / "inventory.json").write_text(inventory.to_json(), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    said = 'printf "%s\\0" "$@" >"rank.$$"; exit 3'
    done = run_example(tmp_path, stub_srun(tmp_path, said))
    assert (done.returncode, done.stderr) == (3, "")
    lines = [file.read_text(encoding="utf-8").split("\0")[:-1] for file in tmp_path.glob("rank.*")]
    expected = plan(inventory, Job.model_validate(job))
    by_rank = {next(word for word in line if word.startswith("RANK=")): line for line in lines}
    assert len(by_rank) == len(lines) == 4
    for rank in expected.ranks:
        line = by_rank[f"RANK={rank.rank}"]
        node = next(node for node in expected.nodes if node.host == rank.host)
        assert (line[line.index("--nodelist") + 1], line[-2:]) == (rank.host, ["python", "my train.py"])
        assert {f"{each.name}={each.value}" for each in node.environment} < set(line)
        assert {f"LOCAL_RANK={rank.local_rank}", "LOCAL_WORLD_SIZE=1", "WORLD_SIZE=4"} < set(line)
        assert not [word for word in line if word.startswith("HOLMES_")]


@pytest.mark.process
def test_ranks_of_the_example_meet(tmp_path: Path) -> None:
    inventory = probe(read_hosts_file(local_site(tmp_path).hosts_yaml))
    (tmp_path / "inventory.json").write_text(inventory.to_json(), encoding="utf-8")
    job = trainer_job(sys.executable, "train.py", master_port=free_port())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    script = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, dist.get_rank())
os.write(1, f"met {ranks}\\n".encode())
os._exit(0)  # one of Gloo's threads that ends with Python may abort the process
"""
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    done = run_example(tmp_path, stub_srun(tmp_path, 'shift 4; exec "$@"'))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["met [0, 1, 2, 3]"] * 4


def test_probe_gives_the_inventory_and_tells_how_far_it_is() -> None:
    told: list[str] = []
    found = probe(HostsFile.model_validate({"transport": "local", "hosts": ["a"]}), tell=told.append)
    assert [(host.name, host.reachable) for host in found.hosts] == [("a", True)]
    assert told == ["asking 1 hosts", "1 of 1 hosts answered; a: read"]


def test_a_detached_run_inside_a_slurm_job_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    by_slurm = cpu_plan()
    nodes = [
        node.model_copy(update={"access": node.access.model_copy(update={"transport": "slurm"})})
        for node in by_slurm.nodes
    ]
    with pytest.raises(HolmesError, match="end with the process that starts them"):
        launch(
            by_slurm.model_copy(update={"nodes": tuple(nodes)}),
            runs=tmp_path / "runs",
            settings=Settings(detached=True),
        )
    assert not (tmp_path / "runs").exists()


class Watching:
    """A view that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def show(self, event: RunEvent) -> None:
        self.events.append(event)

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Its record tells."""

    def take_plan(self, plan: Plan) -> None:
        """The plan stays."""


@pytest.mark.process
def test_the_session_of_the_page_trains_and_the_run_can_be_launched_again_with_a_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    local_site(tmp_path).write_job("job", {**JOB, "data": standard_library_corpus()})
    session: dict[str, Any] = {}
    exec((ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], session)
    run = session["run"]
    assert (run.state, run.exit_code, run.steps_done, run.not_ended) == ("done", 0, 4, ())
    assert read_run(tmp_path / "runs" / run.run_id) == run
    assert capsys.readouterr().out == f"done {run.last_loss} runs/{run.run_id}\n"

    view = Watching()
    again = launch(session["placed"], session["inventory"], view=view)
    assert again.last_loss == run.last_loss
    assert [event.step for event in view.events if isinstance(event, StepMetrics)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("command", "beside_it"),
    [
        ("probe", {"prober.probe.probe", "prober.links.links"}),
        ("plan", {"planner.make_plan.make_plan"}),
        ("launch", {"launcher.launch", "launcher.journal.run_folder.new_folder"}),
    ],
)
def test_commands_go_in_by_the_same_functions(command: str, beside_it: set[str]) -> None:
    text = (ROOT / "holmes_cli" / "commands" / f"{command}_command.py").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert f"holmes_cli.api.{command}" in names
    assert names & beside_it == set()
    assert {node.module for node in imports} & beside_it == set()


@pytest.mark.parametrize("package", ["holmes_cli", "holmes_core", "prober", "planner", "launcher", "holmes_runtime"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
