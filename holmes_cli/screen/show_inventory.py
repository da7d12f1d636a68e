"""An inventory as tables: one per cluster, differences between peers, links, trunks, findings with remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.rail_table import HEADINGS, Row, rail_rows
from holmes_cli.screen.terminal import out, print_out
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Cluster, Finding, Host, Inventory
from holmes_core.records.link import Link, Trunk
from holmes_core.units import format_memory, format_names, format_rate, format_seconds, measured_ago
from prober.differences import Difference, peer_differences
from prober.findings.catalogue import SEVERITIES, when_found
from prober.rule_text import RuleText

_STYLES = {"F": ("refuses launch", "bold red"), "W": ("warning", "yellow"), "I": ("note", "dim")}
_MAX_HOSTS_IN_A_LINE = 6
TABLE_WIDTH = 100


def show_inventory(inventory: Inventory, now_s: float | None = None) -> None:
    """Print clusters, the shared network, differences, links with their age, trunks and findings."""
    for cluster in inventory.clusters:
        out.print(_cluster_table(inventory, cluster))
    rails = rail_rows(inventory.hosts)
    if rails:
        out.print(_rails_table(rails))
    for host in inventory.hosts:
        if not host.reachable:
            out.print(Text(f"{host.name}: not reachable", style="bold red"))
    _show_shared(inventory)
    differences = peer_differences(inventory)
    if differences:
        _show_differences("Peers of a cluster that differ", differences)
    if inventory.links:
        out.print(_links_table(inventory.links, now_s))
    if inventory.trunks:
        title, headings = "Trunks, which all hosts of clusters share", ("between", "each way", "from")
        out.print(_table(title, headings, map(trunk_cells, inventory.trunks)))
    for finding in sorted(inventory.findings, key=lambda finding: "FWI".index(finding.severity)):
        _show_finding(finding)


def show_changes(older: str, differences: Sequence[Difference]) -> None:
    """Print the differences from the inventory `older`."""
    if differences:
        _show_differences(f"Changed since {older}", differences)
    else:
        print_out(f"nothing has changed since {older}")


def _show_differences(title: str, differences: Iterable[Difference]) -> None:
    """Print each differing fact, its values and their hosts."""
    rows = [
        (each.subject, each.fact, "\n".join(f"{value}: {_named(hosts)}" for value, hosts in each.values))
        for each in differences
    ]
    out.print(_table(title, ("where", "fact", "values"), rows))


def _show_shared(inventory: Inventory) -> None:
    if inventory.shared is None:
        return
    netdevs = ", ".join(dict.fromkeys(str(port.netdev) for port in inventory.shared.ports))
    rates = {port.bandwidth_bytes_per_s for port in inventory.shared.ports}
    slowest = None if None in rates else min(rate for rate in rates if rate is not None)
    subnet = inventory.shared.subnet or "routed"
    how = ", through WireGuard" if inventory.encrypts else ""
    print_out(f"shared by all: {subnet} over {netdevs}, {format_rate(slowest)}{how}")


def _cluster_table(inventory: Inventory, cluster: Cluster) -> Table:
    pinned = " (pinned)" if cluster.pinned else ""
    headings = ("host", "GPUs", "RDMA ports", "fabric netdev", "shared netdev", "torch")
    rows = [_host_row(inventory, cluster, inventory.host(name)) for name in cluster.hosts]
    return _table(f"Cluster {cluster.name}{pinned}: {cluster.fabric.kind}", headings, rows)


def _host_row(inventory: Inventory, cluster: Cluster, host: Host) -> tuple[str, ...]:
    fabric = cluster.fabric.port_of(host.name)
    shared = inventory.shared.port_of(host.name) if inventory.shared else None
    return (
        host.name,
        _gpus(host),
        _ports(host),
        f"{fabric.netdev} {format_rate(fabric.bandwidth_bytes_per_s)}" if fabric and fabric.netdev else "not known",
        f"{shared.netdev} {format_rate(shared.bandwidth_bytes_per_s)}" if shared else "none",
        host.software.torch or "none",
    )


def _gpus(host: Host) -> str:
    kinds = Counter((gpu.name, gpu.memory_bytes, gpu.left_out is not None) for gpu in host.gpus)
    listed = [
        f"{count} x {name or 'GPU'} {format_memory(memory)}{', left out' if out else ''}"
        for (name, memory, out), count in kinds.items()
    ]
    return "\n".join(listed) or "none"


def _ports(host: Host) -> str:
    """Return a line per kind, rate and state of ports: `8 x InfiniBand 400 Active`."""
    kinds = Counter(_port_words(nic) for nic in host.nics if nic.kind != "Ethernet")
    return "\n".join(f"{count} x {words}" for words, count in kinds.items()) or "none"


def _port_words(nic: Nic) -> str:
    rate = f" {nic.rate_gbps:g} Gbit/s" if nic.rate_gbps and nic.state in ("Active", None) else ""
    return f"{nic.kind}{rate} {nic.state or 'state not known'}"


def _rails_table(rows: Iterable[Row]) -> Table:
    shown, above = [], ""
    for hosts, *cells in rows:
        shown.append(("" if hosts == above else hosts, *cells))
        above = hosts
    return _table("RDMA ports: rails, and why others are none", HEADINGS, shown, unwrapped=("kind", "rail"))


def _links_table(links: Sequence[Link], now_s: float | None) -> Table:
    rows = [
        (
            f"{link.kind} {link.network}",
            f"{link.hosts[0]} {'->' if link.direction == 'forward' else '<-'} {link.hosts[1]}",
            link_method(link),
            format_rate(link.bandwidth_bytes_per_s.median),
            format_rate(link.bandwidth_bytes_per_s.min),
            format_seconds(link.latency_s.median) if link.latency_s else "not known",
        )
        for link in links
    ]
    age = measured_ago([link.measured_at_s for link in links], now_s)
    return _table(
        f"Measured links{age and f', {age}'}", ("link", "hosts", "method", "median", "least", "latency"), rows
    )


def link_method(link: Link) -> str:
    """Return the method of a link's measurement: TCP streams and tunnel, or the RDMA devices and memory."""
    if link.method != "ib_write_bw":
        return f"{link.method} x{link.streams}" + (", WireGuard" if link.tunnel else "")
    return f"{link.method} {' - '.join(link.devices)}" + (", GPU memory" if link.memory == "gpu" else "")


