"""A plan on the screen: the answer first, then the place of every rank, tables, the bottleneck and the proof.

Fits into 100 columns, or a narrower terminal, and reads without colour. Hosts alike are folded into one line.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import fill

from rich.console import Console
from rich.tree import Tree

from holmes_cli.job_overrides import as_options
from holmes_cli.screen.change_tables import loss_in_words
from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.plan_tables import Sheet, count, describe_degrees, plan_sheets
from holmes_cli.screen.terminal import out, print_out
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import Modes
from holmes_core.records.plan import IslandsPlan, Plan, SolveReport, SourceFile, TunnelHub
from holmes_core.units import format_bytes, format_duration, format_memory, format_seconds
from holmes_runtime.config.codec import Codec
from planner.advice.across_rails import rails_sentence
from planner.advice.assumed_speeds import assumed_speed_sentence, dense_layers_sentence, step_spread_s
from planner.advice.cluster_spans import cluster_spans
from planner.advice.explain import HostBlock, bottleneck, host_blocks, ranges, shares_sentence, tasklets
from planner.advice.left_out import left_out_sentences
from planner.advice.unknown_hosts import unknown_host_sentences
from planner.advice.unsaved_work import unevaluated_sentences, unsaved_sentences
from planner.advice.unused_fabric import unused_fabric_sentences
from planner.advice.utilisation import predicted_mfu
from planner.advice.wire_rates import spread_sentence, unmeasured_wire_sentence
from planner.cost.codec_loss import loss_words
from planner.cost.engines import engine_of

WIDTH = 100
MAX_ISLANDS_RATE = 1e-3  # docs/planning.md, "Learning rate"
ONE_ROUND = (
    "Islands are averaged once, at the end of the run: what that costs in loss over training as one was not measured."
)
MAX_BRANCHES = 24  # lines a cluster takes in the tree at most


def show_plan(plan: Plan, inventory: Inventory, sheets: Sequence[Sheet] = (), engine: Sequence[str] = ()) -> None:
    """Print the answer, placement, networks, traffic, prediction, price of the `engine` and proof, then `sheets`."""
    _show_sentences(headline(plan, inventory))
    out.print(_placement_tree(plan))
    for sheet in plan_sheets(plan, inventory):
        show_sheet(sheet, out)
    _show_sentences(plan_sentences(plan, inventory, engine))
    for sheet in sheets:
        show_sheet(sheet, out)


def show_islands(plan: IslandsPlan, inventory: Inventory, sheets: Sequence[Sheet]) -> None:
    """Print the answer, the ranks of each island, and `sheets`."""
    _show_sentences(islands_headline(plan, inventory))
    for number, island in enumerate(plan.islands):
        out.print(_placement_tree(island, f"Island {number}"))
    for sheet in sheets:
        show_sheet(sheet, out)


def sketch_sentence(plan: Plan | IslandsPlan) -> tuple[str, ...]:
    """Return a sentence on the machines of a plan that nothing probed, if it is one."""
    if plan.sketch is None:
        return ()
    return (f"For a sketch, not for probed machines, with rates as it states them: {plan.sketch}",)


def islands_headline(plan: IslandsPlan, inventory: Inventory) -> tuple[str, ...]:
    """Return the answer: the clusters of each island, speed, exposed outer sync, and the ratio to the best other
    mode."""
    cost, names = plan.prediction, [" and ".join(_clusters(island)) for island in plan.islands]
    whole = f"{count(plan.rounds, 'round')} in {format_duration(plan.run_s)}"
    as_one = next((price for price in plan.modes.prices if price.mode != "islands" and price.tokens_per_s), None)
    waited = f"{format_seconds(cost.exposed_s)} of a round" if cost.exposed_s else "hidden by inner steps"
    against = "these hosts cannot train as one"
    if as_one is not None and as_one.tokens_per_s:
        against = f"{cost.tokens_per_s / as_one.tokens_per_s:.2f}x as fast as the best mode that trains as one"
    steps = " and ".join(map(str, plan.inner_steps))
    return (
        *_slower_by_sentence(plan.modes),
        *sketch_sentence(plan),
        f"{len(plan.islands)} islands, {', '.join(names)}: {steps} inner steps a round",
        f"{format_seconds(cost.round_s)} a round, {cost.tokens_per_s:.0f} tokens/s; {whole}",
        f"{against}; what islands exchange is {waited}",
        *_loss_sentence(plan.modes),
        *((ONE_ROUND,) if plan.rounds == 1 else ()),
        *_longer_round_sentence(plan.modes),
        *unmeasured_wire_sentence(plan.islands, inventory, time.time()),
        *_hub_sentence(plan.tunnel_hub),
        *spread_sentence(plan.islands, inventory),
        *(sentence for island in plan.islands for sentence in unknown_host_sentences(island, inventory)),
        "A token may teach islands less than hosts that train as one: compare losses before a long run.",
        *unsaved_sentences(plan.job, plan.run_s / plan.job.steps),
        *_rate_sentence(plan),
        *_overrides_sentence(plan.job_source),
    )


def _hub_sentence(hub: TunnelHub | None) -> tuple[str, ...]:
    """Return a sentence on the clusters that send through the tunnel's hub, if there is one."""
    if hub is None:
        return ()
    pairs = ", ".join(" - ".join(pair) for pair in hub.relayed)
    return (f"{hub.node.host} relays the tunnel between {pairs}; others reach it at {hub.address}, UDP port 51820.",)


