"""The placement drawn: clusters, hosts and ranks as boxes, process groups as lines in the colour of their network.

Lines of one kind between the same two boxes are one line, whose tip says how many groups it stands for. Where a plan
has many hosts, those alike are one box, and groups among them a line inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from holmes_cli.pages.picture_box import Box
from holmes_core.records.plan import Plan, PlanGroup
from holmes_core.units import format_rate
from planner.advice.explain import HostBlock, host_blocks, tasklets

NAMED_HOSTS = 64  # up to here every host has a box of its own
MAX_BOXES = 200
MAX_SQUARES = 16  # ranks drawn in one host
BOXES_A_ROW = 8
BOX_WIDTH, BOX_HEIGHT, GAP, HEADER, BELOW = 140, 74, 12, 30, 40
SQUARE = 14
NETWORK_COLOURS = ("#1a7f37", "#0969da", "#8250df", "#bf8700", "#1b7c83", "#bc4c00", "#6e40c9", "#57606a")
SHARED_COLOUR = "#cf222e"
STAGE_COLOURS = ("#54aeff", "#4ac26b", "#d4a72c", "#fd8c73", "#c297ff", "#76e3ea", "#ff80c8", "#afb8c1")


@dataclass(frozen=True)
class GroupPath:
    """Groups between the same boxes: a path in SVG's words, solid for data parallel groups, dashed for edges."""

    role: str
    path: str
    stroke: str
    dash: str
    tip: str


@dataclass(frozen=True)
class PlacementPicture:
    """The drawing, its size in pixels, the colour of each network, and a sentence on hosts left out."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    wires: tuple[GroupPath, ...]
    networks: tuple[tuple[str, str], ...]
    left_out: str


def draw_placement(plan: Plan) -> PlacementPicture:
    """Draw clusters below one another, each with its hosts in rows."""
    blocks = host_blocks(plan, NAMED_HOSTS)
    shown = blocks[:MAX_BOXES]
    colours = network_colours(plan)
    boxes: list[Box] = []
    at: dict[str, tuple[int, int, str]] = {}  # host: left and top of its box, and its cluster
    y = GAP
    for cluster, members in groupby(shown, key=lambda block: block.cluster):
        row = list(members)
        boxes.append(_cluster_box(plan, cluster, row, y, colours.get(cluster, "#57606a")))
        for index, block in enumerate(row):
            down, across = divmod(index, BOXES_A_ROW)
            x = 2 * GAP + across * (BOX_WIDTH + GAP)
            top = y + HEADER + down * (BOX_HEIGHT + BELOW)
            boxes += _block_boxes(plan, block, x, top)
            at |= dict.fromkeys(block.hosts, (x, top, cluster))
        y = max(box.y + box.height for box in boxes) + 2 * GAP
    hosts = sum(len(block.hosts) for block in blocks[MAX_BOXES:])
    return PlacementPicture(
        width=4 * GAP + BOXES_A_ROW * (BOX_WIDTH + GAP),
        height=y,
        boxes=tuple(boxes),
        wires=_wires(plan, at, colours),
        networks=tuple(colours.items()),
        left_out=f"{hosts} more hosts are not drawn." if hosts else "",
    )


def network_colours(plan: Plan) -> dict[str, str]:
    """Return the colour of each network in use: one per fabric, red for the shared one."""
    used = dict.fromkeys(group.network for group in plan.groups)
    fabrics = [network for network in used if network != "shared"]
    colours = {name: NETWORK_COLOURS[index % len(NETWORK_COLOURS)] for index, name in enumerate(fabrics)}
    return colours | ({"shared": SHARED_COLOUR} if "shared" in used else {})


def stage_colour(pp_rank: int) -> str:
    """Return the colour of a pipeline rank's squares and bars; they repeat after eight."""
    return STAGE_COLOURS[pp_rank % len(STAGE_COLOURS)]


