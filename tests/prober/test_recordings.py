"""Recordings of real machines; each folder's expected.json is its right reading."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holmes_core.records.inventory import Host
from prober.asking.recording import HostNotes, Recorded
from prober.findings.tool_findings import tool_findings
from prober.read_host import read_host

COPIES = Path(__file__).parents[1] / "data" / "probe"
SHARED = Path(__file__).parents[3] / "shared" / "probe-samples"
COMPARED = ("device", "port", "kind", "rate_gbps", "state", "phys_state", "netdev", "usable_by_nccl_ib")
OF_GPUS = ("index", "name", "mig", "mig_devices", "nvlinks_up", "nvlinks_total")


def scenarios() -> list[Path]:
    """The folders with an expected.json, here and, where they are, among the shared samples."""
    folders = [folder for place in (COPIES, SHARED) if place.is_dir() for folder in sorted(place.iterdir())]
    return [each for each in folders if (each / "expected.json").exists()]


def expected(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def recorded(folder: Path) -> tuple[Recorded, ...]:
    return tuple(
        Recorded(about["command"], (folder / file).read_bytes().decode(errors="replace"), about["exit_code"])
        for file, about in expected(folder)["files"].items()
    )


def read(outputs: Iterable[Recorded]) -> Host:
    return read_host("host", tuple(outputs), HostNotes())


def with_scenarios(*keys: str) -> pytest.MarkDecorator:
    """One case a scenario whose expected.json has one of the keys."""
    chosen = [folder for folder in scenarios() if set(keys) & set(expected(folder))]
    return pytest.mark.parametrize("folder", chosen, ids=lambda folder: f"{folder.parent.name}/{folder.name}")


@with_scenarios("nics")
def test_nics_are_those_of_the_machine(folder: Path) -> None:
    """A null of a reading without reasons is not compared; `more_nics`: others may be there."""
    wanted = {(nic["device"], nic["port"]): nic for nic in expected(folder)["nics"]}
    seen = {(nic.device, nic.port): nic.model_dump() for nic in read(recorded(folder)).nics}
    assert set(wanted) <= set(seen)
    assert set(seen) <= set(wanted) or expected(folder).get("more_nics")
    for port, nic in wanted.items():
        keys = [key for key in COMPARED if nic["why"] or nic[key] is not None]
        assert {key: seen[port][key] for key in keys} == {key: nic[key] for key in keys}


@with_scenarios("gpus")
def test_gpus_are_those_of_the_machine(folder: Path) -> None:
    gpus = {gpu.index: gpu.model_dump() for gpu in read(recorded(folder)).gpus}
    wanted = expected(folder)["gpus"]
    assert sorted(gpus) == [gpu["index"] for gpu in wanted]
    for gpu in wanted:
        assert {key: gpus[gpu["index"]][key] for key in OF_GPUS if key in gpu} == {
            key: gpu[key] for key in OF_GPUS if key in gpu
        }


@with_scenarios("gid_choice")
def test_gid_choice_is_the_roce_v2_ipv4_entry(folder: Path) -> None:
    nics = read(recorded(folder)).nics
    chosen = {nic.hca: nic.gid_choice for nic in nics if nic.gid_choice is not None}
    assert chosen == expected(folder)["gid_choice"]


@with_scenarios(
    "gpu_count", "driver", "modules", "firmware", "pci", "trust", "nearest_nic", "numa", "gpu_nic_pairs", "netdevs"
)
def test_other_facts_of_a_scenario(folder: Path) -> None:
    data, host = expected(folder), read(recorded(folder))
    if "gpu_count" in data:
        assert len(host.gpus) == data["gpu_count"]
    if "modules" in data:
        assert {name: name in (host.kernel_modules or ()) for name in data["modules"]} == data["modules"]
    if "firmware" in data:
        (netdev,) = host.netdevs
        assert (netdev.driver, netdev.firmware, netdev.pci_address) == (data["driver"], data["firmware"], data["pci"])
    elif "driver" in data:
        assert host.gpu_driver_version == data["driver"]
    if "trust" in data:
        trusts = {(netdev.trust, netdev.pfc_enabled_priorities) for netdev in host.netdevs if netdev.trust is not None}
        assert trusts == {(data["trust"], tuple(data["pfc_enabled_priorities"]))}
    if "nearest_nic" in data:
        assert {f"GPU{gpu.index}": list(gpu.nearest_nics) for gpu in host.gpus} == data["nearest_nic"]
        assert {f"GPU{gpu.index}": gpu.numa_node for gpu in host.gpus} == data["numa"]
    if "gpu_nic_pairs" in data:
        pairs = [[(gpu.pci_address or "")[5:], *(nic[5:] for nic in gpu.nearest_nics)] for gpu in host.gpus]
        assert pairs == data["gpu_nic_pairs"]
    if "netdevs" in data:
        assert [netdev.name for netdev in host.netdevs] == data["netdevs"]
        assert {netdev.kind for netdev in host.netdevs} == {"ipoib"}


@with_scenarios("counters", "pkeys", "addresses", "sm_guids")
def test_tables_of_a_scenario(folder: Path) -> None:
    data, host = expected(folder), read(recorded(folder))
    if "counters" in data:
        assert {nic.hca: dict(nic.counters) for nic in host.nics if nic.counters} == data["counters"]
    if "pkeys" in data:
        assert {nic.hca: list(nic.pkeys) for nic in host.nics if nic.pkeys} == data["pkeys"]
    if "sm_guids" in data:
        assert {nic.hca: nic.sm_guid for nic in host.nics if nic.sm_guid} == data["sm_guids"]
    if "addresses" in data:
        assert {netdev.name: list(netdev.addresses) for netdev in host.netdevs} == data["addresses"]


def test_gpus_and_their_nics_on_a_machine_with_switches_are_one_switch_apart() -> None:
    host = read(recorded(COPIES / "h100-xe9680-lspci-vvv"))
    assert {gpu.nearest_path for gpu in host.gpus} == {"PIX"}
    assert {gpu.numa_node for gpu in host.gpus} == {0, 1}
    on_the_way = {address for gpu in host.gpus for address in (gpu.pci_address, *gpu.nearest_nics)}
    links = [device.link for device in host.pci if device.address in on_the_way]
    assert {(link.speed_gts, link.width, link.max_speed_gts, link.max_width) for link in links} == {(32, 16, 32, 16)}
    bridges = {device.parent for device in host.pci if device.address in on_the_way}
    assert {device.acs_redirects for device in host.pci if device.address in bridges} == {False}


def test_sources_of_one_host_agree() -> None:
    host = read(recorded(COPIES / "cx7-at-hdr-one-port"))
    assert host.conflicts == ()


def test_a_conflict_names_both_sources_and_keeps_the_first() -> None:
    host = read(recorded(COPIES / "efa-ibv-devinfo-old-rdma-core"))
    (conflict,) = host.conflicts
    assert conflict.model_dump() == {
        "subject": "efa_0:1",
        "fact": "link_layer",
        "source_a": "sysfs",
        "value_a": "Unknown",
        "source_b": "ibv_devinfo",
        "value_b": "InfiniBand",
    }


@pytest.mark.parametrize(
    ("scenario", "rules"),
    [
        ("azure-ibstat-only-panic", ["PROBE-TOOL-FAILED"]),
        ("driver-library-mismatch", []),
        ("h100-mig", []),
        ("cx6dx-mlxlink", []),
    ],
)
def test_tools_that_failed_are_told(scenario: str, rules: list[str]) -> None:
    assert [finding.rule for finding in tool_findings("host", recorded(COPIES / scenario))] == rules


FUZZED = [folder for folder in scenarios() if folder.parent == COPIES]


def assert_nothing_is_invented(outputs: tuple[Recorded, ...]) -> None:
    host = read(outputs)
    tool_findings("host", outputs)
    text = "".join(output.text + output.command for output in outputs)
    for name in (*(nic.device for nic in host.nics), *(netdev.name for netdev in host.netdevs)):
        assert name in text


@settings(suppress_health_check=list(HealthCheck))
@given(folder=st.sampled_from(FUZZED), seed=st.integers(0, 2**32))
def test_outputs_cut_anywhere_invent_nothing(folder: Path, seed: int) -> None:
    choose = random.Random(seed)
    outputs = tuple(
        Recorded(output.command, output.text[: choose.randint(0, min(len(output.text), 20000))], output.exit_code)
        for output in recorded(folder)
    )
    assert_nothing_is_invented(outputs)


@settings(suppress_health_check=list(HealthCheck))
@given(folder=st.sampled_from(FUZZED), seed=st.integers(0, 2**32))
def test_outputs_without_some_lines_invent_nothing(folder: Path, seed: int) -> None:
    choose = random.Random(seed)
    outputs = tuple(
        Recorded(
            output.command,
            "".join(line for line in output.text[:20000].splitlines(keepends=True) if choose.random() > 0.2),
            output.exit_code,
        )
        for output in recorded(folder)
    )
    assert_nothing_is_invented(outputs)


@settings(suppress_health_check=list(HealthCheck))
@given(folder=st.sampled_from(FUZZED), seed=st.integers(0, 2**32))
def test_outputs_with_flipped_bytes_never_crash(folder: Path, seed: int) -> None:
    choose = random.Random(seed)
    outputs = tuple(Recorded(o.command, _flipped(o.text[:20000], choose), o.exit_code) for o in recorded(folder))
    assert_nothing_is_invented(outputs)


def _flipped(text: str, choose: random.Random) -> str:
    data = bytearray(text.encode())
    for _ in range(min(20, len(data))):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return data.decode(errors="replace")