def _table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], unwrapped: Collection[str] = ()
) -> Table:
    return fitted_table(headings, rows, min(TABLE_WIDTH, out.width), title, unwrapped)


def trunk_cells(trunk: Trunk) -> tuple[str, str, str]:
    """Return the clusters, the rate each way and its source, for the screen and the page alike."""
    source = "hosts.yaml" if trunk.source == "hosts.yaml" else f"measured, {trunk.pairs} pairs of hosts at once"
    ends = " - ".join(trunk.clusters) if len(trunk.clusters) > 1 else f"{trunk.clusters[0]} - all others"
    return ends, format_rate(trunk.bandwidth_bytes_per_s), source


def _show_finding(finding: Finding) -> None:
    word, style = _STYLES[finding.severity]
    out.print(
        Text(f"{word}: {finding.rule} on {_named(finding.hosts)}: ", style=style),
        end="",
        soft_wrap=True,
    )
    print_out(f"{finding.evidence}\n  effect: {finding.effect}\n  do: {finding.remedy}")


def _named(hosts: Sequence[str]) -> str:
    return format_names(hosts, _MAX_HOSTS_IN_A_LINE)


def show_rule(entries: Iterable[RuleText]) -> None:
    """Print every entry of one id."""
    for number, about in enumerate(entries):
        gap = "\n" if number else ""
        print_out(f"{gap}{about.id} ({about.severity}, {SEVERITIES[about.severity]})")
        lines = {"found when": when_found(about), "effect": about.effect, "do": about.remedy, "source": about.source}
        for label, text in lines.items():
            print_out(f"  {label}: {text}")
