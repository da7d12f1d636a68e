"""A plan says which hosts and GPUs it leaves out and why; a host that the probe refuses is not planned on."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Finding, Inventory
from holmes_core.records.job import Job, Parallel
from holmes_core.records.plan import Plan
from planner.advice.left_out import left_out_sentences
from tests.planner.fleets import gpt_7b, gpu_inventory, plan_for


def finding(*hosts: str, severity: Any = "F") -> Finding:
    return Finding(rule="HOST-OS-LIB", severity=severity, hosts=hosts, evidence="no libc", effect="", remedy="mend it")


def plan_and_left_out(inventory: Inventory, **changes: Any) -> tuple[Plan, tuple[str, ...]]:
    job: Job = gpt_7b(**changes)
    plan = plan_for(inventory, job)
    return plan, left_out_sentences(plan, inventory)


def hosts_of(plan: Plan) -> set[str]:
    return {node.host for node in plan.nodes}


def test_nothing_is_said_where_every_gpu_is_used() -> None:
    plan, said = plan_and_left_out(gpu_inventory([2]), global_batch_size=64)
    assert len(plan.ranks) == 16
    assert said == ()


def test_gpus_that_are_not_for_the_job_could_not_have_been_used() -> None:
    fleet = gpu_inventory([2])
    hosts = [
        host.model_copy(
            update={
                "gpus": tuple(gpu.model_copy(update={"left_out": "x" if gpu.index > 3 else None}) for gpu in host.gpus)
            }
        )
        for host in fleet.hosts
    ]
    plan, said = plan_and_left_out(fleet.model_copy(update={"hosts": tuple(hosts)}), global_batch_size=64)
    assert (len(plan.ranks), said) == (8, ())


@pytest.mark.slow
def test_a_host_that_the_probe_refuses_is_not_planned_on() -> None:
    fleet = gpu_inventory([2, 2])
    refused = fleet.clusters[1].hosts[0]
    plan, said = plan_and_left_out(fleet.model_copy(update={"findings": (finding(refused),)}), global_batch_size=48)
    assert hosts_of(plan) == {host.name for host in fleet.hosts} - {refused}
    assert said == (f"Left out: {refused}: the probe refuses to launch there (HOST-OS-LIB); fix it and probe again.",)


@pytest.mark.parametrize("severity", ["W", "I"])
def test_what_only_warns_leaves_no_host_out(severity: str) -> None:
    fleet = gpu_inventory([2])
    warned = fleet.model_copy(update={"findings": (finding(fleet.hosts[0].name, severity=severity),)})
    assert hosts_of(plan_and_left_out(warned, global_batch_size=64)[0]) == {host.name for host in fleet.hosts}


def test_what_refuses_several_hosts_at_once_is_left_to_the_preflight() -> None:
    fleet = gpu_inventory([2])
    clash = fleet.model_copy(update={"findings": (finding(*(host.name for host in fleet.hosts)),)})
    assert hosts_of(plan_and_left_out(clash, global_batch_size=64)[0]) == {host.name for host in fleet.hosts}


def test_with_every_host_refused_there_is_no_plan_but_the_reasons() -> None:
    fleet = gpu_inventory([2])
    none = fleet.model_copy(update={"findings": tuple(finding(host.name) for host in fleet.hosts)})
    with pytest.raises(HolmesError, match=r"refuses to launch on every host: .*HOST-OS-LIB: no libc") as refused:
        plan_and_left_out(none, global_batch_size=64)
    assert refused.value.exit_code == ANSWER_IS_NO


def test_a_host_that_did_not_answer_is_named() -> None:
    fleet = gpu_inventory([2])
    silent = fleet.hosts[0].model_copy(update={"name": "gone", "reachable": False, "gpus": (), "nics": ()})
    _, said = plan_and_left_out(fleet.model_copy(update={"hosts": (*fleet.hosts, silent)}), global_batch_size=64)
    assert said == ("Left out: gone: did not answer the probe; see its findings.",)


def test_a_host_that_did_not_answer_and_is_refused_for_that_is_named_once() -> None:
    fleet = gpu_inventory([2])
    silent = fleet.hosts[0].model_copy(update={"name": "gone", "reachable": False, "gpus": (), "nics": ()})
    both = fleet.model_copy(update={"hosts": (*fleet.hosts, silent), "findings": (finding("gone"),)})
    _, said = plan_and_left_out(both, global_batch_size=64)
    assert said == ("Left out: gone: did not answer the probe; see its findings.",)


def test_a_batch_that_more_replicas_cannot_share_is_the_reason_said() -> None:
    parallel = Parallel(tp=1, pp=1, micro_batch_size=1)
    plan, (said,) = plan_and_left_out(gpu_inventory([3]), global_batch_size=64, parallel=parallel)
    assert (plan.dp, len(hosts_of(plan))) == (22, 3)
    assert said.startswith("Left out: 2 of 24 GPUs, on ")
    assert "with 23 to 24 replicas, the busiest would also run 3 of a step's 64 micro-batches" in said


def test_degrees_that_the_job_fixes_are_the_reason_said() -> None:
    _, (said,) = plan_and_left_out(gpu_inventory([3]), global_batch_size=64, parallel=Parallel(tp=1, pp=1, dp=8))
    assert said.endswith("job.yaml fixes pp 1 and dp 8.")
    assert said.startswith("Left out: 16 of 24 GPUs, on ")
