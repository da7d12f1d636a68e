"""What if: an inventory and a change in words to the inventory as it would be. Pure; nothing is probed or written.

    link:A-B=10Gb/s          clusters A and B reach each other at 10 Gbit/s a host on the network all clusters share
    fabric:A=400Gb/s         hosts of cluster A reach each other at 400 Gbit/s a host on the cluster's fabric
    nic:HOST/NETDEV=25Gb/s   one interface (a netdev, or an RDMA device such as mlx5_0) runs at 25 Gbit/s
    +host:NAME=like:OTHER    one more host like OTHER, in its cluster
    -host:NAME               one host less

A network is made faster by raising the slower ports of those hosts to the rate, slower by lowering the faster ones.
Several changes at once are joined by commas. A measured bandwidth becomes the new rate; a measured latency stays, also
when a host it was measured with goes. An added host copies OTHER whole, addresses too: it is there to be planned on,
not to be launched on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from holmes_core.errors import HolmesError
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Cluster, Host, Inventory, Network, NetworkPort
from holmes_core.records.link import Link, Spread
from holmes_core.units import bytes_per_s_from_gbps

FORMS = (
    "link:CLUSTER-CLUSTER=10Gb/s",
    "fabric:CLUSTER=400Gb/s",
    "nic:HOST/NETDEV=25Gb/s",
    "+host:NAME=like:HOST",
    "-host:NAME",
)
_GBPS = {"G": 1.0, "M": 1e-3}


def what_if(inventory: Inventory, text: str) -> Inventory:
    """`inventory` with the changes in `text`, one after another.

    Raises HolmesError (wrong usage) naming the change that cannot be read, or the host, cluster or interface it
    names that is not there.
    """
    for change in text.split(","):
        inventory = _changed(inventory, change.strip())
    return inventory


def rate_text(bandwidth_bytes_per_s: float) -> str:
    """A rate as a change spells it: `10Gb/s`."""
    gbps = bandwidth_bytes_per_s * 8 / 1e9
    return f"{gbps:.6g}Gb/s" if gbps >= 1 else f"{gbps * 1e3:.6g}Mb/s"


def _changed(inventory: Inventory, change: str) -> Inventory:
    forms: tuple[tuple[str, Callable[..., Inventory]], ...] = (
        (r"link:(.+)=([^=]*)", _with_link),
        (r"fabric:([^=]+)=([^=]*)", _with_fabric),
        (r"nic:([^=/]+)/([^=]+)=([^=]*)", _with_nic),
        (r"\+host:([^=]+)=like:([^=]+)", _with_host),
        (r"-host:([^=]+)", _without_host),
    )
    for pattern, apply in forms:
        found = re.fullmatch(pattern, change)
        if found:
            return apply(inventory, change, *found.groups())
    raise _refused(change, "not a change that can be read")


def _with_link(inventory: Inventory, change: str, pair: str, rate: str) -> Inventory:
    """Cluster names may hold dashes, so every dash is tried as the one between them."""
    bandwidth = _bandwidth(change, rate)
    names = {cluster.name for cluster in inventory.clusters}
    cuts = [(pair[:at], pair[at + 1 :]) for at, sign in enumerate(pair) if sign == "-"]
    ends = next((cut for cut in cuts if set(cut) <= names and len(set(cut)) == 2), None)
    if ends is None:
        raise _refused(change, f"{pair!r} is not two clusters of the inventory ({', '.join(sorted(names))})")
    if inventory.shared is None:
        raise _refused(change, "the clusters have no network in common, so no rate between them can change")
    hosts = {host for cluster in inventory.clusters if cluster.name in ends for host in cluster.hosts}
    links = _links_at_rate(inventory, bandwidth, lambda link: set(link.clusters) == set(ends))
    shared = _at_rate(inventory.shared, hosts, "bandwidth_bytes_per_s", bandwidth)
    return inventory.model_copy(update={"links": links, "shared": shared})


def _with_fabric(inventory: Inventory, change: str, name: str, rate: str) -> Inventory:
    """RDMA where the fabric has it, and the netdev beside it, which only sockets use, stays as it is."""
    bandwidth = _bandwidth(change, rate)
    cluster = next((cluster for cluster in inventory.clusters if cluster.name == name), None)
    if cluster is None:
        known = ", ".join(cluster.name for cluster in inventory.clusters)
        raise _refused(change, f"no cluster {name!r} in the inventory ({known})")
    rdma = any(port.rdma_bandwidth_bytes_per_s is not None for port in cluster.fabric.ports)
    rate_of = "rdma_bandwidth_bytes_per_s" if rdma else "bandwidth_bytes_per_s"
    fabric = _at_rate(cluster.fabric, cluster.hosts, rate_of, bandwidth)
    links = _links_at_rate(inventory, bandwidth, lambda link: link.clusters == (name, name))
    return _cluster_changed(inventory, cluster.model_copy(update={"fabric": fabric}), {"links": links})


def _with_nic(inventory: Inventory, change: str, host_name: str, name: str, rate: str) -> Inventory:
    """The interface itself, and the host's ports on the networks it is on."""
    bandwidth = _bandwidth(change, rate)
    host, cluster = _known_host(inventory, change, host_name)
    faster_nic = {"rate_gbps": bandwidth * 8 / 1e9}
    nics = tuple(nic.model_copy(update=faster_nic) if _is(nic, name) else nic for nic in host.nics)
    netdevs = tuple(
        netdev.model_copy(update={"speed_bytes_per_s": bandwidth}) if netdev.name == name else netdev
        for netdev in host.netdevs
    )
    if nics == host.nics and netdevs == host.netdevs and name not in _interfaces(host):
        raise _refused(change, f"host {host_name} has no interface {name!r} ({', '.join(_interfaces(host))})")
    rails = {f"{nic.device}:{nic.port}": bytes_per_s_from_gbps(nic.rate_gbps or 0.0) for nic in nics}

    def port(seen: NetworkPort) -> NetworkPort:
        update: dict[str, float] = {"bandwidth_bytes_per_s": bandwidth} if seen.netdev == name else {}
        if seen.hcas and set(seen.hcas) <= set(rails) and nics != host.nics:
            update["rdma_bandwidth_bytes_per_s"] = sum(rails[hca] for hca in seen.hcas)
        return seen.model_copy(update=update)

    used = {(host_name, name), *((host_name, f"{nic.device}:{nic.port}") for nic in host.nics if _is(nic, name))}
    links = _links_at_rate(
        inventory, bandwidth, lambda link: bool(used & set(zip(link.hosts, link.devices, strict=True)))
    )
    shared = inventory.shared and _each_port(inventory.shared, host_name, port)
    hosts = tuple(
        seen.model_copy(update={"nics": nics, "netdevs": netdevs}) if seen is host else seen for seen in inventory.hosts
    )
    faster = cluster.model_copy(update={"fabric": _each_port(cluster.fabric, host_name, port)})
    return _cluster_changed(inventory, faster, {"hosts": hosts, "shared": shared, "links": links})


