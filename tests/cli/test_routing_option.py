"""`holmes plan --routing`: the map of experts next to the plan, what it wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.errors import ANSWER_IS_NO, WRONG_USAGE
from tests.cli.conftest import Command
from tests.planner.fleets import gpu_inventory
from tests.planner.routing_traces import drawn_tokens
from tests.planner.test_expert_groups import MODEL

JOB: dict[str, Any] = {
    "model": MODEL | {"num_layers": 2},
    "trainer": {"engine": "megatron", "command": ["python", "t.py", "--moe-token-dispatcher-type", "flex"]},
    "parallel": {"ep": 16, "tp": 1, "pp": 1, "micro_batch_size": 1},
    "global_batch_size": 64,
    "steps": 10,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of commands, with an inventory of two hosts and a trace of two layers."""
    layers = ({"layer": at, "experts": drawn_tokens(at, 32, 4, 200, topics=2, affinity=4.0)} for at in range(2))
    (tmp_path / "routing.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in layers), encoding="utf-8")
    (tmp_path / "inventory.json").write_text(gpu_inventory([2]).to_json(), encoding="utf-8")
    return tmp_path


def write_job(folder: Path, **changes: Any) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB | changes), encoding="utf-8")


def test_the_map_lies_next_to_the_plan_and_the_table_says_what_it_wins(command: Command, folder: Path) -> None:
    write_job(folder)
    done = command("plan", "job.yaml", "--routing", "routing.jsonl", "-o", "moe.json", "--json")
    assert done.code == 0, done.stderr
    placed = json.loads((folder / "moe-experts.json").read_text(encoding="utf-8"))
    assert list(placed) == ["physical_to_logical_map"]  # SGLang takes no other key
    assert [sorted(layer) for layer in placed["physical_to_logical_map"]] == [list(range(32))] * 2
    advised = json.loads(done.stdout)["advice"]["experts"]
    assert [[expert for rank in layer["experts"] for expert in rank] for layer in advised] == placed[
        "physical_to_logical_map"
    ]
    assert all(layer["placed"]["copies"] < layer["usual"]["copies"] for layer in advised)
    assert "Experts by the trace" in done.stderr


def test_another_file_in_the_place_of_the_map_is_refused(command: Command, folder: Path) -> None:
    write_job(folder)
    trace = (folder / "routing.jsonl").rename(folder / "plan-experts.json")
    before = trace.read_bytes()
    done = command("plan", "job.yaml", "--routing", trace.name)
    assert done.code == WRONG_USAGE
    assert "plan-experts.json" in done.stderr
    assert trace.read_bytes() == before
    trace.rename(folder / "routing.jsonl")
    trace.mkdir()
    assert command("plan", "job.yaml", "--routing", "routing.jsonl").code == WRONG_USAGE
    assert not (folder / "plan.json").exists()


def test_a_plan_that_cannot_be_written_leaves_no_map(command: Command, folder: Path) -> None:
    write_job(folder)
    (folder / "plan.json").mkdir()
    done = command("plan", "job.yaml", "--routing", "routing.jsonl")
    assert done.code == WRONG_USAGE
    assert [file.name for file in folder.glob("*plan*")] == ["plan.json"]


def test_a_map_is_replaced_and_one_of_an_earlier_plan_is_named(command: Command, folder: Path) -> None:
    write_job(folder)
    for routing in (True, True, False):
        done = command("plan", "job.yaml", "--time-limit", "0", *["--routing", "routing.jsonl"] * routing)
        assert done.code == 0, done.stderr
        assert ("plan-experts.json: the map of an earlier plan" in done.stderr) == (not routing)


def test_without_the_option_there_is_no_map(command: Command, folder: Path) -> None:
    write_job(folder)
    done = command("plan", "job.yaml", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["advice"]["experts"] == []
    assert not (folder / "plan-experts.json").exists()


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"model": MODEL}, WRONG_USAGE, "routing.jsonl: no line for layer 2"),
        ({"model": MODEL | {"num_layers": 2, "experts": 16}}, WRONG_USAGE, "routing.jsonl: line 1: token"),
        (
            {"model": {**JOB["model"], "experts": None, "experts_per_token": None, "expert_ffn": None}},
            WRONG_USAGE,
            "no",
        ),
        ({"parallel": {"ep": 1, "tp": 1, "pp": 1}}, ANSWER_IS_NO, "parallel.ep 1"),
    ],
)
def test_traces_that_do_not_fit_are_refused(
    command: Command, folder: Path, changes: dict[str, Any], code: int, said: str
) -> None:
    if "experts" in (model := changes.get("model", {})) and model["experts"] is None:
        changes = {"model": {key: value for key, value in model.items() if value is not None}, "parallel": {"tp": 1}}
    write_job(folder, **changes)
    done = command("plan", "job.yaml", "--routing", "routing.jsonl")
    assert done.code == code, done.stderr
    assert said in done.stderr
    assert not list(folder.glob("plan*"))
