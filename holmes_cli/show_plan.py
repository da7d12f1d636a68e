"""A plan as tables and a tree: where every rank sits, which network every group uses, what a step should cost."""

from __future__ import annotations

from rich.table import Table
from rich.tree import Tree

from holmes_cli.terminal import out
from holmes_core.plan import InterfaceTraffic, Plan, PlanRank, SolveReport
from holmes_core.units import format_bytes, format_memory, format_rate, format_seconds


def show_plan(plan: Plan) -> None:
    """Print placement, networks, traffic and prediction."""
    order = "usual rank order" if plan.order == "usual" else "placed by Holmes"
    batches = f"micro-batch {plan.micro_batch_size} x {max(plan.microbatches)}"
    out.print(f"tp={plan.tp} pp={plan.pp} dp={plan.dp}, {batches}; {order}")
    out.print(_stages_table(plan))
    out.print(_placement_tree(plan))
    out.print(_groups_table(plan))
    out.print(traffic_table(plan, plan.prediction.traffic, "planned"))
    _show_prediction(plan)


def _stages_table(plan: Plan) -> Table:
    table = Table(title="Stages", title_justify="left")
    for heading in ("stage", "layers", "cluster", "ranks", "memory a rank"):
        table.add_column(heading)
    for stage, memory in zip(plan.stages, plan.prediction.memory_bytes, strict=True):
        ranks = ", ".join(str(rank.rank) for rank in plan.ranks if rank.pp_rank == stage.index)
        layers = f"{stage.first_layer}-{stage.stop_layer - 1} ({stage.num_layers})"
        table.add_row(str(stage.index), layers, " + ".join(stage.clusters), ranks, format_memory(memory))
    return table


def _placement_tree(plan: Plan) -> Tree:
    tree = Tree("Placement")
    for cluster in dict.fromkeys(node.cluster for node in plan.nodes):
        branch = tree.add(f"cluster {cluster}")
        for node in plan.nodes:
            if node.cluster == cluster:
                leaf = branch.add(f"{node.host} (node {node.node_rank})")
                for rank in plan.ranks:
                    if rank.host == node.host:
                        leaf.add(_rank_line(rank))
    return tree


def _rank_line(rank: PlanRank) -> str:
    slot = f"GPU {rank.gpu}" if rank.gpu is not None else f"slot {rank.local_rank}"
    shard = f", shard {rank.tp_rank}" if rank.tp_rank else ""
    return f"rank {rank.rank} on {slot}: stage {rank.pp_rank}, replica {rank.dp_rank}{shard}"


def _groups_table(plan: Plan) -> Table:
    table = Table(title="Process groups", title_justify="left")
    for heading in ("group", "ranks", "network", "interfaces", "rate"):
        table.add_column(heading)
    for group in plan.groups:
        interfaces = ", ".join(dict.fromkeys(group.interfaces))
        network = group.network + (f" ({group.net_name})" if group.net_name else "")
        ranks = ", ".join(str(rank) for rank in group.ranks)
        table.add_row(group.name, ranks, network, interfaces, format_rate(group.bandwidth_bytes_per_s))
    return table


def traffic_table(plan: Plan, traffic: tuple[InterfaceTraffic, ...], word: str) -> Table:
    """Bytes a step over each interface; `word` says whether they are planned or measured."""
    clusters = {node.host: node.cluster for node in plan.nodes}
    table = Table(title=f"Traffic a step, {word}", title_justify="left")
    for heading in ("cluster", "host", "interface", "network", "sent", "received"):
        table.add_column(heading)
    for port in traffic:
        sent, received = format_bytes(port.sent_bytes), format_bytes(port.received_bytes)
        table.add_row(clusters[port.host], port.host, port.netdev, port.network, sent, received)
    return table


def _show_prediction(plan: Plan) -> None:
    guess, solve = plan.prediction, plan.solve
    parts = (
        ("compute", guess.compute_s),
        ("bubble", guess.bubble_s),
        ("waiting for pipeline edges", guess.exposed_edge_s),
        ("waiting for gradients", guess.exposed_dp_s),
    )
    listed = " + ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts)
    text = f"predicted step: {format_seconds(guess.step_s)} = {listed}; {guess.tokens_per_s:.0f} tokens/s"
    out.print(text, soft_wrap=True)
    out.print(_proof(solve))
    if plan.usual_order:
        ratio = plan.usual_order.step_s / guess.step_s
        seconds = format_seconds(plan.usual_order.step_s)
        out.print(f"the usual rank order on these hosts: {seconds} a step; this plan is {ratio:.2f}x as fast")


def _proof(solve: SolveReport) -> str:
    if solve.status == "fixed":
        return "placement: fixed by the usual rank order, nothing was solved"
    gap = "proven best" if solve.gap == 0 else f"at most {solve.gap:.2%} from the best"
    tried = f"{solve.candidates} candidates, {solve.programs} integer programs"
    return f"placement: {gap} by the closed-form cost ({solve.solver}, {solve.status}; {tried})"
