"""`holmes sketch`: its file, and the commands that take a sketch or refuse it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from holmes_cli.commands.probe_command import _with_kept
from holmes_cli.screen.show_plan import islands_headline
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.record_file import read_file, read_signed, write_signed
from launcher.prepare.prepare import refuse_prediction
from tests.cli.conftest import Command
from tests.planner.fleets import gpu_inventory
from tests.planner.islands_jobs import planned_mode
from tests.planner.test_island_rounds import SLOW, islands_job

SKETCH = "a: 1 x 2 H100, IB 8x400; b: 1 x 2 A100-80, RoCE 2x200; 25 at 5 ms between"
JOB = {
    "model": {"num_layers": 4, "hidden_size": 512, "num_heads": 8, "seq_length": 512},
    "data": {"path": "/data"},
    "steps": 10,
    "global_batch_size": 16,
    "parallel": {"tp": 1, "pp": 2, "dp": 2, "micro_batch_size": 1, "schedule": "1f1b"},
}


@pytest.fixture
def planned(command: Command, tmp_path: Path) -> str:
    """Return the output of `holmes plan` for a sketch."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    assert command("sketch", SKETCH).code == 0
    done = command("plan", "job.yaml", "-i", "sketch.json", "--html", "plan.html")
    assert done.code == 0, done.stderr
    return done.stdout


def test_a_sketch_is_written_and_read_as_this_users_own(command: Command, tmp_path: Path) -> None:
    done = command("sketch", SKETCH)
    assert done.code == 0, done.stderr
    assert done.stdout.endswith("next: holmes plan job.yaml -i sketch.json -o sketch-plan.json\n")
    for words in ("H100", "18 NVLinks", "8 ports", "a - b", "5 ms"):
        assert words in done.stdout
    signed = read_signed(Inventory, tmp_path / "sketch.json")
    assert signed.is_own
    assert signed.record.sketch == SKETCH.replace("A100-80", "A100")


def test_a_file_of_machines_is_read(command: Command, tmp_path: Path) -> None:
    machines = {"clusters": [{"name": "a", "hosts": 2, "gpus_per_host": 8, "gpu": "T4", "fabric": "Ethernet 10"}]}
    (tmp_path / "machines.yaml").write_text(yaml.safe_dump(machines), encoding="utf-8")
    assert command("sketch", "machines.yaml", "-o", "t4.json").code == 0
    assert len(read_file(Inventory, tmp_path / "t4.json").hosts) == 2
    assert command("sketch", "not-there.yaml").code == 2


def test_json_is_printed_and_only_written_where_it_is_named(command: Command, tmp_path: Path) -> None:
    assert json.loads(command("sketch", SKETCH, "--json").stdout)["sketch"].startswith("a: 1 x 2 H100")
    assert list(tmp_path.iterdir()) == []
    command("sketch", SKETCH, "--json", "-o", "x.json")
    assert (tmp_path / "x.json").is_file()


def test_no_file_is_written_over_in_silence(command: Command, tmp_path: Path) -> None:
    other = SKETCH.replace("25", "10")
    assert command("sketch", SKETCH).code == 0
    before = (tmp_path / "sketch.json").read_bytes()
    refused = command("sketch", other)
    assert refused.code == 2
    assert "-o sketch.json" in refused.stderr
    assert (tmp_path / "sketch.json").read_bytes() == before
    named = command("sketch", other, "-o", "sketch.json")
    assert (named.code, "overwrites" in named.stderr) == (0, True)
    write_signed(tmp_path / "inventory.json", gpu_inventory([1, 1]))
    for file in ("inventory.json", "notes.txt"):
        path = tmp_path / file
        path.touch()
        before = path.read_bytes()
        assert command("sketch", SKETCH, "-o", file).code == 2
        assert path.read_bytes() == before


def test_text_at_fault_leaves_no_file(command: Command, tmp_path: Path) -> None:
    refused = command("sketch", SKETCH.replace("H100", "H1OO"))
    assert refused.code == 2
    assert "column 10: " in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_first_that_it_is_for_a_sketch(planned: str, tmp_path: Path) -> None:
    assert planned.startswith("For a sketch, not for probed machines")
    assert "holmes launch" not in planned
    assert "holmes probe" not in planned
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["sketch"].startswith("a: 1 x 2 H100")
    assert "For a sketch" in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("planned")
def test_commands_for_real_machines_refuse_a_sketch(command: Command, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for words in (
        ("launch", "plan.json"),
        ("launch", "plan.json", "--dry-run"),
        ("emit", "plan.json", "--to", "torchrun", "-o", "emitted"),
        ("calibrate", "-i", "sketch.json"),
        ("hosts", "sketch.json", "--to", "topology"),
        ("probe", "hosts.yaml", "--diff", "sketch.json"),
        ("plan", "job.yaml", "-i", "sketch.json", "--calibrate", "runs/x"),
    ):
        refused = command(*words)
        assert refused.code == 2, words
        assert "sketch, not" in refused.stderr, words
        assert SKETCH[:12] in refused.stderr, words
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("planned")
def test_a_plan_of_probed_machines_is_not_started_with_a_sketch_in_their_place(
    command: Command, tmp_path: Path
) -> None:
    write_signed(tmp_path / "inventory.json", gpu_inventory([1, 1]))
    assert command("plan", "job.yaml", "-o", "real.json").code == 0
    (tmp_path / "sketch.json").replace(tmp_path / "inventory.json")
    refused = command("launch", "real.json", "--dry-run", "--force", "plan-current")
    assert (refused.code, "inventory.json: a sketch" in refused.stderr) == (2, True)


def test_a_probe_keeps_no_rates_of_a_sketch(command: Command, tmp_path: Path) -> None:
    assert command("sketch", SKETCH, "-o", "inventory.json").code == 0
    path = tmp_path / "inventory.json"
    assert read_file(Inventory, path).links
    assert _with_kept(gpu_inventory([1, 1]), path, None).inventory.links == ()


def test_a_plan_of_islands_for_a_sketch_is_refused_too() -> None:
    for sketch in (None, "a: 2 x 1 T4, IB 1x1"):
        plan = planned_mode(SLOW.model_copy(update={"sketch": sketch}), islands_job({}))
        assert isinstance(plan, IslandsPlan)
        with pytest.raises(HolmesError, match="for a sketch") if sketch else nullcontext():
            refuse_prediction(plan)
        assert islands_headline(plan, SLOW)[0].startswith("For a sketch") is (sketch is not None)
