"""A plan on the screen: where every rank sits, then tables, then the bottleneck and the proof in words.

Fits into 100 columns and reads without colour. Hosts alike are folded into one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import fill

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holmes_cli.screen.plan_tables import Sheet, count, describe, plan_sheets
from holmes_cli.screen.terminal import out
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanRank, SolveReport
from holmes_core.units import format_seconds
from planner.advice.across_rails import rails_sentence
from planner.advice.cluster_spans import cluster_spans
from planner.advice.explain import HostBlock, bottleneck, host_blocks, ranges, tasklets

WIDTH = 100
MOST_BRANCHES = 24  # lines a cluster takes in the tree at most


def show_plan(plan: Plan, inventory: Inventory, sheets: Sequence[Sheet] = ()) -> None:
    """Print placement, networks, traffic, prediction and proof, then `sheets`."""
    out.print(describe(plan), soft_wrap=True)
    out.print(_placement_tree(plan))
    for sheet in plan_sheets(plan, inventory):
        show_sheet(sheet, out)
    for sentence in plan_sentences(plan, inventory):
        out.print(fill(sentence, WIDTH), markup=False, soft_wrap=True)
    for sheet in sheets:
        show_sheet(sheet, out)


def plan_sentences(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """What holds the step up, why stages span clusters, what other orders and degrees would take, how sure it is."""
    return (
        bottleneck(plan),
        *cluster_spans(inventory, plan),
        *rails_sentence(plan, inventory),
        *_usual_sentence(plan),
        *_unequal_sentence(plan.solve),
        _proof_sentence(plan.solve),
    )


def show_sheet(sheet: Sheet, console: Console) -> None:
    """Print a table below its title."""
    console.print(sheet.title, style="bold")
    table = Table()
    for heading in sheet.headings:
        table.add_column(heading, overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table, width=WIDTH)


def _usual_sentence(plan: Plan) -> tuple[str, ...]:
    """What the usual rank order would take; nothing where it does not fit, or is the plan itself."""
    usual, ours = plan.usual_order, plan.prediction
    if usual is None or not ours.step_s:
        return ()
    ratio = f"this plan is {usual.step_s / ours.step_s:.2f}x as fast"
    return (f"The usual rank order on these hosts: {format_seconds(usual.step_s)} a step; {ratio}.",)


def _unequal_sentence(solve: SolveReport) -> tuple[str, ...]:
    """What degrees of its own in each cluster would gain; nothing where none were found that gain."""
    unequal = solve.unequal
    if unequal is None:
        return ()
    blocks = " and ".join(
        f"{count(block.stages, 'stage')} of tp {block.tp} x dp {block.dp} in {block.cluster}"
        for block in unequal.blocks
    )
    less = 1 - unequal.placement_s / solve.objective_s
    return (
        f"With degrees of their own {blocks} would take {less:.1%} less by the closed form. The bundled runtime "
        "has one tp and one dp for all stages and cannot run that; this plan is the best of those it can.",
    )


def _proof_sentence(solve: SolveReport) -> str:
    """How sure it is that nothing is better."""
    if solve.status == "fixed":
        return "Placement: fixed by the usual rank order, nothing was solved."
    gap = "proven best" if solve.gap == 0 else f"at most {solve.gap:.2%} from the best"
    tried = f"{count(solve.candidates, 'candidate')}, {count(solve.programs, 'integer program')}"
    return f"Placement: {gap} by the closed-form cost ({solve.solver}, {solve.status}; {tried})."


def _placement_tree(plan: Plan) -> Tree:
    tree = Tree("Placement")
    for cluster, members in groupby(host_blocks(plan), key=lambda block: block.cluster):
        blocks = list(members)
        hosts, ranks = sum(len(block.hosts) for block in blocks), sum(len(block.ranks) for block in blocks)
        branch = tree.add(f"cluster {cluster}: {count(hosts, 'host')}, {count(ranks, 'rank')}")
        for block in blocks[:MOST_BRANCHES]:
            branch.add(_block_line(plan, block))
        left = blocks[MOST_BRANCHES:]
        if left:
            hosts = sum(len(block.hosts) for block in left)
            branch.add(f"... {count(hosts, 'more host')}: {tasklets(plan, _ranks(left))}")
    return tree


def _ranks(blocks: Iterable[HostBlock]) -> list[PlanRank]:
    return [rank for block in blocks for rank in block.ranks]


def _block_line(plan: Plan, block: HostBlock) -> str:
    numbers = [rank.rank for rank in block.ranks]
    hosts = block.hosts[0] if len(block.hosts) == 1 else f"{block.hosts[0]} to {block.hosts[-1]} ({len(block.hosts)})"
    gpus = [rank.gpu for rank in block.ranks if rank.host == block.hosts[0] and rank.gpu is not None]
    slots = f" on GPU{'s' if len(gpus) > 1 else ''} {ranges(gpus)}" if gpus else ""
    who, verb = ("ranks", "hold") if len(numbers) > 1 else ("rank", "holds")
    return f"{hosts}: {who} {ranges(numbers)}{slots} {verb} {tasklets(plan, block.ranks)}"
