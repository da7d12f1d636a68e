"""`holmes plan --write-lp`: the program is written, named, and its optimum is the plan's objective."""

from __future__ import annotations

from pathlib import Path

import highspy
import pytest
import yaml
from typer.testing import CliRunner

from holmes_cli.app import make_app
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.planner.fleets import cpu_inventory, gpu_inventory

SMALL = {"num_layers": 10, "hidden_size": 352, "num_heads": 8, "seq_length": 128}


@pytest.mark.parametrize(
    ("inventory", "job"),
    [
        (cpu_inventory([2, 2], shared_gbps=0.02), {"model": SMALL, "device": "cpu", "compute": {"flops_per_s": 2e10}}),
        (gpu_inventory([2, 1]), {"model": {"preset": "gpt-7.5b"}}),
    ],
)
def test_the_written_program_has_the_objective_of_the_plan(tmp_path: Path, inventory: Inventory, job: object) -> None:
    (tmp_path / "inventory.json").write_text(inventory.to_json(), encoding="utf-8")
    rest = {"data": {"path": "/data"}, "steps": 10, "global_batch_size": 32}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**rest, **dict(job)}), encoding="utf-8")  # type: ignore[call-overload]
    arguments = ["plan", "job.yaml", "-i", "inventory.json", "-o", "plan.json", "--write-lp", "placement.lp", "--json"]
    paths = [str(tmp_path / each) if each.endswith((".yaml", ".json", ".lp")) else each for each in arguments]
    assert CliRunner().invoke(make_app("plan"), paths).exit_code == 0
    plan = read_file(Plan, tmp_path / "plan.json")
    text = (tmp_path / "placement.lp").read_text(encoding="utf-8")
    assert plan.solve.programs > 0
    assert all(f"\n{name}:" in text for name in ("layers", "stages", "stages_first", "stages_last"))
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / "placement.lp"))
    solver.run()
    assert solver.getInfo().objective_function_value == pytest.approx(plan.solve.objective_s, rel=1e-4)
