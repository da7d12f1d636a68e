"""New plans for a run under way: where planner and launcher meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, Source
from holmes_runtime.config.verdicts import HostIsSlow, LinkIsSlow, SlowPart
from planner.advice.changes import Change, FabricRate, LinkRate, WithoutHost, apply_changes
from planner.make_plan import make_plan


@dataclass(frozen=True)
class Replanner:
    """Plans the same job on a changed inventory."""

    inventory: Inventory

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """A plan on the hosts that are left. Raises HolmesError when the job's constraints do not allow one."""
        return self._plan(plan, [WithoutHost(host) for host in hosts])

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        """A plan without a host that computes slowly, or with a link at the rate the runtime's verdict gives it."""
        change = WithoutHost(verdict.host) if isinstance(verdict, HostIsSlow) else self._slower(verdict)
        return self._plan(plan, [*(WithoutHost(host) for host in hosts), change])

    def _slower(self, link: LinkIsSlow) -> FabricRate | LinkRate:
        """The network between the two hosts at the rate of the link."""
        cluster_of = {host: cluster for cluster in self.inventory.clusters for host in cluster.hosts}
        here, there = cluster_of[link.sender], cluster_of[link.receiver]
        network = here.fabric if here == there else self.inventory.shared
        port = network.port_of(link.sender) if network else None
        rate = (port.rdma_bandwidth_bytes_per_s or port.bandwidth_bytes_per_s) if port else None
        if rate is None:
            between = f"{link.sender} and {link.receiver}"
            raise HolmesError(f"the rate between {between} is not known", "probe with `--links`", ANSWER_IS_NO)
        slower = rate / link.ratio
        return FabricRate(here.name, slower) if here == there else LinkRate((here.name, there.name), slower)

    def _plan(self, plan: Plan, changes: Iterable[Change]) -> Plan:
        rest = apply_changes(self.inventory, changes)
        source = Source(path=plan.inventory.path, digest=rest.digest())
        return make_plan(rest, plan.job, source, plan.job_source)
