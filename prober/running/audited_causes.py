"""Faults of a run's hosts that an earlier probe found, such as links at half rate or different MTUs.

Only faults that always cost speed count. A fault that many sound sites have as well would be a false alarm.
"""

from __future__ import annotations

from collections.abc import Iterator

from holmes_core.records.inventory import Finding
from holmes_core.units import format_names
from prober.running import running_texts as causes
from prober.running.running_texts import RunFinding
from prober.running.watched_run import BULK_BYTES_PER_S, WatchedRun

OF_HOSTS = ("GPU-FABRIC", "GPU-NVLINK-INACTIVE", "HOST-CPU-GOVERNOR")
"""Rules on faults that slow any run on the host."""
OF_NETWORKS = (
    "NET-BW-LOW",
    "NET-PATH-MTU",
    "NIC-BIT-ERRORS",
    "NIC-BOND-DEGRADED",
    "NIC-COUNT-DIFFERS",
    "NIC-ERRORS",
    "NIC-FLAP",
    "NIC-PORT-DOWN",
    "NIC-RATE-BELOW-CLASS",
    "NIC-SLOT-POWER",
    "PCI-LINK-DEGRADED",
)
"""Rules on faults that slow all traffic between hosts."""
OF_RDMA = (
    "GDR-NO-PEERMEM",
    "PCI-ACS-ON-PATH",
    "RDMA-BW-LOW",
    "RDMA-GPU-BW-LOW",
    "ROCE-GID-DIFFERS-BY-HOST",
    "ROCE-MTU-DIFFERS",
    "ROCE-MTU-SMALL",
)
"""Rules on faults that slow traffic of RDMA ports."""
COST = 0.02  # so that these faults come after all that the watch shows
MAX_NAMED = 8


def audited_causes(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield each fault in the inventory of a host with ranks, if the run uses the faulty part."""
    if run.probed is None:
        return
    hosts = {rank.host for rank in run.ranks}
    hosts_seen = run.by_name
    outside = [
        path.sent_bytes / hosts_seen[path.sender].seconds
        for path in run.paths
        if path.leaves_host and path.sender in hosts_seen
    ]
    rules = OF_HOSTS + OF_RDMA * (run.rdma_bytes_per_s > BULK_BYTES_PER_S)
    if run.rdma_bytes_per_s + sum(outside) > BULK_BYTES_PER_S:
        rules += OF_NETWORKS
    for finding in run.probed.findings:
        named = [name for name in finding.hosts if name in hosts]
        if finding.rule in rules and named:
            yield _found(finding, named)


def _found(finding: Finding, hosts: list[str]) -> RunFinding:
    detail = f"{finding.rule} on {format_names(hosts, MAX_NAMED)}"
    lines = f"inventory.json: {finding.evidence}", f"effect: {finding.effect}"
    return causes.AUDITED.finding(detail, *lines, cost=COST, remedy=f"{finding.remedy}. ")
