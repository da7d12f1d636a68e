"""What a verdict of the runtime changes in the next plan of a run."""

from __future__ import annotations

import pytest

from holmes_cli.replan import Replanner
from holmes_core.records.inventory import Cluster, Inventory, Network
from holmes_runtime.config.verdicts import LinkIsSlow
from tests.planner.fleets import bed_job, cpu_host, plan_for, port

HOSTS = ("gpu-a", "b", "gpu", "a-b")  # "gpu-a-b" joins the first two as well as the last two


def inventory_of_clusters_of_one() -> Inventory:
    """A cluster for each host, all on one shared network."""
    shared = tuple(port(name, "eth0", f"10.0.{index}.1", 0.1) for index, name in enumerate(HOSTS))
    fabrics = [
        Network(
            name=f"of {name}",
            kind="Ethernet",
            subnet=f"10.{index + 1}.0.0/24",
            ports=(port(name, "eth1", f"10.{index + 1}.0.1", 2.0),),
        )
        for index, name in enumerate(HOSTS)
    ]
    return Inventory(
        hosts=tuple(cpu_host(name, index, 1, 2.0, 0.1) for index, name in enumerate(HOSTS)),
        clusters=tuple(
            Cluster(name=f"with {name}", hosts=(name,), fabric=fabric)
            for name, fabric in zip(HOSTS, fabrics, strict=True)
        ),
        shared=Network(name="shared", kind="Ethernet", subnet="10.0.0.0/16", ports=shared),
        findings=(),
    )


@pytest.mark.slow
def test_slow_link_slows_the_clusters_of_its_two_hosts_and_no_others() -> None:
    first = plan_for(inventory_of_clusters_of_one(), bed_job(parallel={"pp": 2, "dp": 1}))
    verdict = LinkIsSlow("gpu-a", "b", ratio=100.0, taken_s=1.0, planned_s=0.01)
    plan = Replanner(inventory_of_clusters_of_one()).after(first, verdict, ())
    assert {node.host for node in plan.nodes} == {"gpu", "a-b"}
