"""The remedy where an island's hosts lack the data of their own cluster, which no other host is to have."""

from __future__ import annotations

from dataclasses import replace

from holmes_core.records.plan import IslandsPlan
from launcher.nodes.preflight import Fault


def own_data_fault(plan: IslandsPlan, island: int, fault: Fault) -> Fault:
    """Return the fault with a remedy that names path, hosts and key, if a path of `islands.data` is absent."""
    cluster, data = plan.own_data(island), plan.islands[island].job.data
    paths = (source.path for source in data.sources) if cluster is not None and data is not None else ()
    absent = fault.evidence.partition(", ")[0]  # in a home folder the host names the whole path
    if fault.check != "inputs" or not any(absent.endswith(path.removeprefix("~")) for path in paths):
        return fault
    hosts = ", ".join(node.host for node in plan.islands[island].nodes)
    return replace(
        fault,
        remedy=f"copy or mount {absent} on each host of island {island} ({hosts}), in the container if there is one; "
        f"or correct `islands.data.{cluster}` in job.yaml and plan again",
    )
