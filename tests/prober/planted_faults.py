"""Faults to plant in a generated fleet: each breaks one machine, or two, in one way that operators have seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prober.rules.reported_rules import UNREACHABLE
from tests.prober.fleet_machine import Machine, Port

Plant = Callable[[Machine, Machine, random.Random], None]
"""Breaks the first machine; the second is another of its cluster."""


@dataclass(frozen=True)
class Fault:
    """How it is planted and what must be said of it: one of `rules`, of the machine; `also` may be said of it besides.

    `fabric`: the kind of rails it needs. `both`: the other machine is concerned too, and is named.
    """

    plant: Plant
    rules: frozenset[str]
    also: frozenset[str] = frozenset()
    fabric: str | None = None
    both: bool = False
    lightest: str = "W"


FAULTS: dict[str, Fault] = {}
ANY_RAIL_LOST = "NIC-COUNT-DIFFERS NIC-RATE-OUTLIER NIC-SET-DIFFERS"


def fault(
    rules: str,
    also: str = "",
    fabric: str | None = None,
    both: bool = False,
    lightest: str = "W",
) -> Callable[[Plant], Plant]:
    """Registers the function as a kind of fault, by its name; `rules` and `also` are ids with blanks between them."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", " ").strip()
        FAULTS[name] = Fault(plant, frozenset(rules.split()), frozenset(also.split()), fabric, both, lightest)
        return plant

    return register


def settings(rules: str, faults: Mapping[str, Mapping[str, object]], also: str = "", lightest: str = "W") -> None:
    """Registers faults that are a fact or two of the machine set otherwise."""
    for name, facts in faults.items():

        def plant(machine: Machine, _other: Machine, _choose: random.Random, facts: object = facts) -> None:
            assert isinstance(facts, Mapping)
            for fact, value in facts.items():
                assert hasattr(machine, fact)
                setattr(machine, fact, value)

        FAULTS[name] = Fault(plant, frozenset(rules.split()), frozenset(also.split()), lightest=lightest)


# Rails: ports, cables, cards.


@fault("NIC-PORT-DOWN", ANY_RAIL_LOST)
def a_rail_is_disabled(machine: Machine, _other: Machine, choose: random.Random) -> None:
    _down(choose.choice(machine.ports), "Disabled")


@fault("NIC-PORT-DOWN", ANY_RAIL_LOST)
def a_rail_is_polling(machine: Machine, _other: Machine, choose: random.Random) -> None:
    _down(choose.choice(machine.ports), "Polling")


@fault("NIC-PORT-DOWN", ANY_RAIL_LOST)
def half_of_the_rails_are_polling(machine: Machine, _other: Machine, choose: random.Random) -> None:
    for port in choose.sample(machine.ports, 4):
        _down(port, "Polling")


@fault("NIC-PORT-DOWN")
def all_rails_are_down(machine: Machine, _other: Machine, choose: random.Random) -> None:
    phys = choose.choice(("Polling", "Disabled"))
    for port in machine.ports:
        _down(port, phys)


def _down(port: Port, phys: str) -> None:
    port.state, port.phys = "DOWN", phys
    port.rate = 10.0 if port.kind == "InfiniBand" else 40.0  # what the driver says of a port without a link
    port.lid = port.sm_lid = 0


@fault("NIC-NO-SM", ANY_RAIL_LOST, fabric="InfiniBand")
def the_subnet_manager_does_not_set_a_rail_up(machine: Machine, _other: Machine, choose: random.Random) -> None:
    port = choose.choice(machine.ports)
    port.state, port.lid, port.sm_lid = "INIT", 0, 0


