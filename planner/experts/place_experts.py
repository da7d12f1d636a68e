"""The experts of all layers, placed on the groups of a plan by a trace and compared with the engines' usual order.

Tokens are assumed to be spread evenly over the ranks of a group, as in data parallel training. Even tokens of the trace
select the placement and odd ones evaluate it, so that no gain is due to chance. If it is not better on the latter, the
layer keeps the usual order. So do layers that no time is left for.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.advice import LayerExperts, PlacedBy
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from planner.cost.collectives import routed_share
from planner.cost.compute_time import routed_row_s
from planner.cost.counts import Execution
from planner.cost.slot import Slot
from planner.experts.layer_problem import ExpertRanks, LayerProblem
from planner.experts.place_layer import place_layer
from planner.experts.routing_trace import Chosen
from planner.layout.layout_costs import LayoutCosts
from planner.layout.reprice import layout_of
from planner.problem.problem import read_problem
from planner.time_left import TimeLeft


class StageGroups(NamedTuple):
    """The groups of a pipeline rank: the hosts that each spans, and the seconds on the slowest of them.

    `copy_s` is for a token that a host receives, `row_s` for a row of a rank, both for one micro-batch's step: there
    and back, forward and backward.
    """

    num_hosts: int
    copy_s: float
    row_s: float


def check_routing(job: Job) -> None:
    """Raise HolmesError (wrong usage) for a job whose experts cannot be reordered."""
    if job.model.experts is None:
        raise HolmesError("--routing: the job's model has no experts", "leave the option out")
    for option in ("--moe-router-num-groups", "--moe-router-group-topk", "--moe-router-topk-limited-devices"):
        if job.trainer is not None and job.trainer.values(option) is not None:
            raise HolmesError(
                f"--routing: trainer.command has {option}: tokens choose among groups of neighbouring experts, which a "
                "new order would change",
                "leave --routing or the option out",
            )


def place_experts(
    inventory: Inventory, plan: Plan, trace: tuple[tuple[Chosen, ...], ...], left: TimeLeft
) -> tuple[LayerExperts, ...]:
    """Return the experts of each layer by rank of a group, with the price of their usual order.

    Raises:
        HolmesError: The plan has one rank per group, or hosts hold unequal parts of groups.
    """
    groups = _stage_groups(inventory, plan)
    found = list[LayerExperts]()
    for layer, tokens in enumerate(trace):
        stage = next(stage for stage in plan.stages if stage.first_layer <= layer < stage.stop_layer)
        at = groups[stage.index % plan.pp]
        share = TimeLeft(left.seconds / (len(trace) - layer))
        found.append(_placed(plan, at, layer, tokens, share))
    return tuple(found)


def _placed(plan: Plan, at: StageGroups, layer: int, tokens: tuple[Chosen, ...], left: TimeLeft) -> LayerExperts:
    """Return the experts of one layer."""
    chooses, judges = (_problem(plan, at, tokens[first::2]) for first in (0, 1))
    placement, gap, usual = judges.usual, None, _price(judges, judges.usual)
    if not left.is_over:
        best = place_layer(chooses, left)
        if judges.seconds(best.placement) < usual.seconds:
            placement = best.placement
        seconds = chooses.seconds(placement)
        gap = 1 - best.bound_s / seconds if seconds else 0.0
    return LayerExperts(layer=layer, experts=placement, usual=usual, placed=_price(judges, placement), gap=gap)


def _problem(plan: Plan, at: StageGroups, tokens: tuple[Chosen, ...]) -> LayerProblem:
    """Return the problem of a layer, with the tokens standing for all of a micro-batch of the group."""
    model = plan.job.model
    assert model.experts is not None
    scale = plan.micro_batch_size * model.seq_length / (plan.tp * plan.job.cp) * plan.job.ep / len(tokens)
    return LayerProblem(model.experts, at.num_hosts, plan.job.ep, at.copy_s * scale, at.row_s * scale, Counter(tokens))


def _price(problem: LayerProblem, placement: ExpertRanks) -> PlacedBy:
    """Return the copies per token that leave hosts, and the fullest rank's rows over the mean."""
    rows = problem.rank_rows(placement)
    copies = sum(problem.host_tokens(placement)) if problem.copy_s else sum(rows)
    outside = copies * (1 - 1 / problem.num_hosts)
    return PlacedBy(
        copies=outside / problem.num_tokens,
        fullest=max(rows) * len(rows) / sum(rows),
        seconds=problem.seconds(placement),
    )


