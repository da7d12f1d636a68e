"""`holmes plan` given nonsense: a message that names key and value, exit code 2, and nothing written.

What is sound but cannot be done, such as a model larger than all memory, is the answer no: exit code 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from holmes_core.records.inventory import Inventory
from tests.cli.conftest import Command
from tests.planner.fleets import bed_job, cpu_inventory, gpu_inventory

MODEL = {"num_layers": 36, "hidden_size": 4096, "num_heads": 32, "seq_length": 2048, "vocab_size": 51200}
JOB: dict[str, Any] = {"model": MODEL, "data": {"path": "/data"}, "steps": 10, "global_batch_size": 512}
SMALL_JOB = bed_job().model_dump(mode="json", exclude_defaults=True)
PATIENT = {"evaluation": {"every_steps": 5, "patience": 3}, "data": {"path": "/d/t.bin", "validation_fraction": 0.1}}
THREE_FIT = {**MODEL, "hidden_size": 4608, "num_heads": 48, "vocab_size": 51201}


def edited_inventory(edit: Callable[[dict[str, Any]], object]) -> str:
    """An inventory file of two hosts with eight GPUs each after `edit`, its digest made to match where it is valid."""
    data = json.loads(gpu_inventory([1, 1]).to_json())
    edit(data)
    body = {key: value for key, value in data.items() if key not in ("kind", "digest")}
    try:
        return json.dumps({**data, "digest": Inventory.model_validate(body).digest()})
    except ValidationError:
        return json.dumps(data)


Refused = Callable[..., str]


@pytest.fixture
def refused(command: Command, tmp_path: Path) -> Refused:
    """The message of a plan that must be refused with `code`, leaving the folder as it was."""

    def run(job: dict[str, Any], *options: str, inventory: str | None = None, code: int = 2) -> str:
        (tmp_path / "inventory.json").write_text(inventory or edited_inventory(dict), encoding="utf-8")
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB | job), encoding="utf-8")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        done = command("plan", "job.yaml", *options)
        assert done.code == code, done.stderr
        assert done.stdout == ""
        assert "\nhint: " in done.stderr
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        return done.stderr

    return run


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"modle": MODEL}, "job.yaml: modle: unknown key"),
        ({"parallel": {"pt": 8}}, "job.yaml: parallel.pt: unknown key (value 8)"),
        ({"model": {**MODEL, "layers": 36}}, "job.yaml: model.layers: unknown key (value 36)"),
        ({"parallel": {"tp": 3}}, "parallel.tp 3 does not divide num_heads 32"),
        ({"parallel": {"tp": 3}, "model": THREE_FIT}, "parallel.tp 3"),
        ({"parallel": {"tp": 16}}, "parallel.tp 16"),
        (
            {"parallel": {"tp": 2}, "model": {**MODEL, "factory": "own.py:build"}},
            "parallel.tp is 2 and model.factory is own.py:build: a user's own model is cut only between layers",
        ),
        ({"parallel": {"pp": 37}}, "parallel.pp is 37, num_layers is 36"),
        ({"parallel": {"layers": [10, 10]}}, "parallel.layers add up to 20, num_layers is 36"),
        ({"parallel": {"dp": 513}}, "global_batch_size 512 is less than dp x micro_batch_size = 513"),
        ({"parallel": {"dp": 3, "zero": 3}}, "under parallel.zero 3 all replicas run equally many micro-batches"),
        ({"parallel": {"micro_batch_size": 5}}, "micro_batch_size 5 does not divide global_batch_size 512"),
        ({"parallel": {"dp": 0}}, "job.yaml: parallel.dp: must be at least 1 (value 0)"),
        (
            {"global_batch_size": -8},
            "job.yaml: global_batch_size: must be at least 1 (value -8",
        ),
        (
            {"parallel": {"schedule": "zero-bubble"}},
            "zero-bubble with compile left out, which means true on GPUs",
        ),
        ({"profile": {"after": 8}}, "profile of 3 steps after 8: the job has only 10"),
        (
            {**PATIENT, "compute": {"emulate": {"forward_s_per_layer": 0.1, "backward_s_per_layer": 0.2}}},
            "evaluation.patience: must be null in a rehearsal (emulate), which trains nothing (value 3)",
        ),
        ({**PATIENT, "islands": {"inner_steps": 10}}, "evaluation.patience: must be null with islands"),
        ({"steps": "many"}, "job.yaml: steps: must be a whole number"),
        ({"compute": {"flops_per_s": -1.0}}, "job.yaml: compute.flops_per_s: must be above 0 (value -1"),
        ({"compute": {"flops_per_s": float("nan")}}, "job.yaml: compute.flops_per_s: must be a finite number"),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate: must be a finite number"),
    ],
)
def test_job_that_makes_no_sense_is_refused(refused: Refused, job: dict[str, Any], said: str) -> None:
    assert said in re.sub(r"job\.yaml: line \d+: ", "job.yaml: ", refused(job))


def shared_rate(value: float) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["shared"]["ports"][0].update(bandwidth_bytes_per_s=value)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda data: data.update(hosts=[], clusters=[], shared=None), "the inventory has no hosts"),
        (
            shared_rate(-1.0),
            "shared.ports.0.bandwidth_bytes_per_s: must be at least 0 (value -1",
        ),
        (
            shared_rate(float("nan")),
            "shared.ports.0.bandwidth_bytes_per_s: must be a finite number (value nan)",
        ),
        (lambda data: data.update(schema_version=2), "inventory.json: schema_version 2, this Holmes reads 1"),
        (lambda data: data.update(kind="plan"), "inventory.json: not of kind inventory: its kind is plan"),
        (lambda data: data["hosts"][0].update(gpu_count=8), "inventory.json: hosts.0.gpu_count: unknown key (value 8)"),
    ],
    ids=["no hosts", "negative rate", "rate not a number", "schema", "kind", "unknown key"],
)
def test_inventory_that_makes_no_sense_is_refused(
    refused: Refused, edit: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert said in refused({}, inventory=edited_inventory(edit))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--what-if", "link:a-b=fast"), "--what-if link:a-b=fast: 'fast' is not a rate above zero such as 10Gb/s"),
        (("--what-if", "fabric:a=0Gb/s"), "--what-if fabric:a=0Gb/s: '0Gb/s' is not a rate above zero"),
        (
            ("--what-if", "link:a-c=1Gb/s"),
            "--what-if link:a-c=1Gb/s: 'a-c' does not name two clusters of the inventory (a, b)",
        ),
        (("--what-if", "fabric:c=1Gb/s"), "--what-if fabric:c=1Gb/s: no cluster 'c' in the inventory (a, b)"),
        (
            ("--what-if", "nic:a1/eth7=1Gb/s"),
            "--what-if nic:a1/eth7=1Gb/s: host a1 has no interface 'eth7' (eth0, eth1)",
        ),
        (("--what-if", "+host:a2=like:a9"), "--what-if +host:a2=like:a9: no reachable host 'a9' in the inventory"),
        (("--what-if", "-host:a9"), "--what-if -host:a9: no reachable host 'a9' in the inventory (a1, b1)"),
        (("--what-if", "more money"), "--what-if more money: this is not a valid change"),
        (("--compare", "other.json"), "other.json: cannot be read: No such file"),
        (("--compare", "inventory.json"), "inventory.json: not of kind plan: its kind is inventory"),
    ],
)
def test_option_that_makes_no_sense_is_refused(refused: Refused, options: tuple[str, ...], said: str) -> None:
    assert said in refused({}, *options)


@pytest.mark.parametrize("limit", ["-1", "nan", "soon"])
def test_time_limit_that_is_no_number_of_seconds_is_refused(command: Command, limit: str) -> None:
    done = command("plan", "job.yaml", "--time-limit", limit)
    assert (done.code, done.stdout) == (2, "")
    assert "Invalid value for '--time-limit'" in done.stderr


@pytest.mark.slow
def test_page_that_cannot_be_written_leaves_no_plan(refused: Refused) -> None:
    job = {"parallel": {"tp": 1, "pp": 2, "dp": 8, "micro_batch_size": 1}}
    assert "gone/page.html: cannot be written" in refused(job, "--html", "gone/page.html")


def test_program_that_cannot_be_written_leaves_no_plan(refused: Refused) -> None:
    said = refused(SMALL_JOB, "--write-lp", "gone/program.lp", inventory=cpu_inventory([2, 2]).to_json())
    assert "gone/program.lp: cannot be written" in said


def test_search_that_ends_before_the_first_plan_says_so(refused: Refused) -> None:
    uneven = cpu_inventory([3, 1]).to_json()
    said = refused(SMALL_JOB, "--time-limit", "0", inventory=uneven, code=1)
    assert "no plan was found within 0 s" in said
    assert "--time-limit" in said.partition("hint: ")[2]


def test_rate_of_zero_is_no_answer(refused: Refused) -> None:
    said = refused({}, inventory=edited_inventory(shared_rate(0.0)), code=1)
    assert "host a1: the bandwidth of eth0 on network shared is 0" in said


def test_model_larger_than_all_memory_is_no_answer_and_says_by_how_much(refused: Refused) -> None:
    said = refused({"model": {**MODEL, "hidden_size": 40960, "num_layers": 100}}, code=1)
    assert "memory" in said
    assert "80.0 GiB" in said


@pytest.mark.parametrize("option", ["-o", "--html", "--write-lp"])
@pytest.mark.parametrize("name", ["job.yaml", "inventory.json", "./inventory.json"])
def test_no_input_is_written_over(command: Command, tmp_path: Path, option: str, name: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SMALL_JOB), encoding="utf-8")
    (tmp_path / "inventory.json").write_text(cpu_inventory([1, 1]).to_json(), encoding="utf-8")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    done = command("plan", "job.yaml", option, name)
    assert (done.code, "is what this plan is made from" in done.stderr) == (2, True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_no_cluster_has_the_name_of_the_network_between_clusters(command: Command, tmp_path: Path) -> None:
    hosts = "transport: local\nhosts:\n  - {name: a1, cluster: shared}\n  - {name: b1, cluster: b}\n"
    (tmp_path / "hosts.yaml").write_text(hosts, encoding="utf-8")
    for words in (("probe", "hosts.yaml"), ("sketch", "shared: 2 x 8 H100, IB 8x400; b: 1 x 8 H100, IB 8x400")):
        done = command(*words)
        assert (done.code, "no cluster may have this name" in done.stderr) == (2, True)
