"""Measured connections between clusters, and between hosts of one: rate of a host, latency, streams, trunk.

NICs limit a link whose rate comes near theirs; the ports then give the rate. A rate clearly below is the limit of the
path between them. One clearly above shows that the port's driver reports a wrong rate. A pair has the slower of its two
directions, a host the best of its pairs, and a host without a pair what the slowest host has. Hosts at nearly the same
rate have the lower middle one, so that noise makes no kinds of hosts. Two clusters without a measurement have the worst
that was measured between any two. The limit of encryption follows from the rates in a tunnel and in the clear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, log
from operator import itemgetter
from statistics import median_low

from holmes_core.measured_networks import Clusters, relayed_pairs
from holmes_core.records.inventory import Inventory, Network, NetworkPort
from holmes_core.records.link import TOOL_CEILING_BYTES_PER_S, Link, Spread, Trunk
from holmes_core.records.plan import TUNNEL_NETDEV
from holmes_core.units import bytes_per_s_from_gbps
from planner.cost.collectives import tcp_payload_share, tunnel_payload_share
from planner.cost.measured_link import NOT_MEASURED, PORTS_ALONE, HostRate, MeasuredLink, cluster_pairs

NEAR_PORTS = 0.9  # of the slower port's rate and more: the ports are the limit
ABOVE_PORTS = 1.1  # of it and more: the port's rate is wrong, as with virtual NICs
ALIKE = 1.25  # times the rate of another: hosts whose rates are nearer than about that count as equally fast
ENOUGH = 0.95  # of the best rate: more streams than it takes to get this only cost memory and processor

PathTests = Sequence[Link]
"""One pair of hosts and direction, with different numbers of streams."""


PortRate = Callable[[Link, int], float | None]
"""A function that returns the payload bytes/s of the port at one end of a link; None if not known."""


def as_counted(inventory: Inventory, cautious: bool) -> Inventory:
    """Return the inventory with links at the rate that plans count: that of their slowest sample if `cautious`."""
    if not cautious:
        return inventory

    def slowest(link: Link) -> Link:
        least = link.bandwidth_bytes_per_s.min
        return link.model_copy(update={"bandwidth_bytes_per_s": Spread(min=least, median=least)})

    return inventory.model_copy(update={"links": tuple(map(slowest, inventory.links))})


def connections_in_tunnel(inventory: Inventory, port_rate: PortRate, part: float) -> Mapping[Clusters, MeasuredLink]:
    """Return the connections, with those between clusters as in the tunnel.

    Pairs that were measured only in a tunnel, such as hosts behind NAT, count as measured.
    """
    clear = {frozenset(link.clusters) for link in inventory.links if not link.tunnel}
    links: defaultdict[Clusters, list[Link]] = defaultdict(list)
    for link in inventory.links:
        if frozenset(link.clusters) not in clear:
            links[frozenset(link.clusters)].append(link)
    found = through_tunnel(inventory, read_connections(inventory, port_rate, part))
    return {**found, **{ends: _connection(ways, port_rate, part, None) for ends, ways in links.items()}}


def read_connections(inventory: Inventory, port_rate: PortRate, part: float) -> Mapping[Clusters, MeasuredLink]:
    """Return the connections in the clear, their rates times `part`, the share that a calibrating run got."""
    links: defaultdict[Clusters, list[Link]] = defaultdict(list)
    for link in (link for link in inventory.links if not link.tunnel):
        links[frozenset(link.clusters)].append(link)
    rates = {frozenset(trunk.clusters): part * _payload_bytes_per_s(trunk) for trunk in inventory.trunks}
    trunks = {ends: rate for ends, rate in rates.items() if len(ends) > 1}
    found = {
        clusters: _connection(links[clusters], port_rate, part, trunks.get(clusters))
        for clusters in dict.fromkeys([*links, *trunks])
    }
    between = _slower_directions(link for ends, ways in links.items() if len(ends) > 1 for link in _sockets(ways))
    if between:
        unmeasured = (pair for pair in cluster_pairs(inventory) if pair not in found)
        found.update(dict.fromkeys(unmeasured, _worst(inventory, list(between.values()), port_rate, part)))
    for pair in cluster_pairs(inventory) if len(rates) > len(trunks) else ():
        uplinks = {name: rates[alone] for name in sorted(pair) if (alone := frozenset({name})) in rates}
        found[pair] = replace(found.get(pair, NOT_MEASURED), uplinks=uplinks)
    return found


def slowest_between(inventory: Inventory) -> float | None:
    """Return the least bytes/s measured between hosts of two clusters; None if nothing was measured."""
    links = (link for link in inventory.links if not link.tunnel and len(set(link.clusters)) > 1)
    return min(map(_rate, _slower_directions(_sockets(links)).values()), default=None)


def tunnel_network(inventory: Inventory, carrier: Network) -> Network:
    """Return the tunnel in the network `carrier`: each port has the line rate at which as much payload passes.

    It is at most a host's limit of encryption, if that is known.
    """
    mtus, limits, plain = _mtus(inventory), encryption_limits(inventory), tcp_payload_share(None)

    def rate(port: NetworkPort) -> float | None:
        line = port.bandwidth_bytes_per_s
        payload = None if line is None else line * tunnel_payload_share(mtus.get((port.host, port.netdev)))
        return min((each / plain for each in (payload, limits.get(port.host)) if each is not None), default=None)

    ports = (
        port.model_copy(update={"netdev": TUNNEL_NETDEV, "bandwidth_bytes_per_s": rate(port)}) for port in carrier.ports
    )
    return carrier.model_copy(update={"ports": tuple(ports)})


def through_tunnel(
    inventory: Inventory, connections: Mapping[Clusters, MeasuredLink]
) -> Mapping[Clusters, MeasuredLink]:
    """Return the connections, with rates between clusters reduced to a tunnel's payload; inside they stay the same."""
    mtus, ports = _mtus(inventory), inventory.shared.ports if inventory.shared is not None else ()
    mtu = min((mtu for port in ports if (mtu := mtus.get((port.host, port.netdev))) is not None), default=None)
    share, limits = _tunnel_share(mtu), encryption_limits(inventory)
    latencies: defaultdict[Clusters, list[float]] = defaultdict(list)
    for link in inventory.links:
        if link.tunnel and link.latency_s is not None:
            latencies[frozenset(link.clusters)].append(link.latency_s.median)

    def tunnelled(clusters: Clusters, connection: MeasuredLink) -> MeasuredLink:
        trunk = connection.trunk_bytes_per_s
        names = [host for cluster in inventory.clusters if cluster.name in clusters for host in cluster.hosts]
        of_hosts = [limits.get(host, inf) for host in names] or [inf]

        def reduced(rate: HostRate, limit: float) -> HostRate:
            return rate if rate.bytes_per_s is None else rate._replace(bytes_per_s=min(rate.bytes_per_s * share, limit))

        # A raised rate is every host's, whatever its port says; under others each port has its own limit.
        return replace(
            connection,
            median=reduced(connection.median, min(of_hosts) if connection.median.raised else max(of_hosts)),
            hosts={host: reduced(rate, limits.get(host, inf)) for host, rate in connection.hosts.items()},
            others=reduced(connection.others, min(of_hosts)),
            latency_s=max(latencies[clusters], default=connection.latency_s),
            trunk_bytes_per_s=trunk and trunk * share,
            uplinks={name: rate * share for name, rate in connection.uplinks.items()},
        )

    return {key: tunnelled(key, each) if len(key) > 1 else each for key, each in connections.items()}


