"""A plan says what it takes for granted of hosts: links between GPUs, their own memory, and the spread of a step."""

from __future__ import annotations

import pytest

from holmes_cli.screen.show_plan import headline
from holmes_core.records.inventory import Inventory
from planner.advice.assumed_speeds import step_spread_s
from planner.advice.unknown_hosts import unknown_host_sentences
from planner.cost.gpu_speeds import PUBLISHED_SPREAD, SPREAD
from tests.planner.fleets import A100, GIB, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of

JOB = gpt_7b(global_batch_size=64)


def said(inventory: Inventory) -> list[str]:
    return list(unknown_host_sentences(plan_for(inventory, JOB), inventory))


@pytest.mark.parametrize(
    ("name", "assumed"),
    few_of(
        1,
        [
            ("NVIDIA H100", "PCI Express"),
            ("NVIDIA B200", "PCI Express"),
            ("NVIDIA H100 96GB HBM2e", "NVLink at 450 GB/s a direction"),
        ],
    ),
)
def test_a_gpu_whose_name_and_host_do_not_tell_its_links_is_named(name: str, assumed: str) -> None:
    (sentence,) = said(gpu_inventory([2], gpu_name=name))
    assert f"of a1, a2 are not known, and the name {name} does not show them: {assumed} is assumed" in sentence


@pytest.mark.parametrize("name", few_of(2, [A100, "NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB", "NVIDIA L40S"]))
def test_nothing_is_noted_of_a_gpu_whose_name_says_its_links(name: str) -> None:
    assert said(gpu_inventory([2], gpu_name=name)) == []


def test_nothing_is_noted_of_links_that_were_probed() -> None:
    inventory = gpu_inventory([1], gpu_name="NVIDIA H100")
    gpus = tuple(gpu.model_copy(update={"nvlinks_up": 18}) for gpu in inventory.hosts[0].gpus)
    hosts = tuple(host.model_copy(update={"gpus": gpus}) for host in inventory.hosts)
    assert said(inventory.model_copy(update={"hosts": hosts})) == []


def test_host_memory_that_is_needed_and_not_known_is_named() -> None:
    inventory = gpu_inventory([1])
    offloaded = JOB.model_copy(update={"parallel": JOB.parallel.model_copy(update={"optimizer_offload": True})})
    plan = plan_for(inventory, offloaded)
    (sentence,) = unknown_host_sentences(plan, inventory)
    needed = sum(plan.prediction.host_memory_bytes[rank.pp_rank] for rank in plan.ranks)
    assert f"up to {needed / GIB:.1f} GiB of a host's own memory" in sentence

    hosts = tuple(host.model_copy(update={"memory_bytes": 2**42}) for host in inventory.hosts)
    assert list(unknown_host_sentences(plan, inventory.model_copy(update={"hosts": hosts}))) == []


@pytest.mark.parametrize(("name", "spread"), few_of(1, [(A100, PUBLISHED_SPREAD), ("NVIDIA L40S", SPREAD)]))
def test_the_first_lines_give_the_spread_where_nothing_was_measured(name: str, spread: float) -> None:
    inventory = gpu_inventory([1], gpu_name=name)
    plan = plan_for(inventory, JOB)
    low, high = step_spread_s(plan, inventory) or (0.0, 0.0)
    step = plan.prediction
    assert high - step.step_s == pytest.approx(spread * (step.step_s - step.exposed_edge_s - step.exposed_dp_s))
    assert f"{step.step_s:.2f} s a step ({low:.2f} to {high:.2f} s), " in headline(plan, inventory)[1]


def test_a_step_of_measured_compute_has_no_spread() -> None:
    inventory, measured = gpu_inventory([1]), gpt_7b(global_batch_size=64, compute={"flops_per_s": 1e14})
    assert step_spread_s(plan_for(inventory, measured), inventory) is None
