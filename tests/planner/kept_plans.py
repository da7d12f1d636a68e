"""Plans kept as a line each: `python -m tests.planner.kept_plans` prints those of today, with `--write` keeps them.

Each case is an inventory, a job and options of `make_plan`. Its line says where the plan puts the job and at what cost,
and ends with the digest of everything in plan.json, whatever the file's layout. A commit that changes one says why.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import planner_scale
from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Spread
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, read_user_file, write_atomically
from planner.layout.reprice import layout_of
from planner.layout.traffic import across_bytes
from planner.problem.problem import read_problem
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for, random_inventory

KEPT = Path(__file__).parents[1] / "data" / "kept_plans.txt"
HEADER = "plan | tp x pp x dp | schedule | stages: clusters | step | bytes across clusters | SHA-256 of the plan"
EXAMPLES = Path(__file__).parents[2] / "templates" / "examples"
EMULATE = {"emulate": {"forward_s_per_layer": 0.002, "backward_s_per_layer": 0.004}}
CALIBRATION = {"run": "runs/1", "compute_factor": 1.4, "network_efficiency": 0.7}
LLAMA = {
    "family": "llama",
    "num_layers": 32,
    "hidden_size": 4096,
    "num_heads": 32,
    "num_kv_heads": 8,
    "ffn_hidden_size": 14336,
    "seq_length": 4096,
    "vocab_size": 128256,
}


class Case(NamedTuple):
    """What one plan is made of."""

    inventory: Inventory
    job: Job
    options: dict[str, Any] = {}


def cases() -> Iterator[tuple[str, Case]]:
    """By name, the cases."""
    yield from _examples()
    yield from _on_cpus()
    yield from _on_gpus()


def plan_line(name: str, case: Case) -> str:
    """The line of the case's plan, as `HEADER` has it."""
    plan = plan_for(case.inventory, case.job, **case.options)
    layout = layout_of(read_problem(case.inventory, plan.job), plan)
    columns = (
        name,
        f"{plan.tp} x {plan.pp} x {plan.dp}",
        plan.schedule if plan.chunks == 1 else f"{plan.schedule}, {plan.chunks} chunks",
        _stages(plan),
        f"{plan.prediction.step_s:.6g} s",
        f"{across_bytes(plan.job, layout):,}",
        _digest(plan),
    )
    return " | ".join(columns)


def _digest(plan: Plan) -> str:
    """SHA-256 of the plan and its header as indented JSON."""
    header = json.dumps({"kind": plan.KIND, "digest": plan.digest()}, indent=1).removesuffix("\n}")
    return hashlib.sha256(f"{header},{plan.model_dump_json(indent=1).removeprefix('{')}\n".encode()).hexdigest()


def read_lines() -> dict[str, str]:
    """The kept lines by name of their plans, in their order."""
    header, *lines = KEPT.read_text(encoding="utf-8").splitlines()
    assert header == HEADER
    return {line.split(" | ")[0]: line for line in lines}


def _stages(plan: Plan) -> str:
    """`0-3: a, 4: a+b`, consecutive stages on the same clusters together."""
    blocks = [
        (clusters, [stage.index for stage in stages])
        for clusters, stages in groupby(plan.stages, key=lambda stage: stage.clusters)
    ]
    return ", ".join(
        f"{held[0]}-{held[-1]}: {'+'.join(clusters)}" if len(held) > 1 else f"{held[0]}: {'+'.join(clusters)}"
        for clusters, held in blocks
    )


def _examples() -> Iterator[tuple[str, Case]]:
    for job in ("gpt_3.6b", "gpt_7.5b"):
        for file in sorted(EXAMPLES.glob("*.json")):
            case = Case(read_file(Inventory, file), read_user_file(Job, EXAMPLES / f"{job}.yaml"))
            yield f"{file.stem} {job}", case
    yield "4_infiniband_4_roce usual order", case._replace(options={"order": "usual"})