def _longer_round_sentence(modes: Modes | None) -> tuple[str, ...]:
    """Return a sentence on the longer round that would be much faster than the plan, if there is one."""
    if modes is None or modes.longer_round is None:
        return ()
    longer, per_s = modes.longer_round, modes.prices[0].tokens_per_s or 0.0
    ratio = f", {longer.tokens_per_s / per_s:.2f}x as many" if per_s else ""
    return (
        f"Islands with `inner_steps: {longer.inner_steps}` would read {longer.tokens_per_s:.0f} tokens/s{ratio}; "
        f"loss over training as one {loss_in_words(longer.loss)} (docs/planning.md, Islands).",
    )


def _loss_sentence(modes: Modes) -> tuple[str, ...]:
    """Return the settings that the planner chose, with the loss they cost; nothing if job.yaml fixes all."""
    return tuple(
        f"inner_steps {each.inner_steps}, codec {each.codec}, fragments {each.fragments}, delay_steps "
        f"{each.delay_steps}: loss over training as one {loss_in_words(each.loss)} (docs/planning.md, Islands)."
        for each in modes.settings
        if each.is_chosen
    )


def _slower_by_sentence(modes: Modes | None) -> tuple[str, ...]:
    """Return a sentence on the setting that rules out faster islands, if there is one."""
    if modes is None or modes.slower_by is None:
        return ()
    per_s, now = modes.slower_by.tokens_per_s, modes.prices[0].tokens_per_s or 0.0
    ratio = f", {per_s / now:.2f}x as many as this plan" if now else ""
    why = f": {modes.slower_by.why}" if modes.slower_by.why else ""
    return (f"`{modes.slower_by.setting}` rules out islands that would read {per_s:.0f} tokens/s{ratio}{why}.",)


def _rate_sentence(plan: IslandsPlan) -> tuple[str, ...]:
    """Warn of a learning rate at which islands' small batches made the loss jump."""
    rate, batches = plan.job.optimizer.learning_rate, (island.job.global_batch_size for island in plan.islands)
    if rate <= MAX_ISLANDS_RATE:
        return ()
    return (
        f"optimizer.learning_rate {rate:g} is high for islands, which step with batches of {min(batches)}, not "
        f"{plan.job.global_batch_size}: above {MAX_ISLANDS_RATE:g} the loss of a small GPT jumped (docs/planning.md).",
    )


def islands_sheet(plan: IslandsPlan) -> Sheet:
    """Return a table with a row per island."""
    rows = tuple(
        (
            str(number),
            ", ".join(_clusters(island)),
            f"{describe_degrees(island)}; {count(len(island.nodes), 'host')}",
            format_seconds(island.prediction.step_s),
            str(plan.inner_steps[number]),
            str(island.job.global_batch_size),
            format_memory(max(island.prediction.host_memory_bytes) * island.world_size / len(island.nodes)),
            format_bytes(plan.prediction.sent_bytes[number]),
        )
        for number, island in enumerate(plan.islands)
    )
    headings = ("island", "clusters", "degrees", "step", "steps", "batch", "host memory", "sent a round")
    return Sheet("Islands", headings, rows)


def _clusters(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rank.cluster for rank in plan.ranks))