def _with_host(inventory: Inventory, change: str, name: str, like: str) -> Inventory:
    """The new host comes right after the one it is like."""
    model, cluster = _known_host(inventory, change, like)
    if any(host.name == name for host in inventory.hosts):
        raise _refused(change, f"host {name!r} is in the inventory already")

    def joined(network: Network) -> Network:
        port = network.port_of(like)
        added = (port.model_copy(update={"host": name}),) if port else ()
        return network.model_copy(update={"ports": (*network.ports, *added)})

    at = inventory.hosts.index(model) + 1
    added = model.model_copy(update={"name": name})
    larger = cluster.model_copy(update={"hosts": (*cluster.hosts, name), "fabric": joined(cluster.fabric)})
    shared = inventory.shared and joined(inventory.shared)
    hosts = (*inventory.hosts[:at], added, *inventory.hosts[at:])
    return _cluster_changed(inventory, larger, {"hosts": hosts, "shared": shared})


def _without_host(inventory: Inventory, change: str, name: str) -> Inventory:
    _, cluster = _known_host(inventory, change, name)

    def left(network: Network) -> Network:
        return network.model_copy(update={"ports": tuple(port for port in network.ports if port.host != name)})

    names = tuple(host for host in cluster.hosts if host != name)
    smaller = cluster.model_copy(update={"hosts": names, "fabric": left(cluster.fabric)})
    update = {
        "hosts": tuple(host for host in inventory.hosts if host.name != name),
        "shared": inventory.shared and left(inventory.shared),
    }
    changed = _cluster_changed(inventory, smaller, update)
    return changed.model_copy(update={"clusters": tuple(cluster for cluster in changed.clusters if cluster.hosts)})