def _on_cpus() -> Iterator[tuple[str, Case]]:
    two = cpu_inventory([2, 2])
    yield "bed", Case(two, bed_job())
    yield "bed usual order", Case(two, bed_job(), {"order": "usual"})
    yield "one host", Case(cpu_inventory([1]), bed_job(parallel={}))
    yield "one cluster", Case(cpu_inventory([4]), bed_job(parallel={}))
    yield "no shared network needed", Case(cpu_inventory([3], shared=False), bed_job(parallel={}))
    for schedule in ("gpipe", "1f1b", "eager", "zero-bubble"):
        yield f"bed {schedule}", Case(two, bed_job(parallel={"schedule": schedule}, compute=EMULATE))
    yield "interleaved", Case(two, bed_job(parallel={"schedule": "interleaved", "chunks": 2, "pp": 2}))
    yield "unequal layers fixed", Case(cpu_inventory([3, 1]), bed_job(parallel={"layers": [7, 3]}))
    slow = {"emulate": {**EMULATE["emulate"], "slowdown": {"b": 2.5}}}
    yield "one cluster slower", Case(cpu_inventory([2, 3]), bed_job(parallel={}, compute=slow, global_batch_size=60))
    yield (
        "calibrated",
        Case(
            cpu_inventory([2, 2, 2]),
            bed_job(parallel={}, compute={"flops_per_s": 2e10, "calibration": CALIBRATION}),
        ),
    )
    yield "latencies measured", Case(_with_latencies(cpu_inventory([2, 2])), bed_job(parallel={}, slots_per_host=2))
    for seed in range(8):
        yield f"random fleet {seed}", Case(random_inventory(seed), bed_job(parallel={}))


def _on_gpus() -> Iterator[tuple[str, Case]]:
    two = gpu_inventory([2, 2])
    yield "gpus", Case(two, gpt_7b())
    yield "tensor degree fixed", Case(two, gpt_7b(parallel={"tp": 8}))
    yield "full recompute", Case(two, gpt_7b(parallel={"recompute": "full"}))
    yield "pipeline fixed", Case(gpu_inventory([3, 2]), gpt_7b(parallel={"pp": 5}))
    yield "little memory", Case(gpu_inventory([2, 2], memory_bytes=24 * GIB), gpt_7b(global_batch_size=64))
    yield "memory not known", Case(gpu_inventory([1, 1], memory_bytes=None), gpt_7b(global_batch_size=64))
    kinds: tuple[FabricKind, ...] = ("InfiniBand", "RoCE", "Ethernet")
    yield "three kinds", Case(gpu_inventory([2, 1, 2], kinds=kinds), gpt_7b(global_batch_size=240))
    yield "llama", Case(gpu_inventory([2, 2], shared_gbps=100.0), gpt_7b(model=LLAMA, global_batch_size=128))
    yield "slow wire", Case(gpu_inventory([2, 2], shared_gbps=1.0), gpt_7b(global_batch_size=96))
    yield "five hosts of six gpus", Case(gpu_inventory([3, 2], gpus_per_host=6), gpt_7b(global_batch_size=120))
    for case in planner_scale.CASES[:2]:
        job = gpt_7b(model={"preset": case.preset}, global_batch_size=case.global_batch_size)
        yield f"{case.name} hosts in {len(case.sizes)} clusters", Case(planner_scale.make_inventory(case.sizes), job)


def _with_latencies(inventory: Inventory) -> Inventory:
    """Measured: 0.1 ms inside the first cluster, 5 ms from it to the second."""
    inside = _link(("a1", "a2"), ("a", "a"), 1e-4, 235e6)
    between = _link(("a1", "b1"), ("a", "b"), 5e-3, 11.7e6)
    return inventory.model_copy(update={"links": (inside, between)})


def _link(hosts: tuple[str, str], clusters: tuple[str, str], latency_s: float, bytes_per_s: float) -> Link:
    return Link(
        kind="inside" if len(set(clusters)) == 1 else "between",
        network="a" if len(set(clusters)) == 1 else "shared",
        clusters=clusters,
        hosts=hosts,
        devices=("eth1", "eth1") if len(set(clusters)) == 1 else ("eth0", "eth0"),
        method="tcp",
        streams=1,
        direction="forward",
        latency_s=Spread(min=latency_s, median=latency_s),
        bandwidth_bytes_per_s=Spread(min=bytes_per_s, median=bytes_per_s),
        samples=3,
    )


if __name__ == "__main__":
    text = "\n".join([HEADER, *(plan_line(name, case) for name, case in cases())]) + "\n"
    if "--write" in sys.argv:
        write_atomically(KEPT, text)
    else:
        print(text, end="")