def encryption_limits(inventory: Inventory) -> Mapping[str, float]:
    """Return, by host, the bytes/s of payload that it encrypts each way at most, for hosts with a known limit.

    A tried host has the least rate measured with it, any other the least of all; neither exceeds hosts.yaml.
    """
    tried = {host for link in inventory.links if link.tunnel for host in link.hosts}
    measured: dict[str, float] = {}
    for way in limited_by_encryption(inventory):
        for host in way[0].hosts:
            measured[host] = min(_rate(way), measured.get(host, inf))
    gbps = inventory.security.tunnel_gbps
    stated, least = inf if gbps is None else bytes_per_s_from_gbps(gbps), min(measured.values(), default=inf)
    names = (host.name for host in inventory.hosts)
    limits = {name: min(stated, measured.get(name, inf if name in tried else least)) for name in names}
    return {name: limit for name, limit in limits.items() if limit < inf}


def limited_by_encryption(inventory: Inventory) -> list[PathTests]:
    """Return the paths in tunnels that passed clearly less than the same path in the clear had room for."""
    mtus = _mtus(inventory)
    between = [link for link in inventory.links if link.kind == "between" and link.method != "ib_write_bw"]
    clear = {_ends(way): _rate(way) for way in _ways(link for link in between if not link.tunnel)}

    def room(way: PathTests) -> float:
        sizes = [mtus.get(end) for end in zip(way[0].hosts, way[0].devices, strict=True)]
        return clear[_ends(way)] * _tunnel_share(min((mtu for mtu in sizes if mtu is not None), default=None))

    known = (way for way in _ways(link for link in between if link.tunnel) if _ends(way) in clear)
    return [way for way in known if _rate(way) < NEAR_PORTS * room(way)]


