"""Who is who in a bed: hosts, names, addresses and wires. Computes only; makes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The clusters name their interfaces differently on purpose, as sites do.
FAST_INTERFACES = {"A": "ib0", "B": "ens6"}
SLOW_INTERFACES = {"A": "eth0", "B": "eno1"}
FAST_NETWORKS = {"A": "10.1.0", "B": "10.2.0"}
SLOW_NETWORK = "10.9.0"
CONTROLLER_ADDRESS = f"{SLOW_NETWORK}.254"
CLUSTER_MEMBERS = {"A": ("a1", "a2"), "B": ("b1", "b2")}
NO_SITES: Mapping[str, str] = {}
JUMBO_MTU_BYTES = 9000  # of fast wires, as RoCE has, and of trunks: a frame costs this machine the same however large


@dataclass(frozen=True)
class BedHost:
    """One host of the bed; `folder` holds its keys, home, tools and logs."""

    name: str
    cluster: str
    namespace: str
    fast_interface: str
    slow_interface: str
    fast_address: str
    slow_address: str
    folder: Path

    @property
    def home(self) -> Path:
        """Root's home on this host."""
        return self.folder / "home"

    @property
    def tools(self) -> Path:
        """The stub tools, first on the host's search path."""
        return self.folder / "bin"


@dataclass(frozen=True)
class Wire:
    """A cable from an interface in a namespace to a port of a bridge.

    `rate_mbps` None means not shaped, `mtu_bytes` None as the kernel has it.
    """

    namespace: str
    interface: str
    address: str
    bridge: str
    port: str
    rate_mbps: int | None
    mtu_bytes: int | None = None


def host_namespace(suffix: str, name: str) -> str:
    """The namespace of the host, switch or controller called `name`."""
    return f"holmes-{suffix}-{name}"


def bed_hosts(suffix: str, folder: Path, sites: Mapping[str, str] = NO_SITES) -> tuple[BedHost, ...]:
    """The four hosts of the bed in `folder`. `sites`: by cluster, networks of all hosts but the last."""
    members = [(cluster, name) for cluster, names in CLUSTER_MEMBERS.items() for name in names]
    is_open, first = (len(members), 10) if sites else (0, 0)  # below 10 are gateways
    return tuple(
        BedHost(
            name=name,
            cluster=cluster,
            namespace=host_namespace(suffix, name),
            fast_interface=FAST_INTERFACES[cluster],
            slow_interface=SLOW_INTERFACES[cluster],
            fast_address=f"{FAST_NETWORKS[cluster]}.{CLUSTER_MEMBERS[cluster].index(name) + 1}",
            slow_address=f"{SLOW_NETWORK if number == is_open else sites.get(cluster, SLOW_NETWORK)}.{first + number}",
            folder=folder / name,
        )
        for number, (cluster, name) in enumerate(members, start=1)
    )


def slow_bridge(cluster: str, trunk: bool) -> str:
    """The bridge of the slow interfaces of `cluster`: one for everybody, or with a trunk one each."""
    return f"slow-{cluster.lower()}" if trunk else "slow"


@dataclass(frozen=True)
class TrunkEnd:
    """A TAP device that is a port of a bridge: one end of the trunk."""

    device: str
    bridge: str


def trunk_ends() -> tuple[TrunkEnd, TrunkEnd]:
    """Both ends of the trunk, at the slow bridges of clusters A and B."""
    return TrunkEnd("trunk-a", slow_bridge("A", trunk=True)), TrunkEnd("trunk-b", slow_bridge("B", trunk=True))


def bed_wires(
    hosts: tuple[BedHost, ...], controller: str, fast_mbps: int, slow_mbps: int, trunk: bool = False
) -> list[Wire]:
    """Every cable of the bed: a fast and a slow one for each host, an unshaped one for the controller.

    With a trunk the controller is at cluster A.
    """
    mtu_bytes = JUMBO_MTU_BYTES if trunk else None
    wires = [Wire(controller, "eth0", CONTROLLER_ADDRESS, slow_bridge("A", trunk), "controller", None, mtu_bytes)]
    for host in hosts:
        fast_bridge, fast_port = f"fast-{host.cluster.lower()}", f"{host.name}-fast"
        fast = (host.namespace, host.fast_interface, host.fast_address, fast_bridge, fast_port)
        wires.append(Wire(*fast, fast_mbps, JUMBO_MTU_BYTES))
        is_in_site = not host.slow_address.startswith(f"{SLOW_NETWORK}.")
        bridge = f"site-{host.cluster.lower()}" if is_in_site else slow_bridge(host.cluster, trunk)
        port = f"{host.name}-slow"
        wires.append(Wire(host.namespace, host.slow_interface, host.slow_address, bridge, port, slow_mbps, mtu_bytes))
    return wires
