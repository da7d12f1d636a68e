"""Makes the bed's network: namespaces, bridges, cables and their rates."""

from collections.abc import Iterable, Sequence

from tests.testbed.bed_estate import Estate
from tests.testbed.bed_layout import JUMBO_MTU_BYTES, TrunkEnd, Wire
from tests.testbed.bed_process import run_tool

# A bucket of 2 ms, or of a few frames: what fits into it passes an idle link at once, as no wire would let it. With 128
# KiB that was whole messages of small models. A queue of 50 ms, and of 256 KiB as slow routers have, keeps it busy.
BURST_S = 0.002
SMALLEST_BURST_BYTES = 16 * 1024
QUEUE_S = 0.05
SMALLEST_QUEUE_BYTES = 256 * 1024


def make_network(estate: Estate, switch: str, wires: Sequence[Wire], trunk: Sequence[TrunkEnd] = ()) -> None:
    """Makes all namespaces and joins them; the machine's own namespace gets no interface and no route.

    Nothing carries frames between the ends of the trunk yet.
    """
    namespaces = dict.fromkeys(wire.namespace for wire in wires)
    for namespace in (switch, *namespaces):
        estate.record_namespace(namespace)
        run_tool(["ip", "netns", "add", namespace])
    run_tool(["ip", "-n", switch, "-batch", "-"], [*switch_lines(wires), *trunk_lines(trunk)])
    run_tool(["tc", "-n", switch, "-batch", "-"], rate_lines((wire.port, wire.rate_mbps) for wire in wires))
    for namespace in namespaces:
        own = [wire for wire in wires if wire.namespace == namespace]
        run_tool(["ip", "-n", namespace, "-batch", "-"], host_lines(own))
        run_tool(["tc", "-n", namespace, "-batch", "-"], rate_lines((wire.interface, wire.rate_mbps) for wire in own))


def switch_lines(wires: Sequence[Wire]) -> list[str]:
    """`ip` commands, run in the switch, that make the bridges and lay every cable to its namespace."""
    lines = ["link set dev lo up"]
    for bridge in dict.fromkeys(wire.bridge for wire in wires):
        lines += [f"link add name {bridge} type bridge", f"link set dev {bridge} up"]
    for wire in wires:
        mtu = "" if wire.mtu_bytes is None else f"mtu {wire.mtu_bytes}"
        lines += [
            f"link add name {wire.port} {mtu} type veth peer name {wire.interface} {mtu} netns {wire.namespace}",
            f"link set dev {wire.port} master {wire.bridge} up",
        ]
    return lines


def trunk_lines(ends: Iterable[TrunkEnd]) -> list[str]:
    """`ip` commands, run in the switch, that give each end of the trunk to its bridge."""
    lines = []
    for end in ends:
        lines += [
            f"tuntap add dev {end.device} mode tap",
            f"link set dev {end.device} mtu {JUMBO_MTU_BYTES} master {end.bridge} up",
        ]
    return lines


def host_lines(wires: Sequence[Wire]) -> list[str]:
    """`ip` commands, run in a host, that give its interfaces their addresses."""
    lines = ["link set dev lo up"]
    for wire in wires:
        lines += [f"address add {wire.address}/24 dev {wire.interface}", f"link set dev {wire.interface} up"]
    return lines


def rate_lines(rates: Iterable[tuple[str, int | None]]) -> list[str]:
    """`tc` commands that shape what each interface sends; both ends shaped make a full-duplex link of that rate."""
    return [
        f"qdisc add dev {interface} root tbf rate {rate_mbps}mbit "
        f"burst {burst_bytes(rate_mbps)} limit {queue_bytes(rate_mbps)}"
        for interface, rate_mbps in rates
        if rate_mbps is not None
    ]


def burst_bytes(rate_mbps: int) -> int:
    """The token bucket of a link of `rate_mbps`, in bytes."""
    return max(SMALLEST_BURST_BYTES, int(rate_mbps * 1e6 / 8 * BURST_S))


def queue_bytes(rate_mbps: int) -> int:
    """What may wait for a link of `rate_mbps`, in bytes; more is dropped."""
    return burst_bytes(rate_mbps) + max(SMALLEST_QUEUE_BYTES, int(rate_mbps * 1e6 / 8 * QUEUE_S))