def _ends(way: PathTests) -> tuple[object, ...]:
    """Return the ends and the direction, the same in a tunnel or not."""
    return way[0].network, way[0].hosts, way[0].devices, way[0].direction


def _tunnel_share(mtu: int | None) -> float:
    """Return the payload in a tunnel as a share of the payload outside of it."""
    return tunnel_payload_share(mtu) / tcp_payload_share(mtu)


def _mtus(inventory: Inventory) -> dict[tuple[str, str | None], int | None]:
    """Return the MTUs by host and netdev."""
    return {(host.name, netdev.name): netdev.mtu for host in inventory.hosts for netdev in host.netdevs}


def _payload_bytes_per_s(trunk: Trunk) -> float:
    """Return the payload rate: a measured rate is payload, a rate in hosts.yaml is the line's."""
    return trunk.bandwidth_bytes_per_s * (tcp_payload_share(None) if trunk.source == "hosts.yaml" else 1.0)


def _worst(inventory: Inventory, ways: Sequence[PathTests], port_rate: PortRate, part: float) -> MeasuredLink:
    """Return the worst of what was measured between any two clusters; trunks that hosts.yaml states are their own."""
    slowest = min(ways, key=_rate)
    rate, kind = _rate_and_kind(slowest, port_rate)
    ports = _ports_rate(slowest, port_rate)
    worst = HostRate(part * (ports if kind == "ports" and ports is not None else rate), kind == "raised")
    latencies = [link.latency_s.median for way in ways for link in way if link.latency_s is not None]
    measured = [trunk for trunk in inventory.trunks if trunk.source == "measured" and len(trunk.clusters) > 1]
    trunks = [part * trunk.bandwidth_bytes_per_s for trunk in measured]
    return MeasuredLink(
        median=worst,
        others=worst,
        streams=_fewest_streams(slowest),
        latency_s=max(latencies, default=0.0),
        trunk_bytes_per_s=min(trunks, default=None),
    )


def _sockets(links: Iterable[Link]) -> Iterator[Link]:
    return (link for link in links if link.method != "ib_write_bw")


def _connection(links: Sequence[Link], port_rate: PortRate, part: float, trunk: float | None) -> MeasuredLink:
    latencies = [link.latency_s.median for link in links if link.latency_s is not None]
    rdma = [link for link in links if link.method == "ib_write_bw"]
    pairs = _slower_directions(_sockets(links))
    rates = {hosts: _rate_and_kind(way, port_rate) for hosts, way in pairs.items()}
    shares = [_rate(way) / rate for way in _ways(rdma) if (rate := _ports_rate(way, port_rate))]
    share = median_low(shares) if shares else 1.0
    return MeasuredLink(
        median=_host_rate(median_low(rates.values()), part) if rates else PORTS_ALONE,
        hosts=(hosts := _by_host(rates, part)),
        others=next(iter(hosts.values()), PORTS_ALONE),
        rdma_share=share if share < NEAR_PORTS else 1.0,
        streams=median_low(map(_fewest_streams, pairs.values())) if pairs else 1,
        latency_s=max(latencies, default=0.0),
        trunk_bytes_per_s=trunk,
    )


def _ways(links: Iterable[Link]) -> list[PathTests]:
    ways: defaultdict[object, list[Link]] = defaultdict(list)
    for link in links:
        ways[link.way].append(link)
    return list(ways.values())


def _rate(way: PathTests) -> float:
    """Return the bytes/s at the best number of streams."""
    return max(link.bandwidth_bytes_per_s.median for link in way)


def _ports_rate(way: PathTests, port_rate: PortRate) -> float | None:
    """Return bytes/s of the slower port with a known rate; None if neither is known."""
    rates = (port_rate(way[0], end) for end in (0, 1))
    return min((rate for rate in rates if rate is not None), default=None)


