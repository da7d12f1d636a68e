"""New plans for a run under way: where planner and launcher meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, SourceFile
from holmes_runtime.config.verdicts import HostIsSlow, LinkIsSlow, SlowPart
from planner.advice.changes import Change, FabricRate, LinkRate, TrunkRate, WithoutHost, apply_changes
from planner.make_plan import make_plan
from planner.problem.networks import Networks


@dataclass(frozen=True)
class Replanner:
    """Plans the same job on a changed inventory."""

    inventory: Inventory

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """Return a plan on the remaining hosts. Raises HolmesError if the job's constraints allow none."""
        return self._plan(plan, [WithoutHost(host) for host in hosts])

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        """Return a plan without a host that computes slowly, or with a link at the rate of the runtime's verdict."""
        change = WithoutHost(verdict.host) if isinstance(verdict, HostIsSlow) else self._slower(plan, verdict)
        return self._plan(plan, [*(WithoutHost(host) for host in hosts), change])

    def _slower(self, plan: Plan, link: LinkIsSlow) -> FabricRate | LinkRate | TrunkRate:
        """Return the network between the two hosts with its planned rate divided by the link's ratio."""
        networks, hosts = Networks(self.inventory, plan.job), (link.sender, link.receiver)
        here, there = (networks.cluster(host).name for host in hosts)
        wires = networks.shared_wires(here, there)
        if wires:
            narrowest, rate = min(wires.items(), key=itemgetter(1))
            return TrunkRate(tuple(name for name in narrowest[:2] if name), networks.line_rate(rate) / link.ratio)
        rates = [rate for rate in networks.route(hosts).bandwidths if rate is not None]
        if not rates:
            between = f"{link.sender} and {link.receiver}"
            raise HolmesError(f"the rate between {between} is not known", "probe with `--links`", ANSWER_IS_NO)
        if here != there:
            return LinkRate((here, there), networks.line_rate(min(rates)) / link.ratio)
        return FabricRate(here, networks.line_rate(min(rates), networks.uses_rdma(link.sender)) / link.ratio)

    def _plan(self, plan: Plan, changes: Iterable[Change]) -> Plan:
        rest = apply_changes(self.inventory, changes)
        source = SourceFile(path=plan.inventory.path, digest=rest.source_digest())
        return make_plan(rest, plan.job_to_plan, source, plan.job_source)
