"""GPUs that the job uses: all but display cards and much smaller ones, or those that hosts.yaml names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Finding, Host
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.facts.gpu.job_gpus import with_left_out
from prober.probe import inventory_of
from tests.builders.host_facts import gpu, gpus, nic, severities

GIB = 2**30
STATION = "\n".join(
    (
        "index, name, memory.total [MiB], pci.bus_id, mig.mode.current",
        *(f"{i}, NVIDIA A100-SXM4-80GB, 81920 MiB, 00000000:{i + 1}1:00.0, Disabled" for i in (0, 1, 2)),
        "3, NVIDIA DGX Display, 4096 MiB, 00000000:41:00.0, [N/A]",
        "4, NVIDIA A100-SXM4-80GB, 81920 MiB, 00000000:51:00.0, Enabled\n",
    )
)
QUERY = "nvidia-smi --query-gpu=index,name,memory.total,pci.bus_id,mig.mode.current --format=csv"


def station(stated: tuple[int, ...] | None, *more: Recorded) -> tuple[Host, dict[str, Finding]]:
    recording = HostRecording((Recorded(QUERY, STATION, 0), *more), HostNotes(gpus=stated))
    inventory = inventory_of({"a": recording})
    return inventory.hosts[0], {finding.rule: finding for finding in inventory.findings}


def used(cards: Sequence[Gpu], stated: tuple[int, ...] | None = None) -> list[int]:
    return [each.index for each in with_left_out(cards, stated) if each.left_out is None]


def test_a_display_card_is_left_out_by_itself_and_told() -> None:
    host, found = station(None)
    assert [each.index for each in host.for_job().gpus] == [0, 1, 2, 4]
    assert found["GPU-LEFT-OUT"].severity == "I"
    assert found["GPU-MIG-ENABLED"].severity == "F"


def test_gpus_of_hosts_yaml_leave_the_others_and_their_faults_out() -> None:
    fault = Recorded("dmesg | grep NVRM", "NVRM: Xid (PCI:0000:51:00): 79, GPU has fallen off the bus.\n", 0)
    assert station(None, fault)[1]["GPU-XID"].severity == "F"
    host, found = station((0, 1, 2), fault)
    assert [each.index for each in host.for_job().gpus] == [0, 1, 2]
    assert not found.keys() & {"GPU-MIG-ENABLED", "GPU-XID", "GPU-LEFT-OUT"}


def test_a_gpu_that_is_named_in_vain_refuses() -> None:
    _, found = station((0, 7))
    assert (found["GPU-LEFT-OUT"].severity, "names 7" in found["GPU-LEFT-OUT"].evidence) == ("F", True)


def test_a_lost_gpu_that_is_not_named_does_not_refuse_the_others() -> None:
    lost = Recorded("nvidia-smi", "Unable to determine the device handle for GPU5: 0000:61:00.0: Unknown Error\n", 0)
    assert station((0, 1, 2, 4), lost)[1].keys() & {"GPU-COUNT"} == set()
    assert station(None, lost)[1]["GPU-COUNT"].severity == "F"


def test_a_much_smaller_gpu_is_left_out_and_one_of_half_the_size_is_not() -> None:
    big = [gpu(index, name="NVIDIA A100 80GB PCIe", memory_bytes=80 * GIB) for index in range(2)]
    assert used([*big, gpu(2, name="Tesla T4", memory_bytes=15 * GIB)]) == [0, 1]
    assert used([*big, gpu(2, name="NVIDIA A40", memory_bytes=45 * GIB)]) == [0, 1, 2]
    assert used([*big, gpu(2, name="Tesla T4", memory_bytes=15 * GIB)], stated=(2,)) == [2]


def test_the_reason_names_the_largest_gpu() -> None:
    cards = [gpu(0, name="Tesla T4", memory_bytes=15 * GIB), gpu(1, name="NVIDIA L4", memory_bytes=23 * GIB)]
    (small, _, _) = with_left_out([*cards, gpu(2, name="NVIDIA H100 PCIe", memory_bytes=80 * GIB)], None)
    assert small.left_out == "it has less than a quarter of the memory of NVIDIA H100 PCIe"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("NVRM: Xid (PCI:0019:01:00): 79, GPU has fallen off the bus.", False),  # another domain, the same bus
        ("NVRM: Xid (PCI:0008:01:00): 79, GPU has fallen off the bus.", True),
        ("NVRM: GPU 00000008:01:00.0: RmInitAdapter failed!", True),
        ("NVRM: Xid (PCI:01:00): 79", True),
        ("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", True),  # a switch's
    ],
)
def test_lines_on_other_gpus_alone_are_left_out(line: str, kept: bool) -> None:
    cards = [gpu(at, pci_address=address) for at, address in enumerate(("0008:01:00.0", "0019:01:00.0"))]
    host = gpus(*with_left_out(cards, (0,)), gpus_stated=(0,), warnings=(line,))
    assert bool(host.for_job().warnings) is kept


def test_a_part_of_the_gpus_has_as_many_rails_and_no_fewer() -> None:
    ports = tuple(nic(f"mlx5_{at}", rail=at) for at in range(4))
    whole = gpus(*(gpu(at) for at in range(4)), nics=ports)
    others = [whole.model_copy(update={"name": name}) for name in "bc"]
    part = whole.model_copy(update={"gpus": with_left_out(whole.gpus, (0, 1, 2)), "gpus_stated": (0, 1, 2)})
    for count, severity in ((3, []), (2, ["W"])):
        named = tuple(nic(f"mlx5_{at}", rail=at if at < count else None, rail_why="x") for at in range(4))
        host = part.model_copy(update={"nics": named})
        assert severities("NIC-COUNT-DIFFERS", host, *others, one_cluster=True) == severity


def test_a_display_card_alone_is_used() -> None:
    assert used([gpu(name="NVIDIA T400 4GB"), gpu(1, name="NVIDIA T400 4GB")]) == [0, 1]


def test_the_plan_sees_the_gpus_of_the_job_alone() -> None:
    cards = with_left_out(
        [gpu(0, memory_bytes=80 * GIB), gpu(1, name="NVIDIA DGX Display", memory_bytes=4 * GIB)], None
    )
    host = gpus(*cards, gpu_count_lspci=2)
    assert ([each.index for each in host.for_job().gpus], host.for_job().gpu_count_lspci) == ([0], 1)


def test_gpus_in_hosts_yaml_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("gpus: [0, 1]\nhosts: [{name: a, gpus: [2]}, b]\n", encoding="utf-8")
    hosts = read_hosts_file(file)
    assert (hosts.gpus, [entry.gpus for entry in hosts.hosts]) == ((0, 1), [(2,), None])
    file.write_text("gpus: [-1]\nhosts: [a]\n", encoding="utf-8")
    with pytest.raises(HolmesError):
        read_hosts_file(file)
