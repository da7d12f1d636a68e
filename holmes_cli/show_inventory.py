"""An inventory as tables: hosts by cluster, then findings with what to do."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from holmes_cli.terminal import out
from holmes_core.inventory import Cluster, Finding, Host, Inventory
from holmes_core.units import format_memory, format_rate

_SEVERITIES = {"F": ("refuses launch", "bold red"), "W": ("warning", "yellow"), "I": ("note", "dim")}


def show_inventory(inventory: Inventory) -> None:
    """Print hosts, the shared network and the findings."""
    out.print(_hosts_table(inventory))
    if inventory.shared:
        netdevs = ", ".join(dict.fromkeys(str(port.netdev) for port in inventory.shared.ports))
        rates = {port.bandwidth_bytes_per_s for port in inventory.shared.ports}
        slowest = None if None in rates else min(rate for rate in rates if rate is not None)
        subnet = inventory.shared.subnet or "routed"
        out.print(f"shared by all: {subnet} over {netdevs}, {format_rate(slowest)}", markup=False, soft_wrap=True)
    for finding in inventory.findings:
        _show_finding(finding)


def _hosts_table(inventory: Inventory) -> Table:
    table = Table(title="Hosts", title_justify="left")
    for heading in ("cluster", "host", "GPUs", "RDMA", "fabric netdev", "shared netdev", "torch"):
        table.add_column(heading, overflow="fold")
    for cluster in inventory.clusters:
        for name in cluster.hosts:
            table.add_row(*_host_row(inventory, cluster, inventory.host(name)))
        table.add_section()
    for host in inventory.hosts:
        if not host.reachable:
            table.add_row(Text("-"), host.name, Text("not reachable", style="bold red"), "", "", "", "")
    return table


def _host_row(inventory: Inventory, cluster: Cluster, host: Host) -> tuple[str, ...]:
    fabric = cluster.fabric.port_of(host.name)
    shared = inventory.shared.port_of(host.name) if inventory.shared else None
    rdma = "none"
    if fabric and fabric.hcas:
        rate = format_rate(fabric.rdma_bandwidth_bytes_per_s)
        rdma = f"{cluster.fabric.kind} {rate}: {', '.join(fabric.hcas)}"
    return (
        f"{cluster.name}{' (pinned)' if cluster.pinned else ''}",
        host.name,
        _gpus(host),
        rdma,
        f"{fabric.netdev} {format_rate(fabric.bandwidth_bytes_per_s)}" if fabric and fabric.netdev else "unknown",
        f"{shared.netdev} {format_rate(shared.bandwidth_bytes_per_s)}" if shared else "none",
        host.software.torch or "none",
    )


def _gpus(host: Host) -> str:
    kinds = Counter((gpu.name, gpu.memory_bytes) for gpu in host.gpus)
    return ", ".join(f"{count} x {name} {format_memory(memory)}" for (name, memory), count in kinds.items()) or "none"


def _show_finding(finding: Finding) -> None:
    word, style = _SEVERITIES[finding.severity]
    out.print(Text(f"{word}: {finding.rule} on {', '.join(finding.hosts)}: ", style=style), end="", soft_wrap=True)
    out.print(f"{finding.evidence}\n  effect: {finding.effect}\n  do: {finding.remedy}", markup=False, soft_wrap=True)
