"""Find a fleet's clusters, whose hosts share a fabric, and the network that all hosts share.

`same_fabric` decides from facts which hosts share a fabric; hosts.yaml may pin hosts to clusters.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import Cluster, FabricKind, Finding, Host, Network, NetworkPort
from holmes_core.units import bytes_per_s_from_gbps
from prober.fabrics.fabric import Fabric, carries_traffic, fabric_of
from prober.fabrics.fabric_findings import fabric_findings, pin_findings
from prober.fabrics.own_bridges import is_cut_off
from prober.fabrics.placing import Groups, Placing, place
from prober.fabrics.rails_apart import rails_apart
from prober.fabrics.settle import RdmaVerdict, settle
from prober.fabrics.settled_findings import settled_findings
from prober.rails.choose_rails import is_stated
from prober.rails.efa import efa_plugin
from prober.rails.port_networks import network_of, parsed

_SHORT: dict[FabricKind, str] = {
    "InfiniBand": "ib",
    "RoCE": "roce",
    "EFA": "efa",
    "Ethernet": "eth",
    "loopback": "local",
}


def is_rail_class(host: Host, nic: Nic) -> bool:
    """Return True if a port that is not Active should be a rail: it has the rails' kind and card model.

    On a host without rails every port should be a rail. If card models are not known, none should. `rails:` in
    hosts.yaml overrides both.
    """
    stated = is_stated(nic)
    if stated is not None:
        return stated
    rails = fabric_of(host).rails
    same_model = nic.hca_type is not None and nic.hca_type in {rail.hca_type for rail in rails}
    return not rails or (nic.kind == rails[0].kind and same_model)


def find_clusters(
    hosts: Sequence[Host], pinned: Mapping[str, str], trials: Collection[RdmaVerdict] = ()
) -> tuple[tuple[Cluster, ...], tuple[Finding, ...]]:
    """Return the clusters of reachable hosts in order of their first host, and findings on them.

    `pinned` gives the cluster labels of hosts by name. Facts place a host without a label. Where they leave that open,
    the `trials` of RDMA decide.
    """
    placing = place_hosts(hosts, pinned)
    settled = settle(placing, trials)
    reachable = {host.name: host for host in hosts if host.reachable}
    clusters = tuple(_clusters(settled.groups, reachable, placing.fabrics))
    findings = (
        *pin_findings(placing),
        *fabric_findings(placing, settled.answered | {host.name for host in hosts if is_cut_off(host)}),
        *settled_findings(settled),
    )
    return clusters, findings


def place_hosts(hosts: Sequence[Host], pinned: Mapping[str, str]) -> Placing:
    """Place the reachable hosts by facts and pins, and record those that neither can place."""
    return place({host.name: fabric_of(host) for host in hosts if host.reachable}, pinned)


def _clusters(groups: Groups, hosts: Mapping[str, Host], fabrics: Mapping[str, Fabric]) -> Iterable[Cluster]:
    counts: Counter[str] = Counter()
    for label, names in groups:
        kind = fabrics[names[0]].kind
        counts[_SHORT[kind]] += label is None
        name = label or f"{_SHORT[kind]}-{counts[_SHORT[kind]]}"
        networks = {network for each in names for network in fabrics[each].networks if ":" not in network}
        ports = tuple(_fabric_port(hosts[each], fabrics[each]) for each in names)
        fabric = Network(
            name=name,
            kind=kind,
            subnet=min(networks) if len(networks) == 1 else None,
            ports=ports,
            rails_apart=rails_apart([fabrics[each] for each in names]),
            net_name=fabrics[names[0]].net_name,
        )
        yield Cluster(name=name, hosts=tuple(names), fabric=fabric, pinned=label is not None)


def find_shared_network(hosts: Sequence[Host]) -> Network | None:
    """Return the fastest IPv4 network on which every reachable host has an address.

    Of equally fast networks, take the one on the interfaces that hosts list first. If masks differ, take the network
    with the longest mask, provided that it holds an address of every host. Without a common network, assume that hosts
    reach one another by their default routes. Link-local networks, such as those to a board's controller, come last.
    Return None if there is no such network and a host has no default route.
    """
    reachable = [host for host in hosts if host.reachable]
    local = any(host.access.transport == "local" for host in reachable)
    networks: dict[str, dict[str, NetworkPort]] = {}
    for host in reachable:
        for netdev in host.netdevs:
            if (netdev.name == "lo") if local else carries_traffic(netdev):
                for network in {network_of(address) for address in netdev.addresses}:
                    networks.setdefault(network, {}).setdefault(host.name, _port(host.name, netdev, network))
    kind: FabricKind = "loopback" if local else "Ethernet"
    common = {
        subnet: tuple(ports[host.name] for host in reachable)
        for subnet, ports in _with_wider_masks(networks).items()
        if len(ports) == len(reachable) and (local or _all_differ(ports.values()))
    }
    routed = [
        (host, netdev) for host in reachable for netdev in host.netdevs if netdev.name == host.default_route_netdev
    ]
    has_routes = len(routed) == len(reachable) and all(carries_traffic(netdev) for _, netdev in routed)
    assigned = {subnet: ports for subnet, ports in common.items() if not parsed(subnet).is_link_local}
    if assigned or (common and not has_routes):
        usable = assigned or common
        places = {host.name: [netdev.name for netdev in host.netdevs] for host in reachable}

        def rank(subnet: str) -> tuple[float, int, str]:
            listed = sum(places[port.host].index(str(port.netdev)) for port in usable[subnet])
            slowest = min(port.bandwidth_bytes_per_s or 0 for port in usable[subnet])
            return slowest, -listed, subnet

        subnet = max(usable, key=rank)
        return Network(name="shared", kind=kind, subnet=subnet, ports=usable[subnet])
    if reachable and has_routes:
        ports = tuple(_port(host.name, netdev, None) for host, netdev in routed)
        return Network(name="shared", kind="Ethernet", subnet=None, ports=ports)
    return None


def _with_wider_masks(networks: Mapping[str, Mapping[str, NetworkPort]]) -> Mapping[str, Mapping[str, NetworkPort]]:
    """Return each network's ports by host, including ports with a shorter mask whose address is inside it."""
    lengths = sorted({parsed(text).prefixlen for text in networks})
    widened = {}
    for text, ports in networks.items():
        network = parsed(text)
        wider = [str(network.supernet(new_prefix=length)) for length in lengths if length < network.prefixlen]
        others = [port for outer in wider for port in networks.get(outer, {}).values()]
        inside = {port.host: port for port in others if port.address and ipaddress.ip_address(port.address) in network}
        widened[text] = {**inside, **ports}
    return widened


def _fabric_port(host: Host, fabric: Fabric) -> NetworkPort:
    port = _port(host.name, fabric.netdev, None)
    if not fabric.rails:
        return port
    plugin = efa_plugin(host) if fabric.net_name is not None else None
    total_gbps = sum(nic.rate_gbps or 0 for nic in fabric.rails)
    return port.model_copy(
        update={
            "hcas": tuple(nic.hca for nic in fabric.rails),
            "rdma_bandwidth_bytes_per_s": bytes_per_s_from_gbps(total_gbps),
            "net_plugin": plugin.path if plugin is not None else None,
        }
    )


def _port(host: str, netdev: Netdev | None, subnet: str | None) -> NetworkPort:
    addresses = netdev.addresses if netdev else ()
    inside = [address for address in addresses if subnet is None or network_of(address) == subnet]
    return NetworkPort(
        host=host,
        netdev=netdev.name if netdev else None,
        address=inside[0].partition("/")[0] if inside else None,
        bandwidth_bytes_per_s=netdev.speed_bytes_per_s if netdev else None,
    )


def _all_differ(ports: Collection[NetworkPort]) -> bool:
    """Return False if two hosts have the same address: then their networks only look alike, as container bridges do."""
    return len({port.address for port in ports}) == len(ports)