def _slower_directions(links: Iterable[Link]) -> dict[tuple[str, str], PathTests]:
    """Return the slower direction of each pair of hosts."""
    pairs: defaultdict[tuple[str, str], list[PathTests]] = defaultdict(list)
    for way in _ways(links):
        pairs[way[0].hosts].append(way)
    return {hosts: min(ways, key=_rate) for hosts, ways in pairs.items()}


def _host_rate(found: tuple[float, str], part: float) -> HostRate:
    """Return the rate of bytes/s of that kind, see `_rate_and_kind`."""
    rate, kind = found
    return PORTS_ALONE if kind == "ports" else HostRate(part * rate, kind == "raised")


def _by_host(pairs: Mapping[tuple[str, str], tuple[float, str]], part: float) -> dict[str, HostRate]:
    """Return the rate of each host in a pair: of its best one, or what hosts at nearly the same rate have.

    The slowest host is first.
    """
    best: dict[str, tuple[float, str]] = {}
    for hosts, found in pairs.items():
        for host in hosts:
            best[host] = max(found, best.get(host, found))
    middle = median_low([rate for rate, _ in best.values()]) if best else 0.0
    alike: defaultdict[object, list[tuple[float, str]]] = defaultdict(list)
    for rate, kind in best.values():
        alike[kind, round(log(rate / middle, ALIKE))].append((rate, kind))
    return {
        host: _host_rate(median_low(alike[kind, round(log(rate / middle, ALIKE))]), part)
        for host, (rate, kind) in sorted(best.items(), key=itemgetter(1))
    }


def _rate_and_kind(way: PathTests, port_rate: PortRate) -> tuple[float, str]:
    """Return bytes/s, and the cause: the ports are the limit, or the path is, or the port's rate is wrong."""
    measured, ports = _rate(way), _ports_rate(way, port_rate)
    if ports is None:
        return measured, "path"
    if measured >= ABOVE_PORTS * ports:
        return measured, "raised"
    ceiling = min(TOOL_CEILING_BYTES_PER_S[link.method] for link in way)
    return measured, "ports" if measured >= NEAR_PORTS * min(ports, ceiling) else "path"


def _fewest_streams(way: PathTests) -> int:
    """Return the fewest streams that get about the best rate."""
    best = _rate(way)
    return min(link.streams for link in way if link.bandwidth_bytes_per_s.median >= ENOUGH * best)


def through_hub(
    inventory: Inventory, connections: Mapping[Clusters, MeasuredLink], port_bytes_per_s: float | None
) -> Mapping[Clusters, MeasuredLink]:
    """Return the connections, with relayed pairs of clusters joined over the hub.

    All relayed pairs share the rate of the hub's fastest path. `port_bytes_per_s`: the rate of the hub's port.
    """
    hub = inventory.security.tunnel_hub or ""
    at_hub = next((each.name for each in inventory.clusters if hub in each.hosts), "")
    others = (each.name for each in inventory.clusters if each.name != at_hub)
    to_hub = {name: connections.get(frozenset({at_hub, name}), NOT_MEASURED) for name in others}
    rates = [way.host_bytes_per_s(hub, port_bytes_per_s) for way in to_hub.values()]
    most = max((rate for rate in rates if rate is not None), default=None)
    joined = {pair: _in_a_row([to_hub[name] for name in sorted(pair - {at_hub})]) for pair in relayed_pairs(inventory)}
    return {**connections, **{pair: replace(each, hub_bytes_per_s=most) for pair, each in joined.items()}}


def _in_a_row(ways: Sequence[MeasuredLink]) -> MeasuredLink:
    """Return the path over all `ways` in a row: the slowest rate, and the sum of the latencies."""
    joined = NOT_MEASURED
    for way in ways:
        trunks = [rate for rate in (joined.trunk_bytes_per_s, way.trunk_bytes_per_s) if rate is not None]
        joined = replace(
            way,
            median=_slower(joined.median, way.median),
            hosts={**joined.hosts, **way.hosts},
            others=_slower(joined.others, way.others),
            streams=max(joined.streams, way.streams),
            latency_s=joined.latency_s + way.latency_s,
            trunk_bytes_per_s=min(trunks, default=None),
            uplinks={**joined.uplinks, **way.uplinks},
        )
    return joined


def _slower(one: HostRate, other: HostRate) -> HostRate:
    """Return the lower rate; that of ports alone if they limit both."""
    known = [rate for rate in (one, other) if rate.bytes_per_s is not None]
    return min(known, key=lambda rate: rate.bytes_per_s or 0.0, default=one)
