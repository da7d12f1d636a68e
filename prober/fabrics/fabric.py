"""The fabric that carries a host's job traffic, described by its rails or its fastest netdev."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from holmes_core.records.devices import Netdev, Nic
from holmes_core.records.inventory import FabricKind, Host
from holmes_runtime.config.rank_grid import NetName
from prober.rails.choose_rails import rails_of
from prober.rails.efa import efa_plugin
from prober.rails.port_groups import PKEY_MEMBERSHIP
from prober.rails.port_networks import interfaces_of, netdevs_of, network_of, networks_of

VIRTUAL_NAMES = ("docker", "br-", "veth", "virbr", "cni", "flannel")  # bridges of containers and VMs, and their ends
_DEFAULT_ROUTES = frozenset({"0.0.0.0/0", "::/0"})
_NO_LID = (None, 0, 0xFFFF)


@dataclass(frozen=True)
class Fabric:
    """The fabric as one host shows it. None and empty values mean "not known", and contradict nothing."""

    kind: FabricKind
    rails: tuple[Nic, ...]
    netdev: Netdev | None  # for TCP
    interfaces: tuple[frozenset[str], ...] = ()  # per rail, or for the netdev: addresses with prefix length
    routes: tuple[frozenset[str], ...] = ()  # per rail: destination prefixes of the routes over it
    around: frozenset[str] = frozenset()  # networks of the host's other netdevs
    net_name: NetName | None = None  # NCCL's name for it, if a plugin provides it
    machine: str | None = None  # equal for containers on one machine, which share its ports and addresses

    @cached_property
    def transport(self) -> tuple[str, str]:
        """The kind of the fabric and NCCL's name for it. Hosts on one fabric have both in common."""
        return self.kind, self.net_name or ""

    @cached_property
    def networks(self) -> frozenset[str]:
        """The networks of all rails, or of the netdev."""
        return frozenset(network_of(text) for interfaces in self.interfaces for text in interfaces)

    @cached_property
    def addresses(self) -> frozenset[str]:
        """The addresses of all rails, or of the netdev."""
        return frozenset(text.partition("/")[0] for interfaces in self.interfaces for text in interfaces)

    @cached_property
    def routed(self) -> frozenset[str]:
        """Destination prefixes of the routes over all rails, without default routes."""
        return frozenset(prefix for prefixes in self.routes for prefix in prefixes) - _DEFAULT_ROUTES

    @cached_property
    def routed_anywhere(self) -> bool:
        """True if a policy table or VRF has a default route over a rail."""
        return any(prefixes & _DEFAULT_ROUTES for prefixes in self.routes)

    @cached_property
    def subnet_prefixes(self) -> frozenset[str]:
        """The known subnet prefixes of InfiniBand rails."""
        return frozenset(nic.subnet_prefix for nic in self.rails if nic.subnet_prefix)

    @cached_property
    def sm_lids(self) -> frozenset[int]:
        """LIDs of the subnet managers of InfiniBand rails."""
        return frozenset(nic.sm_lid for nic in self.rails if nic.sm_lid and nic.kind == "InfiniBand")

    @cached_property
    def sm_guids(self) -> frozenset[str]:
        """GUIDs of the subnet managers of InfiniBand rails, if this user may query them."""
        return frozenset(nic.sm_guid for nic in self.rails if nic.sm_guid)

    @cached_property
    def partitions(self) -> frozenset[int]:
        """P_Keys of InfiniBand rails without the full membership bit. Empty if any rail's keys are not known."""
        known = all(nic.pkeys for nic in self.rails) and self.kind == "InfiniBand"
        return (
            frozenset(key & ~PKEY_MEMBERSHIP for nic in self.rails for key in nic.pkeys or ()) if known else frozenset()
        )

    def lids(self) -> dict[tuple[str | None, int, int], str]:
        """Return the port GUIDs of the rails by (subnet prefix, rail, LID).

        The rail is 0 unless two of the host's own rails have the same LID; then each rail counts as a separate subnet.
        Virtual functions are left out, because they have their card's LID.
        """
        own = [
            (number, nic.subnet_prefix, nic.lid, nic.port_guid or nic.node_guid or "")
            for number, nic in enumerate(self.rails)
            if nic.kind == "InfiniBand" and nic.lid not in _NO_LID and not nic.virtual_function
        ]
        apart = len({(prefix, lid) for _, prefix, lid, _ in own}) < len(own)
        return {(prefix, number if apart else 0, lid or 0): guid for number, prefix, lid, guid in own}


def fabric_of(host: Host) -> Fabric:
    """Return the fabric of the host's rails. Without rails it is the Ethernet of its fastest netdev.

    A local host's fabric is its loopback.
    """
    if host.access.transport == "local":
        loopback = next((netdev for netdev in host.netdevs if netdev.name == "lo"), None)
        return Fabric("loopback", (), loopback, _interfaces_of_one(loopback))
    rails = rails_of(host)
    carrying = [netdev for netdev in host.netdevs if carries_traffic(netdev)]
    if not rails:
        netdev = _fastest(carrying)
        return Fabric("Ethernet", (), netdev, _interfaces_of_one(netdev), machine=host.boot_id)
    if rails[0].kind == "EFA":
        return _efa(host, rails)
    of_rails = [netdevs_of(host, nic) for nic in rails]
    netdevs = [netdev for netdevs in of_rails for netdev in netdevs]
    names = {netdev.name for netdev in netdevs}
    others = [netdev for netdev in carrying if netdev.name not in names]
    return Fabric(
        kind="InfiniBand" if rails[0].kind == "InfiniBand" else "RoCE",
        rails=rails,
        netdev=next((netdev for netdev in netdevs if netdev.addresses), netdevs[0] if netdevs else None),
        interfaces=tuple(interfaces_of(netdevs) for netdevs in of_rails),
        routes=tuple(_prefixes(host, netdevs) for netdevs in of_rails),
        around=networks_of(others),
        machine=host.boot_id,
    )


def _efa(host: Host, rails: tuple[Nic, ...]) -> Fabric:
    """Return the fabric of EFA adapters. They have no interfaces: their packets stay in the machine's own subnets."""
    carrying = [netdev for netdev in host.netdevs if carries_traffic(netdev)]
    plugin = efa_plugin(host)
    return Fabric(
        kind="EFA",
        rails=rails,
        netdev=_fastest(carrying),
        interfaces=(interfaces_of(carrying),),
        net_name=plugin.net_name if plugin is not None else None,
        machine=host.boot_id,
    )


def carries_traffic(netdev: Netdev) -> bool:
    """Return True if a netdev is up with an IPv4 address and leaves the machine: no container bridge, no loopback."""
    return bool(netdev.up and netdev.addresses and not netdev.isolated) and not netdev.name.startswith(
        (*VIRTUAL_NAMES, "lo")
    )


def _prefixes(host: Host, netdevs: Iterable[Netdev]) -> frozenset[str]:
    """Return the prefixes of the routes over these netdevs."""
    names = {netdev.name for netdev in netdevs}
    return frozenset(route.prefix for route in host.routes if route.netdev in names)


def _interfaces_of_one(netdev: Netdev | None) -> tuple[frozenset[str], ...]:
    return (interfaces_of([netdev]),) if netdev else ()


def _fastest(netdevs: Iterable[Netdev]) -> Netdev | None:
    return max(netdevs, key=lambda netdev: netdev.speed_bytes_per_s or 0, default=None)
