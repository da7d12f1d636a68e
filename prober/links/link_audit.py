"""Findings on measured links that are slower than their ports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.link import TOOL_CEILING_BYTES_PER_S, Link, best_links
from holmes_core.units import bytes_per_s_from_gbps, format_rate
from prober.rule_text import RuleText
from prober.rules.reported_rules import GPU_RDMA_LOW, RDMA_LOW, TCP_LOW

TCP_SHARE = 0.70
RDMA_SHARE = 0.90
GPU_SHARE = 0.80  # of the rate from host memory


def audit_links(inventory: Inventory, links: Sequence[Link]) -> tuple[Finding, ...]:
    """Return findings on links below the rates of their ports or, from GPU memory, below the rate of host memory.

    Unknown rates give no finding.
    """
    return (*_tcp_findings(inventory, links), *_rdma_findings(inventory, links), *_gpu_findings(links))


def _tcp_findings(inventory: Inventory, links: Iterable[Link]) -> Iterator[Finding]:
    """Yield each direction below 70 % of the slower port's rate at its best number of streams."""
    for link in best_links(link for link in links if link.method != "ib_write_bw" and not link.tunnel):
        rate = _slower_end(inventory, link, _netdev_rate)
        measured = link.bandwidth_bytes_per_s.median
        if rate is not None and measured < TCP_SHARE * min(rate, TOOL_CEILING_BYTES_PER_S[link.method]):
            yield _finding(TCP_LOW, link, rate)


def _rdma_findings(inventory: Inventory, links: Iterable[Link]) -> Iterator[Finding]:
    """Yield each direction below 90 % of the slower HCA's rate."""
    for link in best_links(link for link in links if link.method == "ib_write_bw" and link.memory == "host"):
        rate = _slower_end(inventory, link, _hca_rate)
        if rate is not None and link.bandwidth_bytes_per_s.median < RDMA_SHARE * rate:
            yield _finding(RDMA_LOW, link, rate)


def _gpu_findings(links: Sequence[Link]) -> Iterator[Finding]:
    """Yield each direction in which GPU memory stays below 80 % of the rate of host memory."""
    rdma = [link for link in links if link.method == "ib_write_bw"]
    from_host = {link.way[:-1]: link.bandwidth_bytes_per_s.median for link in rdma if link.memory == "host"}
    for link in rdma:
        rate = from_host.get(link.way[:-1])
        if link.memory == "gpu" and rate and link.bandwidth_bytes_per_s.median < GPU_SHARE * rate:
            yield _finding(GPU_RDMA_LOW, link, rate)


def _slower_end(inventory: Inventory, link: Link, rate_of: Callable[[Host, str], float | None]) -> float | None:
    """Return the bytes per second of the slower device, or None if that of one is not known."""
    rates = [rate_of(inventory.host(name), device) for name, device in zip(link.hosts, link.devices, strict=True)]
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None


def _netdev_rate(host: Host, name: str) -> float | None:
    return next((netdev.speed_bytes_per_s for netdev in host.netdevs if netdev.name == name), None)


def _hca_rate(host: Host, hca: str) -> float | None:
    gbps = next((nic.rate_gbps for nic in host.nics if nic.hca == hca), None)
    return None if gbps is None else bytes_per_s_from_gbps(gbps)


def _finding(about: RuleText, link: Link, rate_bytes_per_s: float) -> Finding:
    sender, receiver = link.hosts if link.direction == "forward" else link.hosts[::-1]
    measured = format_rate(link.bandwidth_bytes_per_s.median)
    share = f"{link.bandwidth_bytes_per_s.median / rate_bytes_per_s:.0%} of {format_rate(rate_bytes_per_s)}"
    way = f"{sender} to {receiver} on {link.network}"
    evidence = f"{way}: {measured}, {share} ({link.method}, {_how(link)})"
    return about.finding(link.hosts, evidence)


def _how(link: Link) -> str:
    """Return the streams of TCP, or the rails and memory of RDMA."""
    if link.method != "ib_write_bw":
        return f"{link.streams} streams"
    sender, receiver = link.devices if link.direction == "forward" else link.devices[::-1]
    return f"{sender} to {receiver}" + (", GPU memory" if link.memory == "gpu" else "")
