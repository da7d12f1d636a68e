"""What a slot of a host can do, read from the inventory and the job."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from planner.cost.collectives import Path
from planner.cost.gpu_speeds import A100, constant_speed
from planner.cost.slot import (
    INSIDE_EFFICIENCY,
    Cores,
    inside_path,
    layer_parts_s,
    read_slot,
)
from planner.problem.candidates import Candidate
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory


def test_a_cpu_slot_has_the_speed_in_the_job() -> None:
    assert read_slot(cpu_inventory([1]).hosts[0], "a", bed_job()).speed == constant_speed(2e10, 3e9)


def test_a_slot_of_shared_cores_is_slower_in_all_it_does() -> None:
    compute = {"flops_per_s": 2e10, "overheads": {"action_s": 0.001, "update_bytes_per_s": 2e9}}
    alone = read_slot(cpu_inventory([1]).hosts[0], "a", bed_job(compute=compute), Cores(4, 0.5))
    slot = alone.among(4)
    assert slot.speed == constant_speed(1e10, 1e9)
    assert (slot.action_s, slot.update_bytes_per_s, slot.threads_per_core) == (0.002, 1e9, 2)
    assert alone.among(2) == alone
    assert alone.among(3).threads_per_core == 1.5
    assert alone.among(100) == slot  # no more than the slots of the machine


def test_a_gpu_slot_has_the_speed_of_its_machine_type() -> None:
    assert read_slot(gpu_inventory([1]).hosts[0], "a", gpt_7b()).speed == A100


def test_an_unknown_gpu_says_how_to_measure_it() -> None:
    with pytest.raises(HolmesError, match=r"GPU 0 \(Tesla T4\) in bf16") as unknown:
        read_slot(gpu_inventory([1], gpu_name="Tesla T4").hosts[0], "a", gpt_7b())
    assert "on a probed host `holmes calibrate --host a1` measures it" in unknown.value.hint
    assert unknown.value.hint.startswith("set `precision: fp16`, or ")


def test_nvlinks_that_are_up_join_gpus() -> None:
    host = gpu_inventory([1], gpu_name="NVIDIA H100").hosts[0]
    gpus = tuple(gpu.model_copy(update={"nvlinks_up": 6}) for gpu in host.gpus)
    linked = inside_path(host.model_copy(update={"gpus": gpus}), gpt_7b())
    assert linked == Path(pytest.approx(INSIDE_EFFICIENCY * 150e9), 3.4e-6)  # type: ignore[arg-type]


def test_an_sxm_gpu_has_its_data_sheet_s_nvlinks_where_nobody_asked() -> None:
    linked = inside_path(gpu_inventory([1]).hosts[0], gpt_7b())
    assert linked.bandwidth_bytes_per_s == pytest.approx(INSIDE_EFFICIENCY * 300e9)


def test_without_nvlink_pci_express_joins_gpus() -> None:
    host = gpu_inventory([1], gpu_name="NVIDIA A100-PCIE-40GB").hosts[0]
    gpus = tuple(gpu.model_copy(update={"pci_gen": 4, "pci_width": 8}) for gpu in host.gpus)
    linked = inside_path(host.model_copy(update={"gpus": gpus}), gpt_7b())
    assert linked.bandwidth_bytes_per_s == INSIDE_EFFICIENCY * 8 * 1.969e9


def test_emulated_seconds_count_for_each_sample_and_slowdown_times() -> None:
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": {"b": 2.0}}
    job = bed_job(compute={"emulate": emulate})
    slot = read_slot(cpu_inventory([1]).hosts[0], "b", job)
    compute, collectives = layer_parts_s(job, Candidate(1, 1, 1, 2).execution(job), slot)
    assert (compute.forward_s, compute.backward_s, collectives.both_s) == (0.04, 0.08, 0.0)


def test_an_h100_on_an_sxm_board_has_nvlink_though_its_name_does_not_say_so() -> None:
    host = gpu_inventory([1]).hosts[0]
    gpus = tuple(gpu.model_copy(update={"name": "NVIDIA H100 80GB HBM3"}) for gpu in host.gpus)
    linked = inside_path(host.model_copy(update={"gpus": gpus}), gpt_7b())
    assert linked.bandwidth_bytes_per_s == pytest.approx(INSIDE_EFFICIENCY * 18 * 25e9)
