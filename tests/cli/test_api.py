"""Holmes from Python does what the commands do, which go in by the same functions."""

from __future__ import annotations

import ast
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.api import launch, plan, probe
from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, read_user_file, write_signed
from holmes_core.records.run import Settings
from launcher.journal.run_events import RunEvent
from launcher.journal.run_folder import read_run
from launcher.journal.step_metrics import StepMetrics
from tests.cli.conftest import Command
from tests.launcher.plans import cpu_plan
from tests.planner.fleets import bed_job, cpu_inventory
from tests.testbed.rehearsal import local_site, standard_library_corpus

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "own_launcher.py"
JOB = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
    "global_batch_size": 8,
    "steps": 4,
    "device": "cpu",
    "compute": {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}},
    "parallel": {"pp": 2, "dp": 1},
    "timeout_s": 60,
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


def test_example_of_twenty_lines_places_ranks_as_the_plan_does(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = EXAMPLE.read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 20
    expected = planned_by_command(command, tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "inventory.json", "job.yaml", "python", "my train.py"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line[3], line[-2:]) for line in lines] == [
        (rank.host, ["python", "my train.py"]) for rank in expected.ranks
    ]
    for line, rank in zip(lines, expected.ranks, strict=True):
        node = next(node for node in expected.nodes if node.host == rank.host)
        assert {f"{each.name}={each.value}" for each in node.environment} < set(line)
        assert {f"RANK={rank.rank}", f"LOCAL_RANK={rank.local_rank}", "WORLD_SIZE=4"} < set(line)


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
    with pytest.raises(HolmesError, match="ends with this process"):
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