def _cluster_box(plan: Plan, cluster: str, blocks: Sequence[HostBlock], y: int, colour: str) -> Box:
    rows = -(-len(blocks) // BOXES_A_ROW)
    columns = min(len(blocks), BOXES_A_ROW)
    hosts, ranks = sum(len(block.hosts) for block in blocks), sum(len(block.ranks) for block in blocks)
    title = f"cluster {cluster}: {hosts} hosts, {ranks} ranks"
    width = max(2 * GAP + columns * (BOX_WIDTH + GAP) - GAP, 260)
    height = HEADER + rows * (BOX_HEIGHT + BELOW)
    stages = ", ".join(str(stage.index) for stage in plan.stages if cluster in stage.clusters)
    return Box("cluster", GAP, y, width, height, "#f6f8fa", colour, title, f"{title}; stages {stages}")


def _block_boxes(plan: Plan, block: HostBlock, x: int, y: int) -> list[Box]:
    """Return the box of one host or several alike, and a square for each rank of the first."""
    many = len(block.hosts)
    label = block.hosts[0] if many == 1 else f"{many} hosts from {block.hosts[0]}"
    tip = f"{label}: {tasklets(plan, block.ranks)}"
    boxes = [Box("host", x, y, BOX_WIDTH, BOX_HEIGHT, "#ffffff", "#57606a", label[:20], tip)]
    ranks = [rank for rank in block.ranks if rank.host == block.hosts[0]]
    for index, rank in enumerate(ranks[:MAX_SQUARES]):
        down, across = divmod(index, 8)
        square = (x + 8 + across * (SQUARE + 2), y + 28 + down * (SQUARE + 6), SQUARE, SQUARE)
        tip = f"rank {rank.rank} on {rank.host}: {tasklets(plan, [rank])}"
        boxes.append(Box("rank", *square, stage_colour(rank.pp_rank), "#ffffff", "", tip))
    return boxes


def _wires(plan: Plan, at: Mapping[str, tuple[int, int, str]], colours: Mapping[str, str]) -> tuple[GroupPath, ...]:
    """Return one line for all groups of a kind and network between two boxes."""
    groups: dict[tuple[str, str, tuple[int, int, str], tuple[int, int, str]], list[PlanGroup]] = {}
    for group in plan.groups:
        role = "edges" if group.axis in ("pp_forward", "pp_backward") else group.axis.removesuffix("_across")
        hosts = dict.fromkeys(plan.ranks[rank].host for rank in group.ranks)
        boxes = list(dict.fromkeys(at[host] for host in hosts if host in at))
        inside = [(boxes[0], boxes[0])] if len(boxes) == 1 and len(hosts) > 1 else []
        for ends in [*pairwise(boxes), *inside]:
            start, end = sorted(ends, key=lambda end: (end[1], end[0]))
            groups.setdefault((role, group.network, start, end), []).append(group)
    return tuple(
        GroupPath(
            role, _path(role, start, end), colours[network], "6 4" if role == "edges" else "", _tip(role, members)
        )
        for (role, network, start, end), members in groups.items()
    )


def _path(role: str, start: tuple[int, int, str], end: tuple[int, int, str]) -> str:
    """Return a line within a box, a bow below a row, or a line from the lower edge of the upper box."""
    if start == end:
        y = start[1] + BOX_HEIGHT - (8 if role == "dp" else 14)
        return f"M{start[0] + 8} {y}H{start[0] + BOX_WIDTH - 8}"
    x1, x2 = start[0] + BOX_WIDTH // 2, end[0] + BOX_WIDTH // 2
    y1, y2 = start[1] + BOX_HEIGHT, end[1] + BOX_HEIGHT
    if y1 != y2:
        return f"M{x1} {y1}L{x2} {end[1]}"
    depth = y1 + (BELOW if role == "dp" else BELOW // 2)
    return f"M{x1} {y1}C{x1} {depth} {x2} {depth} {x2} {y2}"


def _tip(role: str, groups: Sequence[PlanGroup]) -> str:
    slowest = min(groups, key=lambda group: group.rate_bytes_per_s or 0.0)
    transport = f" ({slowest.net_name})" if slowest.net_name else ""
    rate = format_rate(slowest.rate_bytes_per_s)
    return f"{len(groups)} x {role} on network {slowest.network}{transport}, {rate} each; first: {groups[0].name}"
