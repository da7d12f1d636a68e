"""Plans of random fleets with random measurements verify, and are configurations that the runtime takes."""

from __future__ import annotations

import random

import pytest

from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Spread, Trunk
from launcher.prepare.expectation import expectation_of
from launcher.prepare.prepare import run_config_of
from planner.layout.reprice import reprice
from tests.planner.fleets import bed_job, gpt_7b, gpu_inventory, plan_for, random_inventory
from tests.seeds import seeds

SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}
FABRICS: tuple[FabricKind, ...] = ("InfiniBand", "RoCE", "Ethernet")
RATES = (1.0, 1e3, 1e6, 1e7, 1e8, 1e9, 1e11)  # bytes/s: from broken to more than any NIC


def drawn(seed: int) -> tuple[Inventory, Job]:
    """A fleet of CPUs or GPUs with measurements that need not fit together, and a job with some leave for codecs."""
    draw = random.Random(seed)
    if seed % 2:
        sizes = [draw.randint(1, 3) for _ in range(draw.choice((1, 2, 3)))]
        kinds: list[FabricKind] = [draw.choice(FABRICS) for _ in sizes]
        fleet = gpu_inventory(sizes, gpus_per_host=draw.choice((1, 2, 4)), kinds=kinds)
        job = gpt_7b(model=SMALL, global_batch_size=64, wire={"edges": draw.choice(("none", "bf16", "int8", "int4"))})
    else:
        fleet = random_inventory(seed)
        emulate = {"forward_s_per_layer": draw.choice((0.0, 1e-3)), "backward_s_per_layer": draw.choice((0.0, 2e-3))}
        compute = draw.choice(({"emulate": emulate}, {"flops_per_s": 2e10}))
        fixed = draw.choice(({}, {"pp": 1}, {"dp": 2}))
        job = bed_job(parallel=fixed, compute=compute, wire={"edges": draw.choice(("none", "bf16", "int8", "int4"))})
    links = tuple(_link(draw, fleet) for _ in range(draw.randint(0, 6)))
    names = [cluster.name for cluster in fleet.clusters]
    trunks = [
        Trunk(clusters=(a, b), bandwidth_bytes_per_s=draw.choice(RATES), source="hosts.yaml", pairs=0)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if draw.random() < 0.5
    ]
    return fleet.model_copy(update={"links": links, "trunks": tuple(trunks)}), job


def _link(draw: random.Random, fleet: Inventory) -> Link:
    one, other = (draw.choice(fleet.clusters) for _ in range(2))
    rate, late = draw.choice(RATES), draw.choice((1e-6, 1e-3, 0.5))
    is_rdma = draw.random() < 0.3
    return Link(
        kind="inside" if one is other else "between",
        network=one.fabric.name if one is other else "shared",
        clusters=(one.name, other.name),
        hosts=(draw.choice(one.hosts), draw.choice([*other.hosts, "gone"])),
        devices=("mlx5_0:1", "mlx5_1:1") if is_rdma else (draw.choice(("eth0", "eth1", "gone")), "eth0"),
        method="ib_write_bw" if is_rdma else "tcp",
        streams=draw.choice((1, 4, 64)),
        direction=draw.choice(("forward", "backward")),
        latency_s=None if is_rdma else Spread(min=late, median=late),
        bandwidth_bytes_per_s=Spread(min=rate, median=rate),
        samples=1,
    )


@pytest.mark.parametrize("seed", seeds(60, few=3, more=3))
def test_any_measurement_leads_to_a_plan_that_verifies_and_runs(seed: int) -> None:
    inventory, job = drawn(seed)
    plan = plan_for(inventory, job)  # which raises where it does not verify
    config = run_config_of(plan, "run")
    assert config.data_parallel == plan.data_parallel
    assert {group.codec for group in config.groups} == {group.codec for group in plan.groups}
    assert reprice(inventory, plan).step_s == pytest.approx(plan.prediction.step_s)
    assert all(seconds > 0 for seconds in expectation_of(plan).transfer_s.values())