def headline(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return the answer: placement, speed, the ratio to the usual order, and hosts left out with the reason."""
    alike = groupby(plan.stages, key=lambda stage: stage.clusters)
    stages = [(ranges([stage.index for stage in some]), " and ".join(clusters)) for clusters, some in alike]
    where = ", ".join(f"stage{'s' * (not numbers.isdigit())} {numbers} on {clusters}" for numbers, clusters in stages)
    return (
        *_slower_by_sentence(plan.modes),
        *sketch_sentence(plan),
        f"{describe_degrees(plan)}: {where}",
        _speed_sentence(plan, inventory),
        _usual_sentence(plan),
        *_longer_round_sentence(plan.modes),
        *unmeasured_wire_sentence((plan,), inventory, time.time()),
        *spread_sentence((plan,), inventory),
        *unknown_host_sentences(plan, inventory),
        *left_out_sentences(plan, inventory),
        *unsaved_sentences(plan.job, plan.prediction.step_s),
        *unevaluated_sentences(plan.job),
        *_overrides_sentence(plan.job_source),
    )


def plan_sentences(plan: Plan, inventory: Inventory, engine: Sequence[str] = ()) -> tuple[str, ...]:
    """Return sentences on unequal shares, the bottleneck, stages that span clusters, the `engine`, and the proof."""
    return (
        *shares_sentence(plan),
        bottleneck(plan),
        *cluster_spans(inventory, plan),
        *rails_sentence(plan, inventory),
        *unused_fabric_sentences(plan, inventory),
        *assumed_speed_sentence(plan, inventory),
        *dense_layers_sentence(plan),
        *_codec_sentences(plan),
        *engine,
        *_engine_sentence(plan),
        _proof_sentence(plan),
    )


def _overrides_sentence(job: SourceFile) -> tuple[str, ...]:
    """Return a sentence on the keys of job.yaml that `--set` replaced, if any."""
    return (f"The job is {job.path} with {as_options(job.overrides)}.",) if job.overrides else ()


def _codec_sentences(plan: Plan) -> tuple[str, ...]:
    """Return, for each codec on edges, the number of cuts between stages it packs and its cost in loss."""
    cuts: dict[Codec, set[frozenset[int]]] = {}
    for group in plan.groups:
        if group.codec != "none":
            cuts.setdefault(group.codec, set()).add(frozenset(plan.ranks[rank].pp_rank for rank in group.ranks))
    return tuple(
        f"Packing as {codec} on {count(len(found), 'cut')} between stages changes training: {loss_words(codec)}."
        for codec, found in sorted(cuts.items())
    )


def _added_words(plan: Plan) -> tuple[str, ...]:
    """Return a sentence on the options that a launch adds to a trainer's command, if any."""
    if plan.job.trainer is None:
        return ()
    from launcher.prepare.engine_arguments import added_words  # plans of the bundled trainer import no launcher

    added = added_words(plan)
    return (f"A launch adds to the command of {plan.job.engine}: {shlex.join(added)}",) if added else ()


def _engine_sentence(plan: Plan) -> tuple[str, ...]:
    """Return sentences on a trainer that is not launched, or on the options of its command, if any."""
    if plan.job.is_launched:
        return (*_added_words(plan), *untold_batches(plan), *reducing_sentence(plan))
    return (f"These are predictions for {plan.job.engine}: trainer in job.yaml has no command to launch.",)


def untold_batches(plan: Plan) -> tuple[str, ...]:
    """Return a sentence if a script without common options for its batches does not receive the plan's."""
    trainer = plan.job.trainer
    if trainer is None or trainer.engine not in ("torch", "deepspeed", "accelerate"):
        return ()
    if "micro_batch_size" in trainer.placeholders:
        return ()
    return (
        "The command is not told its batches ({micro_batch_size}, {num_microbatches}): predicted are micro-batches "
        f"of {plan.micro_batch_size}, {plan.microbatches[0]} for each replica and step.",
    )


def reducing_sentence(plan: Plan) -> tuple[str, ...]:
    """Return a sentence on when FSDP reduces gradients, as the plan counts it, if it does not all fall together."""
    number, engine = max(plan.microbatches), plan.job.engine
    if plan.zero != 3 or plan.pp > 1 or number == 1:
        return ()
    if engine_of(plan.job).reduces == "last":
        return (
            f"Predicted are whole gradients on every rank until the last of {number} micro-batches, as {engine} keeps "
            "them without sync_each_batch.",
        )
    unless = " unless the script calls set_requires_gradient_sync, which takes more memory" if engine == "torch" else ""
    return (f"Predicted are gradients reduced in each of {number} micro-batches, as {engine} does{unless}.",)


def show_sheet(sheet: Sheet, console: Console) -> None:
    """Print a table below its title."""
    console.print(sheet.title, style="bold", markup=False)
    console.print(fitted_table(sheet.headings, sheet.rows, min(WIDTH, console.width)))


def _show_sentences(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        lines = fill(sentence, min(WIDTH, out.width), break_on_hyphens=False)
        print_out(lines)


def _speed_sentence(plan: Plan, inventory: Inventory) -> str:
    """Return seconds per step with their spread, tokens/s, MFU on GPUs, and the time of the whole training."""
    guess, steps, mfu = plan.prediction, plan.job.steps, predicted_mfu(plan, inventory)
    used = ""
    if plan.job.device == "cuda":
        used = f", MFU {mfu:.1%}" if mfu is not None else ", MFU not known"
    whole = f"{count(steps, 'step')} in {format_duration(steps * guess.step_s)}"
    spread, between = step_spread_s(plan, inventory), ""
    if spread is not None:
        low, high = map(format_seconds, spread)
        between = f" ({low.removesuffix(high[high.index(' ') :])} to {high})"
    return f"{format_seconds(guess.step_s)} a step{between}, {guess.tokens_per_s:.0f} tokens/s{used}; {whole}"


def _usual_sentence(plan: Plan) -> str:
    """Compare with the usual order: hosts filled one after another, replica by replica, as Megatron does."""
    usual, ours = plan.usual_order, plan.prediction
    if plan.order == "usual":
        return "the usual rank order, as asked; without `--usual-order` Holmes looks for a better one"
    if usual is None or not ours.step_s:
        late = "was not compared within the time limit, or " if plan.solve.status == "time limit" else ""
        return f"the usual rank order {late}does not fit on these hosts"
    ratio = f"{usual.step_s / ours.step_s:.2f}x as fast as the usual rank order on these hosts"
    return f"{ratio}, {format_seconds(usual.step_s)} a step"


def _proof_sentence(plan: Plan) -> str:
    """Return the proof for the closed form that placements are searched by, and the rank of the simulated step."""
    solve = plan.solve
    if solve.status == "fixed":
        return "Placement: fixed by the usual rank order, nothing was solved."
    sure = f"{solve.status}: at most {solve.gap:.2%} above the bound"
    if solve.gap == 0:
        sure = "proven" if solve.status == "optimal" else "of the cuts compared, which are not all"
    parts = [f"the best of {count(solve.candidates, 'candidate')} takes {format_seconds(solve.objective_s)} ({sure})"]
    if solve.certificate_s is not None:
        program = f"by an integer program, {solve.solver}"
        parts.append(f"the best of these degrees {format_seconds(solve.certificate_s)} ({program})")
    parts.append(f"this one {format_seconds(solve.placement_s)}")
    formula = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return (
        f"Placement: by formula {formula}; by simulation, which decides, {_simulated(solve, plan.prediction.step_s)}."
    )


def _simulated(solve: SolveReport, step_s: float) -> str:
    """Return the rank of the plan among the placements simulated, and the bound under any schedule."""
    seconds = format_seconds(step_s)
    several = solve.simulated is not None and solve.simulated > 1
    fastest = f"it is the fastest of {solve.simulated} at {seconds}" if several else f"it takes {seconds}"
    if solve.step_bound_s is None:
        return fastest
    if solve.step_gap == 0:
        return f"{fastest}, proven best under any schedule"
    return f"{fastest}, and none takes less than {format_seconds(solve.step_bound_s)} under any schedule"


def _placement_tree(plan: Plan, title: str = "Placement") -> Tree:
    tree = Tree(title)
    for cluster, members in groupby(host_blocks(plan), key=lambda block: block.cluster):
        blocks = list(members)
        hosts, ranks = sum(len(block.hosts) for block in blocks), sum(len(block.ranks) for block in blocks)
        branch = tree.add(f"cluster {cluster}: {count(hosts, 'host')}, {count(ranks, 'rank')}")
        for block in blocks[:MAX_BRANCHES]:
            branch.add(_block_line(plan, block))
        left = blocks[MAX_BRANCHES:]
        if left:
            hosts = sum(len(block.hosts) for block in left)
            held = [rank for block in left for rank in block.ranks]
            branch.add(f"... {count(hosts, 'more host')}: {tasklets(plan, held)}")
    return tree


def _block_line(plan: Plan, block: HostBlock) -> str:
    numbers = [rank.rank for rank in block.ranks]
    hosts = block.hosts[0] if len(block.hosts) == 1 else f"{block.hosts[0]} to {block.hosts[-1]} ({len(block.hosts)})"
    gpus = [rank.gpu for rank in block.ranks if rank.host == block.hosts[0] and rank.gpu is not None]
    slots = f" on GPU{'s' if len(gpus) > 1 else ''} {ranges(gpus)}" if gpus else ""
    who, verb = ("ranks", "hold") if len(numbers) > 1 else ("rank", "holds")
    return f"{hosts}: {who} {ranges(numbers)}{slots} {verb} {tasklets(plan, block.ranks)}"