def _bandwidth(change: str, rate: str) -> float:
    """Bytes per second of `10Gb/s`, `100Mb/s`, or with `bit` spelt out."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([GM])b(?:it)?/s", rate)
    if found is None or float(found[1]) <= 0:
        raise _refused(change, f"{rate!r} is not a rate above zero such as 10Gb/s or 100Mb/s")
    return bytes_per_s_from_gbps(float(found[1]) * _GBPS[found[2]])


def _known_host(inventory: Inventory, change: str, name: str) -> tuple[Host, Cluster]:
    """The host of that name and its cluster, which only a reachable host has."""
    for cluster in inventory.clusters:
        if name in cluster.hosts:
            return inventory.host(name), cluster
    known = [host for cluster in inventory.clusters for host in cluster.hosts]
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    raise _refused(change, f"no reachable host {name!r} in the inventory ({shown})")


def _interfaces(host: Host) -> list[str]:
    return list(dict.fromkeys([*(netdev.name for netdev in host.netdevs), *(nic.device for nic in host.nics)]))


def _is(nic: Nic, name: str) -> bool:
    return name in (nic.device, nic.netdev)


def _links_at_rate(
    inventory: Inventory, bandwidth_bytes_per_s: float, changes: Callable[[Link], bool]
) -> tuple[Link, ...]:
    """The inventory's links, those that `changes` as if the test had found the new rate."""
    spread = Spread(min=bandwidth_bytes_per_s, median=bandwidth_bytes_per_s)
    update = {"bandwidth_bytes_per_s": spread}
    return tuple(link.model_copy(update=update) if changes(link) else link for link in inventory.links)


def _at_rate(network: Network, hosts: Collection[str], rate_of: str, bandwidth_bytes_per_s: float) -> Network:
    """The slowest of the ports of `hosts` then has that rate; `rate_of` names the field that counts."""
    rates = [getattr(port, rate_of) for port in network.ports if port.host in hosts]
    faster = None in rates or bandwidth_bytes_per_s > min(rates)

    def changed(port: NetworkPort) -> NetworkPort:
        old = getattr(port, rate_of) or bandwidth_bytes_per_s
        new = max(old, bandwidth_bytes_per_s) if faster else min(old, bandwidth_bytes_per_s)
        return port.model_copy(update={rate_of: new}) if port.host in hosts else port

    return network.model_copy(update={"ports": tuple(changed(port) for port in network.ports)})


def _each_port(network: Network, host: str, change: Callable[[NetworkPort], NetworkPort]) -> Network:
    ports = tuple(change(port) if port.host == host else port for port in network.ports)
    return network.model_copy(update={"ports": ports})


def _cluster_changed(inventory: Inventory, cluster: Cluster, update: Mapping[str, object]) -> Inventory:
    """`inventory` with `cluster` in place of the one of that name, and with `update`."""
    clusters = tuple(cluster if seen.name == cluster.name else seen for seen in inventory.clusters)
    return inventory.model_copy(update={"clusters": clusters, **update})


def _refused(change: str, why: str) -> HolmesError:
    return HolmesError(f"--what-if {change}: {why}", "a change is one of " + ", ".join(f"`{form}`" for form in FORMS))
