"""New plans for a run under way: where planner and launcher meet."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, Source
from holmes_runtime.config.verdicts import HostIsSlow, LinkIsSlow, SlowPart
from planner.advice.what_if import rate_text, what_if
from planner.make_plan import make_plan


@dataclass(frozen=True)
class Replanner:
    """Plans the same job on a changed inventory."""

    inventory: Inventory

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """A plan on the hosts that are left. Raises HolmesError when the job's constraints do not allow one."""
        return self._plan(plan, [f"-host:{host}" for host in hosts])

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        """A plan without a host that computes slowly, or with a link at the rate the runtime's verdict gives it."""
        change = f"-host:{verdict.host}" if isinstance(verdict, HostIsSlow) else self._slow_link(verdict)
        return self._plan(plan, [*(f"-host:{host}" for host in hosts), change])

    def _slow_link(self, link: LinkIsSlow) -> str:
        """The change of the inventory that makes the link between two hosts as slow as that."""
        cluster_of = {host: cluster for cluster in self.inventory.clusters for host in cluster.hosts}
        here, there = cluster_of[link.sender], cluster_of[link.receiver]
        network = here.fabric if here == there else self.inventory.shared
        port = network.port_of(link.sender) if network else None
        rate = (port.rdma_bandwidth_bytes_per_s or port.bandwidth_bytes_per_s) if port else None
        if rate is None:
            between = f"{link.sender} and {link.receiver}"
            raise HolmesError(f"the rate between {between} is not known", "probe with `--links`", ANSWER_IS_NO)
        slower = rate_text(rate / link.ratio)
        return f"fabric:{here.name}={slower}" if here == there else f"link:{here.name}-{there.name}={slower}"

    def _plan(self, plan: Plan, changes: list[str]) -> Plan:
        rest = what_if(self.inventory, ",".join(changes)) if changes else self.inventory
        source = Source(path=plan.inventory.path, digest=rest.digest())
        return make_plan(rest, plan.job, source, plan.job_source)
