"""One self-contained page of an inventory: findings first, then hosts and networks as a picture, then tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holmes_cli.pages.picture_box import Box
from holmes_cli.pages.render import render
from holmes_cli.screen.rail_table import rail_rows
from holmes_cli.screen.show_inventory import trunk_cells
from holmes_core.records.inventory import Cluster, Finding, Host, Inventory, Network, Severity
from holmes_core.records.link import Link
from holmes_core.units import format_memory, format_rate, format_seconds, measured_ago

HOST_WIDTH, HOST_HEIGHT, GAP = 150, 78, 14
HOSTS_A_ROW = 7
HEADER, FOOTER = 34, 34
NIC_SIZE = 12
FABRIC_COLOURS = {
    "InfiniBand": "#1a7f37",
    "RoCE": "#0969da",
    "EFA": "#bc4c00",
    "Ethernet": "#6e7781",
    "loopback": "#6e7781",
}
NIC_COLOURS = {True: "#2da44e", False: "#cf222e", None: "#d4a72c"}
SHARED_COLOUR = "#6e7781"
HOST_STROKES: dict[Severity | None, str] = {"F": "#cf222e", "W": "#d4a72c", None: "#57606a"}
MAX_ALONE = 32  # hosts drawn one by one; of more, equal ones share a box
MAX_NAMED = 8  # hosts of a finding that are named at once
MAX_ROWS = 40  # of a table that is open at once
LABEL_LENGTH = 20


@dataclass(frozen=True)
class Line:
    """A straight line with a label as its tip, in pixels."""

    role: str
    x1: int
    y1: int
    x2: int
    y2: int
    stroke: str
    thickness: int
    label: str


@dataclass(frozen=True)
class Text:
    """A label of its own, in pixels."""

    x: int
    y: int
    fill: str
    label: str


@dataclass
class Picture:
    """The drawing and its size in pixels; `faults` are the findings of each faulty host."""

    faults: Mapping[str, Sequence[Finding]]
    width: int = 0
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


def inventory_page(inventory: Inventory, now_s: float | None = None) -> str:
    """Return the page as HTML, with the age of links at `now_s`; it loads nothing from the network."""
    return render(
        "inventory.html.j2",
        summary=_summary(inventory),
        picture=draw_inventory(inventory),
        most_named=MAX_NAMED,
        most_rows=MAX_ROWS,
        hosts=[_host_row(cluster, inventory.host(name)) for cluster in inventory.clusters for name in cluster.hosts],
        rails=rail_rows(inventory.hosts),
        links_age=measured_ago([link.measured_at_s for link in inventory.links], now_s),
        links=[_link_row(link) for link in inventory.links],
        trunks=[trunk_cells(trunk) for trunk in inventory.trunks],
        findings=[finding for finding in inventory.findings if finding.severity != "I"],
        notes=[finding for finding in inventory.findings if finding.severity == "I"],
    )


def draw_inventory(inventory: Inventory) -> Picture:
    """Draw clusters below one another, each with hosts and fabric; a bar at the left is the shared network."""
    picture = Picture(faults_by_host(inventory))
    y = GAP
    anchors = []
    for cluster in inventory.clusters:
        height = _draw_cluster(picture, inventory, cluster, y)
        anchors.append((cluster, y + height // 2))
        y += height + GAP
    if lost := [host for host in inventory.hosts if not any(host.name in one.hosts for one in inventory.clusters)]:
        y += _draw_lost(picture, inventory, lost, y) + GAP
    if inventory.shared and len(anchors) > 1:
        _draw_shared(picture, inventory, inventory.shared, anchors)
    picture.width = max((box.x + box.width for box in picture.boxes), default=200) + GAP
    picture.height = y + 2 * GAP
    return picture


def _draw_cluster(picture: Picture, inventory: Inventory, cluster: Cluster, top: int) -> int:
    """Draw one cluster from `top` down; return its height."""
    left = 4 * GAP
    groups = _equal_hosts(picture, inventory, [inventory.host(name) for name in cluster.hosts])
    columns = min(HOSTS_A_ROW, len(groups))
    rows = -(-len(groups) // HOSTS_A_ROW)
    width = max(columns * (HOST_WIDTH + GAP) + GAP, 420)
    height = HEADER + rows * (HOST_HEIGHT + FOOTER)
    colour = FABRIC_COLOURS[cluster.fabric.kind]
    title = f"{cluster.name}: {len(cluster.hosts)} hosts, {cluster.fabric.kind}{_fabric_rate(cluster.fabric)}"
    picture.boxes.append(Box("cluster", left, top, width, height, "#f6f8fa", colour, title, title))
    for index, group in enumerate(groups):
        row, column = divmod(index, HOSTS_A_ROW)
        x, y = left + GAP + column * (HOST_WIDTH + GAP), top + HEADER + row * (HOST_HEIGHT + FOOTER)
        _draw_hosts(picture, group, x, y)
        bus = y + HOST_HEIGHT + FOOTER // 2
        tip = f"{_label(group)} on {cluster.fabric.kind}"
        drop = (x + HOST_WIDTH // 2, y + HOST_HEIGHT, x + HOST_WIDTH // 2, bus)
        picture.lines.append(Line("port", *drop, colour, 2, tip))
        if column == 0:
            end = x + min(HOSTS_A_ROW, len(groups) - index) * (HOST_WIDTH + GAP) - GAP
            picture.lines.append(Line("fabric", x, bus, end, bus, colour, 5, title))
            if row == 0:
                picture.texts.append(Text(x, bus + 16, colour, _measured(inventory, cluster.fabric)))
    return height


def _draw_lost(picture: Picture, inventory: Inventory, hosts: list[Host], top: int) -> int:
    """Draw the hosts of no cluster, which were not reached or have no shared network; return the height they take."""
    groups = _equal_hosts(picture, inventory, hosts)
    rows = -(-len(groups) // HOSTS_A_ROW)
    left, width = 4 * GAP, max(min(HOSTS_A_ROW, len(groups)) * (HOST_WIDTH + GAP) + GAP, 420)
    height = HEADER + rows * (HOST_HEIGHT + GAP)
    title = f"in no cluster: {len(hosts)} host{'s' * (len(hosts) > 1)}"
    picture.boxes.append(Box("lost", left, top, width, height, "#fff8f8", HOST_STROKES["F"], title, title))
    for index, group in enumerate(groups):
        row, column = divmod(index, HOSTS_A_ROW)
        x, y = left + GAP + column * (HOST_WIDTH + GAP), top + HEADER + row * (HOST_HEIGHT + GAP)
        _draw_hosts(picture, group, x, y)
    return height


def _equal_hosts(picture: Picture, inventory: Inventory, hosts: Sequence[Host]) -> list[tuple[Host, ...]]:
    """Group hosts with equal GPUs, ports and findings, faulty ones first; in a small inventory each host stays
    alone."""
    if len(inventory.hosts) <= MAX_ALONE:
        return [(host,) for host in hosts]
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in hosts:
        ports = tuple((nic.kind, nic.rate_gbps, nic.usable_by_nccl_ib) for nic in host.nics)
        rules = tuple(sorted({finding.rule for finding in picture.faults.get(host.name, ())}))
        groups.setdefault((_gpus(host), ports, rules), []).append(host)
    return sorted(map(tuple, groups.values()), key=lambda group: -len(picture.faults.get(group[0].name, ())))


def faults_by_host(inventory: Inventory) -> dict[str, list[Finding]]:
    """Return the findings that refuse a launch or warn, by host."""
    faults: dict[str, list[Finding]] = {}
    for finding in inventory.findings:
        for host in finding.hosts if finding.severity != "I" else ():
            faults.setdefault(host, []).append(finding)
    return faults


def _label(group: Sequence[Host]) -> str:
    more = f" +{len(group) - 1}" if len(group) > 1 else ""
    name, room = group[0].name, LABEL_LENGTH - len(more)
    return (name if len(name) <= room else f"{name[: room - 1]}\u2026") + more


def _draw_hosts(picture: Picture, group: Sequence[Host], x: int, y: int) -> None:
    host, faults = group[0], picture.faults.get(group[0].name, ())
    worst = min((fault.severity for fault in faults), key="FW".index, default=None)
    names = ", ".join(each.name for each in group)
    tip = "; ".join([_tip(host), *([f"equal: {names}"] if len(group) > 1 else []), *(fault.rule for fault in faults)])
    role = "host" if worst is None else f"host {worst}"
    picture.boxes.append(Box(role, x, y, HOST_WIDTH, HOST_HEIGHT, "#ffffff", HOST_STROKES[worst], _label(group), tip))
    picture.texts.append(Text(x + 8, y + 36, "#57606a", _gpus(host)[:22]))
    for index, nic in enumerate(host.nics[:18]):
        row, column = divmod(index, 9)
        square = (x + 8 + column * (NIC_SIZE + 3), y + 45 + row * (NIC_SIZE + 3), NIC_SIZE, NIC_SIZE)
        rail = "" if nic.rail is None else f", rail {nic.rail}"
        tip = f"{nic.device}:{nic.port} {nic.kind} {nic.rate_gbps or 0:g} Gbit/s {nic.state or 'state not known'}{rail}"
        picture.boxes.append(Box("nic", *square, NIC_COLOURS[nic.usable_by_nccl_ib], "#ffffff", "", tip))


def _draw_shared(picture: Picture, inventory: Inventory, shared: Network, anchors: list[tuple[Cluster, int]]) -> None:
    x = 2 * GAP
    label = f"shared by all: {shared.subnet or 'routed'}{_fabric_rate(shared)}"
    below = max(box.y + box.height for box in picture.boxes) + GAP + 4
    picture.texts.append(Text(x, below, SHARED_COLOUR, f"{label}; {_measured(inventory, shared)}"))
    picture.lines.append(Line("shared", x, anchors[0][1], x, anchors[-1][1], SHARED_COLOUR, 5, label))
    for cluster, y in anchors:
        picture.lines.append(Line("uplink", x, y, 4 * GAP, y, SHARED_COLOUR, 2, f"{cluster.name}: {label}"))


def _measured(inventory: Inventory, network: Network) -> str:
    """Return the slowest pair and direction on `network` outside tunnels, each by its best measured median."""
    best: dict[tuple[str, ...], float] = {}
    for link in inventory.links:
        if link.network == network.name and not link.tunnel:
            key = (*link.hosts, link.direction)
            best[key] = max(best.get(key, 0.0), link.bandwidth_bytes_per_s.median)
    return f"measured {format_rate(min(best.values()))}" if best else "not measured"


def _fabric_rate(network: Network) -> str:
    rates = {port.rdma_bandwidth_bytes_per_s or port.bandwidth_bytes_per_s for port in network.ports}
    known = [rate for rate in rates if rate is not None]
    return f", {format_rate(min(known))} a host" if known else ""


def _tip(host: Host) -> str:
    software = host.software
    return f"{host.name}: {_gpus(host)}; Python {software.python or 'not known'}, torch {software.torch or 'not known'}"


def _gpus(host: Host) -> str:
    kinds = Counter(gpu.name or "GPU" for gpu in host.gpus)
    return ", ".join(f"{count} x {name.removeprefix('NVIDIA ')}" for name, count in kinds.items()) or "no GPU"


def _host_row(cluster: Cluster, host: Host) -> tuple[str, ...]:
    memory = {gpu.memory_bytes for gpu in host.gpus}
    gpus = _gpus(host) + "".join(f", {format_memory(size)}" for size in memory if size)
    nics = [f"{nic.device}:{nic.port} {nic.kind} {nic.rate_gbps or 0:g} {nic.state or '?'}" for nic in host.nics]
    netdevs = [f"{n.name} {' '.join(n.addresses)} {format_rate(n.speed_bytes_per_s)}" for n in host.netdevs]
    return cluster.name, host.name, gpus, "; ".join(nics), "; ".join(netdevs)


def _link_row(link: Link) -> tuple[str, ...]:
    arrow = "->" if link.direction == "forward" else "<-"
    latency = format_seconds(link.latency_s.median) if link.latency_s else "not measured"
    return (
        f"{link.kind} {link.network}",
        f"{link.hosts[0]} {arrow} {link.hosts[1]} ({', '.join(link.devices)})",
        f"{link.method}, {link.streams} streams{', GPU memory' if link.memory == 'gpu' else ''}"
        f"{', WireGuard' if link.tunnel else ''}",
        f"{format_rate(link.bandwidth_bytes_per_s.median)} (least {format_rate(link.bandwidth_bytes_per_s.min)})",
        latency,
    )


def _summary(inventory: Inventory) -> str:
    reachable = sum(host.reachable for host in inventory.hosts)
    gpus = sum(len(host.for_job().gpus) for host in inventory.hosts)
    severities = Counter(finding.severity for finding in inventory.findings)
    return (
        f"{reachable} of {len(inventory.hosts)} hosts reached, {gpus} GPUs, {len(inventory.clusters)} clusters; "
        f"{severities['F']} findings refuse launch, {severities['W']} warn, {severities['I']} inform."
    )
