"""Parsers against recorded outputs of real machines; each folder's expected.json is its right reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.inventory import Nic
from prober.facts import gpus, netdevs, rdma_ports, software
from prober.facts.question import NOTHING, Command, Output, cut, script

RECORDINGS = Path(__file__).parent.parent / "data" / "probe"
PARSERS = {"sysfs_infiniband.txt": rdma_ports.parse_sysfs, "ibstat.txt": rdma_ports.parse_ibstat}
WITH_PORTS = sorted(folder.name for folder in RECORDINGS.iterdir() if (folder / "ibstat.txt").exists())
COMPARED = ("device", "port", "kind", "rate_gbps", "state", "phys_state", "usable_by_nccl_ib")


def recorded(scenario: str, file: str) -> Output:
    return Output((RECORDINGS / scenario / file).read_text(encoding="utf-8"), 0)


def nics_of(scenario: str) -> tuple[Nic, ...]:
    present = [file for file in PARSERS if (RECORDINGS / scenario / file).exists()]
    return rdma_ports.merge(PARSERS[file](recorded(scenario, file)) for file in present)


def expected_nics(scenario: str) -> list[dict[str, Any]]:
    data = json.loads((RECORDINGS / scenario / "expected.json").read_text(encoding="utf-8"))
    return list(data["nics"])


@pytest.mark.parametrize("scenario", WITH_PORTS)
def test_ports_of_a_recorded_machine_are_read_right(scenario: str) -> None:
    seen = {(nic.device, nic.port): nic.model_dump() for nic in nics_of(scenario)}
    expected = expected_nics(scenario)
    assert sorted(seen) == sorted((nic["device"], nic["port"]) for nic in expected)
    for nic in expected:
        found = seen[nic["device"], nic["port"]]
        assert {key: found[key] for key in COMPARED} == {key: nic[key] for key in COMPARED}


def test_sysfs_alone_reads_the_same_ports_as_ibstat() -> None:
    scenario = "h100-ndr-8rail-bf3-bond"
    from_sysfs = rdma_ports.merge([rdma_ports.parse_sysfs(recorded(scenario, "sysfs_infiniband.txt"))])
    from_ibstat = rdma_ports.merge([rdma_ports.parse_ibstat(recorded(scenario, "ibstat.txt"))])
    compared = set(COMPARED)
    assert [nic.model_dump(include=compared) for nic in from_sysfs] == [
        nic.model_dump(include=compared) for nic in from_ibstat
    ]


def test_devices_are_ordered_by_number_not_as_text() -> None:
    devices = [nic.device for nic in nics_of("h100-roce-400g-8rail")]
    assert devices == [f"mlx5_{number}" for number in range(12)]


def test_first_source_wins_and_later_ones_fill_gaps() -> None:
    sysfs = (rdma_ports.PortFacts("mlx5_0", 1, link_layer="InfiniBand", state="Active"),)
    ibstat = (rdma_ports.PortFacts("mlx5_0", 1, link_layer="Ethernet", state="Down", rate_gbps=200.0),)
    (nic,) = rdma_ports.merge([sysfs, ibstat])
    assert (nic.kind, nic.state, nic.rate_gbps) == ("InfiniBand", "Active", 200.0)


@given(cut_at=st.integers(min_value=0, max_value=4225))
def test_ibstat_cut_anywhere_gives_only_ports_and_facts_that_are_there(cut_at: int) -> None:
    text = recorded("h100-roce-400g-8rail", "ibstat.txt").text[:cut_at]
    whole = {nic["device"] for nic in expected_nics("h100-roce-400g-8rail")}
    for nic in rdma_ports.merge([rdma_ports.parse_ibstat(Output(text, None))]):
        assert nic.device in whole
        assert nic.rate_gbps is None or str(int(nic.rate_gbps)) in text


@given(text=st.text(max_size=400))
def test_parsers_never_crash_on_foreign_text(text: str) -> None:
    output = Output(text, 1)
    for parse in (rdma_ports.parse_sysfs, rdma_ports.parse_ibstat, rdma_ports.parse_ibdev2netdev):
        rdma_ports.merge([parse(output)])
    gpus.parse_query(output)
    netdevs.parse_addresses(output, netdevs.parse_speeds(output), {})
    netdevs.parse_default_route(output)
    software.parse_software(output)


def test_ibdev2netdev_names_the_netdev_whether_up_or_down() -> None:
    text = "mlx5_0 port 1 ==> ens4f0 (Down)\nmlx5_5 port 1 ==> ib0 (Up)\n"
    ports = rdma_ports.parse_ibdev2netdev(Output(text, 0))
    assert [(port.device, port.port, port.netdev) for port in ports] == [("mlx5_0", 1, "ens4f0"), ("mlx5_5", 1, "ib0")]


def test_gpu_rows_are_read_and_warnings_left_out() -> None:
    text = "WARNING: infoROM is corrupted\n0, NVIDIA L40S, GPU-0, 46068, 00000000:01:00.0\n1, X, [N/A], [N/A], [N/A]\n"
    first, second = gpus.parse_query(Output(text, 0))
    assert (first.name, first.memory_bytes) == ("NVIDIA L40S", 46068 * 1024**2)
    assert (second.uuid, second.memory_bytes, second.pci_address) == (None, None, None)


def test_ethtool_speed_is_bytes_per_second() -> None:
    text = "== enp1s0\n" + recorded("ethtool-40g-fibre", "ethtool.txt").text + "\n== ib0\n\tSpeed: Unknown!\n"
    assert netdevs.parse_speeds(Output(text, 0)) == {"enp1s0": 5e9}


IP_ADDR = """[{"ifname":"lo","flags":["LOOPBACK","UP"],"mtu":65536,"addr_info":[{"family":"inet","local":"127.0.0.1",
"prefixlen":8}]},{"ifname":"eth0","flags":["UP","LOWER_UP"],"mtu":1500,"addr_info":[{"family":"inet6","local":"fe80::1",
"prefixlen":64},{"family":"inet","local":"10.9.0.1","prefixlen":24}]},{"ifname":"eth1","flags":["NO-CARRIER","UP"]}]"""


def test_netdevs_have_ipv4_addresses_and_the_pinned_speed_wins() -> None:
    lo, eth0, eth1 = netdevs.parse_addresses(Output(IP_ADDR, 0), {"eth0": 1.25e9, "eth1": 1.0}, {"eth0": 25})
    assert (lo.addresses, lo.speed_bytes_per_s) == (("127.0.0.1/8",), None)
    assert (eth0.addresses, eth0.speed_bytes_per_s, eth0.up) == (("10.9.0.1/24",), 3.125e9, True)
    assert not eth1.up


def test_software_without_torch_is_known_to_lack_it() -> None:
    assert software.parse_software(Output("python 3.11.7\n", 0)).torch is None
    assert software.parse_software(Output("python 3.11.7\ntorch 2.13.0+cpu\n", 0)).torch == "2.13.0+cpu"
    assert software.parse_software(NOTHING).python is None


def test_answer_is_cut_where_the_script_marked_it() -> None:
    answer = "@@t begin a\nline\n\n@@t end a 0\n@@t begin b\nsh: no such tool\n\n@@t end b 127\n@@t begin c\nhalf"
    outputs = cut("banner\n" + answer, "@@t")
    assert outputs["a"] == Output("line\n", 0)
    assert outputs["b"].tool_missing
    assert outputs["c"] == Output("half", None)


def test_script_runs_every_command_whatever_the_others_do() -> None:
    import subprocess

    commands = (Command("fails", "exit 3"), Command("reads", "cat"), Command("works", "echo out; echo err >&2"))
    text = script(commands, "@@token")
    answer = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=True).stdout
    outputs = cut(answer, "@@token")
    assert outputs["fails"].exit_code == 3
    assert outputs["reads"] == Output("", 0)
    assert outputs["works"] == Output("out\nerr\n", 0)
