"""One self-contained page of an inventory: clusters, hosts, NICs and networks as a picture, then tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holmes_cli.pages.picture_box import Box
from holmes_cli.pages.render import render
from holmes_cli.screen.rail_table import rail_rows
from holmes_cli.screen.show_inventory import trunk_cells
from holmes_core.records.inventory import Cluster, Host, Inventory, Network
from holmes_core.records.link import Link
from holmes_core.units import format_memory, format_rate, format_seconds

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
    """What is drawn, and how large the drawing is, in pixels."""

    width: int = 0
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


def inventory_page(inventory: Inventory) -> str:
    """The page as HTML; needs nothing from the network to be shown."""
    return render(
        "inventory.html.j2",
        summary=_summary(inventory),
        picture=draw_inventory(inventory),
        hosts=[_host_row(cluster, inventory.host(name)) for cluster in inventory.clusters for name in cluster.hosts],
        rails=rail_rows(inventory.hosts),
        links=[_link_row(link) for link in inventory.links],
        trunks=[trunk_cells(trunk) for trunk in inventory.trunks],
        findings=inventory.findings,
    )


def draw_inventory(inventory: Inventory) -> Picture:
    """Clusters below one another, each with its hosts, its fabric as a bar; the shared network as a bar at the left."""
    picture = Picture()
    y = GAP
    anchors = []
    for cluster in inventory.clusters:
        height = _draw_cluster(picture, inventory, cluster, y)
        anchors.append((cluster, y + height // 2))
        y += height + GAP
    if inventory.shared and len(anchors) > 1:
        _draw_shared(picture, inventory, inventory.shared, anchors)
    picture.width = max((box.x + box.width for box in picture.boxes), default=200) + GAP
    picture.height = y + 2 * GAP
    return picture


def _draw_cluster(picture: Picture, inventory: Inventory, cluster: Cluster, top: int) -> int:
    """Draw one cluster from `top` down; its height."""
    left = 4 * GAP
    columns = min(HOSTS_A_ROW, len(cluster.hosts))
    rows = -(-len(cluster.hosts) // HOSTS_A_ROW)
    width = max(columns * (HOST_WIDTH + GAP) + GAP, 420)
    height = HEADER + rows * (HOST_HEIGHT + FOOTER)
    colour = FABRIC_COLOURS[cluster.fabric.kind]
    title = f"{cluster.name}: {len(cluster.hosts)} hosts, {cluster.fabric.kind}{_fabric_rate(cluster.fabric)}"
    picture.boxes.append(Box("cluster", left, top, width, height, "#f6f8fa", colour, title, title))
    for index, name in enumerate(cluster.hosts):
        row, column = divmod(index, HOSTS_A_ROW)
        x, y = left + GAP + column * (HOST_WIDTH + GAP), top + HEADER + row * (HOST_HEIGHT + FOOTER)
        _draw_host(picture, inventory.host(name), x, y)
        bus = y + HOST_HEIGHT + FOOTER // 2
        tip = f"{name} on {cluster.fabric.kind}"
        drop = (x + HOST_WIDTH // 2, y + HOST_HEIGHT, x + HOST_WIDTH // 2, bus)
        picture.lines.append(Line("port", *drop, colour, 2, tip))
        if column == 0:
            end = x + min(HOSTS_A_ROW, len(cluster.hosts) - index) * (HOST_WIDTH + GAP) - GAP
            picture.lines.append(Line("fabric", x, bus, end, bus, colour, 5, title))
            if row == 0:
                picture.texts.append(Text(x, bus + 16, colour, _measured(inventory, cluster.fabric)))
    return height


def _draw_host(picture: Picture, host: Host, x: int, y: int) -> None:
    picture.boxes.append(Box("host", x, y, HOST_WIDTH, HOST_HEIGHT, "#ffffff", "#57606a", host.name, _tip(host)))
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
    """The best median that the link test saw on `network`, of each pair and direction the slowest."""
    best: dict[tuple[str, ...], float] = {}
    for link in inventory.links:
        if link.network == network.name:
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
        f"{link.method}, {link.streams} streams" + (", GPU memory" if link.memory == "gpu" else ""),
        f"{format_rate(link.bandwidth_bytes_per_s.median)} (least {format_rate(link.bandwidth_bytes_per_s.min)})",
        latency,
    )


def _summary(inventory: Inventory) -> str:
    reachable = sum(host.reachable for host in inventory.hosts)
    gpus = sum(len(host.gpus) for host in inventory.hosts)
    severities = Counter(finding.severity for finding in inventory.findings)
    return (
        f"{reachable} of {len(inventory.hosts)} hosts reached, {gpus} GPUs, {len(inventory.clusters)} clusters; "
        f"{severities['F']} findings refuse launch, {severities['W']} warn, {severities['I']} inform."
    )
