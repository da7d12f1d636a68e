"""Fleets of generated machines in one or two clusters, sound until a fault is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.prober.fleet_machine import Card, Machine, Port, Slot, Switch

MachineKind = Callable[[str, int], Machine]


def h100(name: str, number: int) -> Machine:
    """Eight H100 and eight ConnectX-7 of 400 Gbit/s, a GPU and a rail below each switch."""
    switches = [Switch(0x10 + 0x10 * each, each // 4, 32.0) for each in range(8)]
    cards = [_card(each, "NVIDIA H100 80GB HBM3", switches[each], 0, 32.0, 18) for each in range(8)]
    ports = [_port(number, each, switches[each], 1, 400.0, 32.0) for each in range(8)]
    return Machine(name, number, ports, cards, switches)


def a100(name: str, number: int) -> Machine:
    """Eight A100 and eight ConnectX-6 of 200 Gbit/s, two of both below each switch."""
    switches = [Switch(0x10 + 0x20 * each, each // 2, 16.0) for each in range(4)]
    cards = [_card(each, "NVIDIA A100-SXM4-80GB", switches[each // 2], each % 2, 16.0, 12) for each in range(8)]
    ports = [_port(number, each, switches[each // 2], 2 + each % 2, 200.0, 16.0) for each in range(8)]
    for card in cards:
        card.fabric = ("N/A", "N/A")
    for port in ports:
        port.hca_type, port.board, port.firmware = "MT4123", "MT_0000000223", "20.39.3004"
    return Machine(name, number, ports, cards, switches, cpus=256, memory_kib=1056500000)


def _card(index: int, name: str, switch: Switch, place: int, gts: float, nvlinks: int) -> Card:
    return Card(index, name, switch, place, Slot(gts), Slot(gts), nvlinks, nvlinks)


def _port(host: int, number: int, switch: Switch, place: int, rate: float, gts: float) -> Port:
    guid = f"{0x0C42A10300000000 + host * 64 + number:016x}"
    grouped = ":".join(guid[at : at + 4] for at in range(0, 16, 4))
    return Port(number, f"mlx5_{number}", "Ethernet", switch, place, rate, grouped, Slot(gts), Slot(gts))


def infiniband(machine: Machine, sm_lid: int) -> Machine:
    """All rails in one InfiniBand subnet."""
    for port in machine.ports:
        port.kind, port.sm_lid, port.lid, port.mtu = "InfiniBand", sm_lid, 100 + machine.number * 8 + port.number, 4092
    return machine


def with_roce_subnets(machine: Machine, second: int) -> Machine:
    """A subnet a rail: 10.SECOND.RAIL.0/24."""
    for port in machine.ports:
        port.address = f"10.{second}.{port.number}.{machine.number % 200 + 10}/24"
    return machine


FLEETS: Mapping[str, tuple[MachineKind, ...]] = {
    "H100 on InfiniBand": (lambda name, number: infiniband(h100(name, number), 1),),
    "H100 on RoCE": (lambda name, number: with_roce_subnets(h100(name, number), 16),),
    "A100 on RoCE": (lambda name, number: with_roce_subnets(a100(name, number), 20),),
    "H100 on InfiniBand and A100 on RoCE": (
        lambda name, number: infiniband(h100(name, number), 1),
        lambda name, number: with_roce_subnets(a100(name, number), 20),
    ),
    "two clusters on RoCE": (
        lambda name, number: with_roce_subnets(h100(name, number), 16),
        lambda name, number: with_roce_subnets(h100(name, number), 32),
    ),
}
"""The kinds of machine of each cluster, which has an equal share of the hosts."""


@dataclass(frozen=True)
class Fleet:
    """Machines in order, the clusters one after another with as many hosts each."""

    kinds: tuple[MachineKind, ...]
    hosts: int

    def machine(self, number: int) -> Machine:
        """A sound machine, made anew."""
        return self.kinds[self._cluster(number)](f"gpu-{number:03d}", number)

    def neighbours(self, number: int) -> list[int]:
        """The other hosts of its cluster."""
        return [each for each in range(self.hosts) if self._cluster(each) == self._cluster(number) and each != number]

    def _cluster(self, number: int) -> int:
        return number * len(self.kinds) // self.hosts