def _stage_groups(inventory: Inventory, plan: Plan) -> list[StageGroups]:
    """Return the groups of each pipeline rank."""
    job, ep = plan.job, plan.job.ep
    if ep == 1:
        raise HolmesError(
            "--routing: the plan has parallel.ep 1: each rank holds all experts",
            "set parallel.ep in job.yaml, or leave --routing out",
            ANSWER_IS_NO,
        )
    if job.etp > 1:
        raise HolmesError(
            f"--routing: the plan has parallel.etp {job.etp}, and places are chosen for whole experts alone",
            "leave parallel.etp or --routing out",
            ANSWER_IS_NO,
        )
    if job.is_bundled:
        raise HolmesError(
            "--routing: the plan is for the bundled trainer, whose order of experts is fixed",
            "leave --routing out",
            ANSWER_IS_NO,
        )
    problem = read_problem(inventory, job)
    costs = LayoutCosts(problem, layout_of(problem, plan))
    found = list[StageGroups]()
    for pp_rank in range(plan.pp):
        hosts = [rank.host for rank in plan.ranks if rank.pp_rank == pp_rank]
        runs = [
            [(host, len(list(run))) for host, run in groupby(hosts[first : first + ep])]
            for first in range(0, len(hosts), ep)
        ]
        num_hosts = _hosts_of_each(runs)
        rates = [_seconds(job, costs.execution, costs.priced[host].slot, num_hosts) for host in set(hosts)]
        found.append(StageGroups(num_hosts, max(copy for copy, _ in rates), max(row for _, row in rates)))
    return found


def _hosts_of_each(groups: list[list[tuple[str, int]]]) -> int:
    """Return the number of hosts of each group, given by its ranks on them. It must be the same for all groups."""
    alike = {tuple(size for _, size in group): group for group in groups}
    if len(alike) > 1 or len({size for _, size in groups[0]}) > 1:
        ranks = "; ".join(", ".join(f"{size} on {host}" for host, size in group) for group in [*alike.values()][:2])
        raise HolmesError(
            f"--routing: hosts hold unequal parts of the groups of ranks that share experts: {ranks}",
            "leave out hosts with fewer GPUs, or leave --routing out",
            ANSWER_IS_NO,
        )
    return len(groups[0])


def _seconds(job: Job, execution: Execution, slot: Slot, num_hosts: int) -> tuple[float, float]:
    """Return the seconds of a token that a host receives, and of a row, with ranks on such a slot.

    Copies that several tokens' experts on a host share are sent once (Megatron-Core's dispatcher `flex`: DeepEP and
    HybridEP), evenly over the NICs of all its ranks. Otherwise, each row is a copy on the NIC of its own rank.
    """
    row_s = routed_row_s(job.model, execution, slot.speed.slowed(execution.slowdown)) if slot.speed else 0.0
    if slot.peers is None:
        return 0.0, row_s
    times = 6 if execution.recompute == "full" else 4
    size = execution.value_bytes * job.model.hidden_size * times
    rate = routed_share(execution) * (slot.peers.bytes_per_s or slot.inside.bandwidth_bytes_per_s)
    outside_s = size * (1 - 1 / num_hosts) / rate
    if execution.sends_once:
        return outside_s * num_hosts / job.ep, row_s
    inside_s = size * (1 / num_hosts - 1 / job.ep) / slot.inside.bandwidth_bytes_per_s
    return 0.0, row_s + max(outside_s, inside_s)