@fault("NIC-NO-SM NIC-PORT-DOWN", fabric="InfiniBand")
def the_subnet_manager_sets_no_rail_up(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.state, port.lid, port.sm_lid = "INIT", 0, 0


@fault("NIC-RATE-BELOW-CLASS", ANY_RAIL_LOST)
def a_rail_has_half_its_rate(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).rate /= 2


@fault("NIC-RATE-BELOW-CLASS")
def all_rails_have_half_their_rate(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.rate /= 2


@fault("NIC-COUNT-DIFFERS", "NIC-SET-DIFFERS")
def a_card_is_gone(machine: Machine, _other: Machine, choose: random.Random) -> None:
    machine.ports.remove(choose.choice(machine.ports))


@fault("NIC-COUNT-DIFFERS")
def all_cards_are_gone(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    machine.ports.clear()


@fault("NIC-FW-MISMATCH")
def a_card_has_other_firmware(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).firmware = "28.35.1012"


@fault("NIC-FW-MISMATCH")
def all_cards_have_other_firmware(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.firmware = "28.35.1012"


@fault("NIC-ERRORS")
def errors_of_a_rail_grow(machine: Machine, _other: Machine, choose: random.Random) -> None:
    name = choose.choice(("symbol_error", "port_rcv_errors", "out_of_sequence", "packet_seq_err"))
    choose.choice(machine.ports).growth[name] = choose.randint(1, 900)


@fault("NIC-FLAP")
def a_link_goes_down_while_the_probe_looks(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).growth["link_downed"] = 1


@fault("NIC-FLAP")
def a_link_flapped_since_boot(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).counters["link_downed"] = choose.randint(4, 300)


@fault("NIC-COUNT-DIFFERS", fabric="InfiniBand")
def a_rail_is_in_another_partition(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).pkeys = (0x8005,)


@fault("NIC-PKEY", fabric="InfiniBand")
def all_rails_are_in_another_partition(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.pkeys = (0x8005,)


@fault("NIC-PKEY", fabric="InfiniBand", both=True)
def two_hosts_are_limited_members(machine: Machine, other: Machine, _choose: random.Random) -> None:
    for port in (*machine.ports, *other.ports):
        port.pkeys = (0x7FFF,)


@fault(ANY_RAIL_LOST, fabric="InfiniBand")
def a_rail_is_cabled_to_another_fabric(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).sm_lid = 77


# Rails on Ethernet: addresses, MTU, flow control.


@fault("TOPO-RAIL-SWAPPED TOPO-RAIL-MISMATCH", "TOPO-RAIL-SWAPPED TOPO-RAIL-MISMATCH", fabric="Ethernet")
def two_rails_are_swapped(machine: Machine, _other: Machine, choose: random.Random) -> None:
    one, two = choose.sample(machine.ports, 2)
    one.address, two.address = two.address, one.address


@fault("NET-MASK-DIFFERS", fabric="Ethernet")
def a_rail_has_a_shorter_mask(machine: Machine, _other: Machine, choose: random.Random) -> None:
    _mask(choose.choice(machine.ports), choose.choice((16, 20, 23)))


@fault("NET-MASK-DIFFERS", fabric="Ethernet")
def a_rail_has_a_longer_mask(machine: Machine, _other: Machine, choose: random.Random) -> None:
    _mask(choose.choice(machine.ports), choose.choice((25, 26, 28)))


@fault("NET-MASK-DIFFERS", fabric="Ethernet")
def all_rails_have_a_shorter_mask(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        _mask(port, 23)


def _mask(port: Port, length: int) -> None:
    assert port.address
    port.address = f"{port.address.partition('/')[0]}/{length}"


@fault("NET-ADDRESS-TWICE", fabric="Ethernet", both=True)
def a_rail_has_the_address_of_another_host(machine: Machine, other: Machine, choose: random.Random) -> None:
    number = choose.randrange(8)
    machine.ports[number].address = other.ports[number].address


@fault("CLUSTER-LOOKS-ALIKE", fabric="Ethernet", both=True)
def all_rails_have_the_addresses_of_another_host(machine: Machine, other: Machine, _choose: random.Random) -> None:
    for port, theirs in zip(machine.ports, other.ports, strict=True):
        port.address = theirs.address


@fault("ROCE-NO-V2-GID ROCE-GID-IPV6-ONLY", ANY_RAIL_LOST, fabric="Ethernet")
def a_rail_has_no_address(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).address = None


@fault("ROCE-NO-V2-GID ROCE-GID-IPV6-ONLY", "CLUSTER-NOT-KNOWN", fabric="Ethernet")
def no_rail_has_an_address(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.address = None


@fault("ROCE-GID-DIFFERS-BY-HOST", fabric="Ethernet")
def the_GIDs_of_the_rails_stand_at_another_index(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.gid_index = 4


@fault("ROCE-MTU-DIFFERS ROCE-MTU-SMALL", "ROCE-MTU-DIFFERS ROCE-MTU-SMALL", fabric="Ethernet")
def a_rail_has_a_small_MTU(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).mtu = choose.choice((1500, 2200))


@fault("ROCE-PFC-DIFFERS ROCE-PFC-OFF", "ROCE-PFC-DIFFERS", fabric="Ethernet")
def PFC_is_off_on_a_rail(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).pfc = ()


@fault("ROCE-PFC-DIFFERS", fabric="Ethernet")
def PFC_is_on_for_another_priority(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for port in machine.ports:
        port.pfc = (4,)


@fault("ROCE-PFC-DIFFERS", also="ROCE-TRUST", fabric="Ethernet")
def a_rail_trusts_PCP(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).trust = "pcp"


# PCI Express.


@fault("PCI-LINK-DEGRADED")
def a_rail_lost_PCI_lanes(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).link.width = choose.choice((8, 4, 1))


@fault("PCI-LINK-DEGRADED")
def a_rail_runs_at_a_lower_PCI_speed(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).link.speed /= choose.choice((2, 4))


@fault("PCI-LINK-DEGRADED")
def a_rail_is_in_a_narrow_slot(machine: Machine, _other: Machine, choose: random.Random) -> None:
    port = choose.choice(machine.ports)
    port.link.width = port.slot.width = port.slot.max_width = 8


@fault("PCI-LINK-DEGRADED")
def a_GPU_lost_PCI_lanes(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).link.width = 8


@fault("PCI-LINK-DEGRADED")
def a_switch_lost_lanes_of_its_uplink(machine: Machine, _other: Machine, choose: random.Random) -> None:
    switch = choose.choice(machine.switches)
    switch.root.width = switch.uplink.width = 8


@fault("PCI-LINK-DEGRADED")
def a_switch_has_a_slow_uplink(machine: Machine, _other: Machine, choose: random.Random) -> None:
    switch = choose.choice(machine.switches)
    switch.root.speed = switch.root.max_speed = switch.uplink.speed = switch.root.speed / 2


@fault("PCI-ACS-ON-PATH")
def a_switch_redirects_by_ACS(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.switches).acs = True


@fault("PCI-MPS-SMALL", lightest="I")
def a_rail_has_small_read_requests(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.ports).read_request = 512


# GPUs.


@fault("GPU-COUNT", "GPU-COUNT-DIFFERS NIC-COUNT-DIFFERS")
def the_driver_lost_a_GPU(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).in_driver = False


@fault("GPU-COUNT-DIFFERS", "NIC-COUNT-DIFFERS")
def a_GPU_is_gone_from_the_bus(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).on_bus = False


@fault("GPU-NVLINK-INACTIVE")
def a_GPU_lost_some_NVLinks(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).nvlinks_up -= choose.randint(1, 6)


@fault("GPU-NVLINK-INACTIVE")
def all_GPUs_lost_their_NVLinks(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for card in machine.cards:
        card.nvlinks_up = 0


@fault("GPU-FABRIC")
def the_fabric_of_a_GPU_is_not_completed(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).fabric = ("In Progress", "N/A")


@fault("GPU-ECC-UNCORR")
def a_GPU_has_uncorrected_errors(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).ecc = choose.randint(1, 40)


@fault("GPU-ROW-REMAP")
def a_GPU_will_remap_a_row(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).pending = "Yes"


@fault("GPU-ROW-REMAP")
def a_GPU_could_not_remap_a_row(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).failure = "Yes"


@fault("GPU-THROTTLE")
def a_GPU_is_throttled(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).throttle = (choose.choice(("hw_thermal_slowdown", "hw_power_brake_slowdown")),)


@fault("GPU-MIG-ENABLED")
def a_GPU_is_in_MIG_mode(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).mig = "Enabled"


@fault("GPU-COMPUTE-MODE")
def a_GPU_takes_one_process_only(machine: Machine, _other: Machine, choose: random.Random) -> None:
    choose.choice(machine.cards).mode = choose.choice(("Exclusive_Process", "Prohibited"))


@fault("GPU-PERSISTENCE-OFF", lightest="I")
def persistence_mode_is_off(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for card in machine.cards:
        card.persistence = "Disabled"


@fault("GPU-MODEL-DIFFERS", lightest="I")
def the_GPUs_are_another_model(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    for card in machine.cards:
        card.name += " (96GB)"


@fault("GPU-BUSY")
def somebody_computes_on_a_GPU(machine: Machine, _other: Machine, choose: random.Random) -> None:
    card = choose.choice(machine.cards)
    machine.processes.append(f"{card.uuid}, {choose.randint(300, 90000)}, 3214 MiB, python3")


@fault("GPU-XID")
def the_driver_logged_a_fatal_Xid(machine: Machine, _other: Machine, choose: random.Random) -> None:
    number = choose.choice((79, 74, 119))
    address = choose.choice(machine.cards).pci.removesuffix(".0")
    machine.log.append(f"[77.0] NVRM: Xid (PCI:{address}): {number}, pid='<unknown>', name=<unknown>, fault")


@fault("GDR-PEERMEM-ERRORS")
def peermem_logged_errors(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    machine.log.append("[77.0] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping")


@fault("HOST-UNREACHABLE")
def the_host_is_not_reachable(machine: Machine, _other: Machine, _choose: random.Random) -> None:
    machine.failure = UNREACHABLE.finding((machine.name,), "connect to port 22: No route to host")


MISMATCH = ("Failed to initialize NVML: Driver/library version mismatch\n", 18)
NOT_FOUND = ("sh: 1: nvidia-smi: not found\n", 127)
WITHOUT_NVIDIA = ["mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs"]
NO_DRIVER = {"nvidia_smi": NOT_FOUND, "modules": WITHOUT_NVIDIA, "peermem": False}
settings("GPU-DRIVER-MISMATCH", {"the driver was updated under the kernel": {"nvidia_smi": MISMATCH}})
settings("GPU-NONE", {"no driver is loaded": NO_DRIVER})
settings("GPU-DRIVER-DIFFERS", {"the GPU driver is older": {"driver": "535.129.03"}})
settings("GPU-FABRIC", {"the fabric manager failed": {"fabric_manager": "failed"}})
settings("GDR-NO-PEERMEM", {"peermem is not loaded": {"peermem": False}})
settings("NIC-DRIVER-MISMATCH", {"the kernel is another": {"kernel": "5.15.0-92-generic"}})
settings("NIC-DRIVER-MISMATCH", {"OFED is another": {"ofed": "MLNX_OFED_LINUX-23.10-0.5.5.0"}})
settings("NIC-DRIVER-MISMATCH", {"OFED is not there": {"ofed": None}})
settings("HOST-OS-LIB", {"torch is another release": {"torch": "2.5.1+cu124"}})
settings("HOST-OS-LIB", {"torch is another build": {"torch": "2.6.0+cu126", "cuda": "12.6"}})
settings("HOST-OS-LIB", {"torch was built for another CUDA": {"cuda": "12.1"}})
settings("HOST-OS-LIB", {"torch is not there": {"torch": None}, "Python is another": {"python": "3.10.12"}})
settings("HOST-NCCL-VERSION", {"NCCL is another": {"nccl": "2.23.4"}})
settings("HOST-MEMLOCK", {"little memory may be locked": {"uid": 1000, "capabilities": "0" * 16, "memlock": "8192"}})
settings("HOST-NOFILE", {"few files may be open": {"nofile": 1024}})
settings("HOST-SHM", {"shared memory is small": {"shm_kib": 65536}})
settings(
    "HOST-SMALLER", {"half of the CPUs are gone": {"cpus": 96}, "a memory module is gone": {"memory_kib": 990000000}}
)
settings("PCI-IOMMU-ON", {"the IOMMU translates": {"iommu": "DMA-FQ"}})
settings("HOST-TIME-SKEW", {"the clock is wrong": {"clock_skew_s": -31.0}})
settings("PROBE-SLOW-SSH", {"SSH is slow": {"round_trip_s": 7.5}})
settings("NIC-NO-UVERBS", {"the verbs devices cannot be opened": {"uverbs": "closed"}})
settings("NIC-BOND-DEGRADED", {"a member of the storage bond is down": {"bond_down": "stor1"}})
settings("NIC-LINK-DOWN", {"the front end has no link": {"front_up": False}})
settings("NET-FRONT-END-DIFFERS", {"the front end is slow": {"front_mbps": 1000}})
settings("NET-FRONT-END-DIFFERS", {"the front end has another MTU": {"front_mtu": 9000}}, lightest="I")
settings("HOST-NAME-LOOPBACK", {"the name resolves to the loopback": {"own_address": "127.0.1.1"}}, lightest="I")
settings("HOST-NCCL-CONF", {"NCCL is told which rails to take": {"environment": {"NCCL_IB_HCA": "mlx5_0"}}})
settings("HOST-NCCL-CONF", {"nccl.conf names an interface": {"nccl_conf": {"NCCL_SOCKET_IFNAME": "eth0"}}})
settings("HOST-NCCL-CONF", {"NCCL is told another algorithm": {"environment": {"NCCL_ALGO": "Ring"}}})
settings("HOST-NCCL-CONF", {"NVLink is switched off for NCCL": {"nccl_conf": {"NCCL_P2P_DISABLE": "1"}}})
settings("NET-SUBNET-CONFLICT", {"a container bridge hides a peer": {"bridges": {"docker0": "10.0.0.1/8"}}})
