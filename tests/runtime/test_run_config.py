"""The strict JSON form of the run configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from holmes_runtime.run_config import Emulation, RunConfig

from .launched_runs import REPOSITORY, make_config

FOUR = make_config(pipelines=((0, 2), (3, 1)), cuts=(0, 1, 3))


def changed(path: str, value: Any) -> str:
    """The JSON of FOUR with the value at `path`, such as `model/num_layers`, replaced."""
    data = json.loads(FOUR.to_json())
    *parents, last = path.split("/")
    owner = data
    for key in parents:
        owner = owner[int(key) if key.isdigit() else key]
    owner[int(last) if last.isdigit() else last] = value
    return json.dumps(data)


@pytest.mark.parametrize("config", [FOUR, make_config(emulation=Emulation(0.5, 1.0), grad_clip=None)])
def test_json_reads_back_equal(config: RunConfig) -> None:
    assert RunConfig.from_json(config.to_json()) == config


def test_coordinates_lead_to_ranks_and_back() -> None:
    assert FOUR.rank_at(pp_rank=1, dp_rank=1).rank == 1
    assert FOUR.placement(3).dp_rank == 1
    assert FOUR.stage_ranks(dp_rank=0) == (0, 2)
    assert FOUR.num_microbatches == 4
    assert FOUR.group("dp", frozenset({2, 1})).name == "dp-1"


def test_a_whole_number_stands_for_a_float() -> None:
    config = RunConfig.from_json(changed("timeout_s", 5))

    assert config.timeout_s == 5.0
    assert isinstance(config.timeout_s, float)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model/num_layer", 4, r"^model\.num_layer: unknown key, got 4"),
        ("model/num_layers", "3", r"^model\.num_layers: expected int, got '3'"),
        ("model/num_layers", True, r"^model\.num_layers: expected int, got True"),
        ("model/num_heads", 5, r"^model\.num_heads: must divide hidden_size 32, got 5"),
        ("model/vocab_size", 100, r"^model\.vocab_size: must be at least 256"),
        ("model", 3, r"^model: expected an object, got 3"),
        ("ranks", {}, r"^ranks: expected a list, got \{\}"),
        ("ranks/0/host", None, r"^ranks\[0\]\.host: expected str, got None"),
        ("ranks/0/rank", 1, r"^ranks: must be 0\.\.3, each once, got \[1, 1, 2, 3\]"),
        ("ranks/0/pp_rank", 1, r"^ranks\[0\]: \(pp_rank, dp_rank, tp_rank\) must be .* got \(1, 0, 0\)"),
        ("groups/0/axis", "tp", r"^groups\[0\]\.axis: expected one of .* got 'tp'"),
        ("groups/0/interfaces", ["lo"], r"^groups\[0\]\.interfaces: must name one interface for each of 2 ranks"),
        ("groups/0/ranks", [0, 9], r"^groups\[0\]\.ranks: must be the replicas of one stage"),
        ("groups/2/ranks", [0, 0], r"^groups\[2\]\.ranks: must be two or more distinct ranks"),
        ("groups", [], r"^groups: must hold every group of the plan"),
        ("stages/1/first_layer", 2, r"^stages\[1\]\.first_layer: must be 1, got 2"),
        ("stages/1/stop_layer", 4, r"^stages\[1\]\.stop_layer: must be num_layers 3, got 4"),
        ("stages/1/stop_layer", 1, r"^stages\[1\]\.stop_layer: must be above first_layer 1, got 1"),
        ("global_batch_size", 7, r"^global_batch_size: must be a multiple of dp \* micro_batch_size = 2, got 7"),
        ("optimizer/grad_clip", 0, r"^optimizer\.grad_clip: must be positive, got 0\.0"),
        ("device", "tpu", r"^device: expected one of \['cpu', 'cuda'\], got 'tpu'"),
        ("schema_version", 2, r"^schema_version: must be 1, got 2"),
        ("tp", 2, r"^tp: must be 1"),
        ("timeout_s", float("nan"), "numbers must be finite, got NaN"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.from_json(changed(path, value))


def test_a_missing_key_is_refused_with_its_path() -> None:
    data = json.loads(FOUR.to_json())
    del data["corpus"]["pattern"]

    with pytest.raises(ValueError, match=r"^corpus\.pattern: missing"):
        RunConfig.from_json(json.dumps(data))


def test_config_and_schedule_load_without_torch() -> None:
    program = "import sys, holmes_runtime.run_config, holmes_runtime.schedule; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0
