"""Where no plan is possible, the error says which constraint, by how much, and what would make one possible."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of


def refusal(inventory: Inventory, **parallel: Any) -> HolmesError:
    """The error for the 7.5 B model with those degrees fixed."""
    with pytest.raises(HolmesError) as caught:
        plan_for(inventory, gpt_7b(parallel=parallel))
    return caught.value


def gpus_of_memory(memory_gib: int, sizes: tuple[int, ...] = (1, 1), gpus_per_host: int = 2) -> Inventory:
    """Hosts with that much memory a GPU."""
    return gpu_inventory(sizes, gpus_per_host=gpus_per_host, memory_bytes=memory_gib * GIB)


def test_too_little_memory_says_how_much_is_short_and_how_much_would_do() -> None:
    error = refusal(gpus_of_memory(10))
    found = re.search(r"needs ([\d.]+) GiB on a GPU.*has ([\d.]+) GiB: ([\d.]+) GiB short", error.what)
    assert found is not None
    needed, has, short = map(float, found.groups())
    assert has == 10
    assert short == pytest.approx(needed - has, abs=0.11)
    assert f"at least {found[1]} GiB" in error.hint
    assert error.exit_code == 1


def test_the_memory_the_error_asks_for_is_enough() -> None:
    found = re.search(r"at least ([\d.]+) GiB", refusal(gpus_of_memory(10)).hint)
    assert found is not None
    enough = gpu_inventory([1, 1], gpus_per_host=2, memory_bytes=int((float(found[1]) + 0.1) * GIB))
    assert plan_for(enough, gpt_7b()).world_size > 1


@pytest.mark.parametrize(
    ("parallel", "named"),
    [
        ({"tp": 2, "pp": 1, "dp": 1}, "tp 2, pp 1, dp 1"),
        ({"tp": 1, "pp": 2, "dp": 2}, "tp 1, pp 2, dp 2"),
        ({"micro_batch_size": 64}, "micro_batch_size 64"),
        ({"recompute": "none"}, "recompute none"),
    ],
)
def test_too_little_memory_names_what_is_fixed(parallel: dict[str, Any], named: str) -> None:
    error = refusal(gpus_of_memory(16), **parallel)
    assert named in error.what
    assert "fixed under `parallel`" in error.hint


@pytest.mark.parametrize("parallel", [{"pp": 5}, {"dp": 8}, {"tp": 2, "pp": 3}, {"pp": 2, "dp": 4}])
def test_degrees_beyond_the_slots_say_how_many_are_needed_and_there(parallel: dict[str, int]) -> None:
    error = refusal(gpus_of_memory(80), **parallel)
    tp, pp, dp = (parallel.get(name, 1) for name in ("tp", "pp", "dp"))
    assert f"need {tp * pp * dp} training slots" in error.what
    assert "offer 4 (a1 2, b1 2)" in error.what
    assert "lower parallel.tp, pp or dp" in error.hint
    assert error.exit_code == 1


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"tp": 3}, "parallel.tp"),
        ({"tp": 16}, "parallel.tp"),
        ({"pp": 37}, "parallel.pp is 37, num_layers is 36"),
    ],
)
def test_degrees_that_no_machine_could_satisfy_are_wrong_usage(parallel: dict[str, int], words: str) -> None:
    error = refusal(gpus_of_memory(80), **parallel)
    assert words in error.what
    assert error.exit_code == 2


def test_the_nearest_candidate_recomputes_all_it_may() -> None:
    assert "recompute full" in refusal(gpus_of_memory(10)).what


def test_what_fits_only_with_recomputation_is_planned() -> None:
    """One micro-batch of long sequences outgrows the GPU unless its activations are computed again."""
    model = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 65536, "vocab_size": 1000}
    job = gpt_7b(model=model, global_batch_size=4, parallel={"pp": 1, "dp": 1, "micro_batch_size": 1})
    assert [plan_for(gpus_of_memory(gib, (1, 1), 1), job).recompute for gib in (80, 16, 10)] == [
        "none",
        "selective",
        "full",
    ]


def test_replicas_that_fit_in_number_but_not_in_memory_say_where_places_are() -> None:
    """A stage of two replicas needs two large GPUs, and there is one."""
    small, large = gpus_of_memory(8, (1, 1), 1), gpus_of_memory(80, (1, 1), 1)
    mixed = large.model_copy(update={"hosts": (large.hosts[0], small.hosts[1])})
    model = {"num_layers": 16, "hidden_size": 2048, "num_heads": 16, "seq_length": 2048, "vocab_size": 51200}
    with pytest.raises(HolmesError) as caught:
        plan_for(mixed, gpt_7b(model=model, parallel={"tp": 1, "pp": 1, "dp": 2}))
    assert "no 1 stages of 2 tensor groups with enough memory (tensor groups by kind of host: a 1, b 1)" in (
        caught.value.what
    )
    assert "lower parallel.dp" in caught.value.hint
    assert caught.value.exit_code == 1


def test_a_model_of_one_s_own_is_not_split_over_tensor_shards() -> None:
    model = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 64, "factory": "own.py:build"}
    with pytest.raises(HolmesError, match=r"parallel\.tp is 2 and model\.factory is own\.py:build") as caught:
        plan_for(gpus_of_memory(80), gpt_7b(model=model, parallel={"tp": 2}))
    assert caught.value.exit_code == 2
    assert plan_for(gpus_of_memory(80), gpt_7b(model=model)).tp == 1


@pytest.mark.parametrize(
    ("parallel", "batch"),
    [
        ({"pp": 3, "schedule": "interleaved"}, 32),
        ({"chunks": 3}, 13),
        ({"pp": 1, "schedule": "interleaved"}, 32),
        ({"pp": 1, "schedule": "zero-bubble"}, 32),
    ],
)
def test_a_schedule_that_no_degrees_can_run_says_what_it_takes(parallel: dict[str, Any], batch: int) -> None:
    with pytest.raises(HolmesError, match="needs pp of 2 or more") as caught:
        plan_for(cpu_inventory([2, 2]), bed_job(parallel=parallel, global_batch_size=batch))
    assert "leave parallel.schedule" in caught.value.hint
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("sizes", "slots", "layers", "batch"), few_of(1, [([1], 3, 8, 12), ([2, 1], 1, 7, 60), ([2, 2], 1, 9, 6)])
)
@pytest.mark.parametrize("schedule", few_of(1, ["interleaved", "zero-bubble"]))
def test_a_fixed_schedule_that_some_degrees_can_run_is_planned(
    schedule: str, sizes: list[int], slots: int, layers: int, batch: int
) -> None:
    model = {"num_layers": layers, "hidden_size": 64, "num_heads": 2, "seq_length": 128}
    job = bed_job(model=model, parallel={"schedule": schedule}, global_batch_size=batch, slots_per_host=slots)
    assert plan_for(cpu_inventory(sizes), job).schedule == schedule
