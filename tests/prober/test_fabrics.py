"""Fabrics other than InfiniBand and RoCE, and accelerators of other makers, from recordings to clusters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.inventory import Host, Inventory, LibfabricDomain, OfiPlugin
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.fabrics.clusters import find_clusters
from prober.fabrics.nvlink_domains import clique_of
from prober.facts.machine.nccl_plugins import PLUGINS
from prober.probe import inventory_of
from prober.rails.choose_rails import WITH_PLUGIN, with_rails
from prober.rails.efa import efa_rails
from prober.rails.stated_rails import stated_rail_findings
from prober.read_host import read_host
from tests.builders.host_facts import audited, gpu, host, netdev, nic, severities
from tests.prober.test_recordings import COPIES, expected, read, recorded

ADAPTERS = ("rdmap16s27", "rdmap32s27")
PLUGIN = OfiPlugin(path="/opt/amazon/ofi-nccl/lib/libnccl-net.so", version="1.17.1")


def with_key(key: str) -> pytest.MarkDecorator:
    """One case a recording whose expected.json has the key."""
    folders = sorted(path.parent for path in COPIES.glob("*/expected.json") if key in expected(path.parent))
    return pytest.mark.parametrize("folder", folders, ids=lambda folder: folder.name)


@with_key("libfabric")
def test_libfabric_lists_each_device_once(folder: Path) -> None:
    found = read(recorded(folder)).libfabric
    assert [[domain.provider, domain.device] for domain in found or ()] == expected(folder)["libfabric"]


@with_key("ofi_plugins")
def test_a_plugin_has_its_version_and_the_name_that_nccl_gives_its_network(folder: Path) -> None:
    found = read(recorded(folder)).ofi_plugins
    assert [[each.path, each.version, each.net_name] for each in found or ()] == expected(folder)["ofi_plugins"]


@with_key("other_accelerators")
def test_accelerators_of_other_makers_have_their_names(folder: Path) -> None:
    assert list(read(recorded(folder)).other_accelerators) == expected(folder)["other_accelerators"]


@with_key("nvlink")
def test_the_nvlink_clique_is_that_of_all_gpus(folder: Path) -> None:
    found = clique_of(read(recorded(folder)))
    assert (list(found) if found else None) == expected(folder)["nvlink"]


@pytest.mark.parametrize(
    ("version", "name"),
    [("1.9.1-aws", "AWS Libfabric"), ("1.11.0", "AWS Libfabric"), ("1.12.0", "Libfabric"), (None, "Libfabric")],
)
def test_nccl_s_name_of_the_plugin_s_network_changed_after_version_1_11(version: str | None, name: str) -> None:
    assert OfiPlugin(path="/x", version=version).net_name == name


def test_nobody_looked_for_plugins_and_none_found_are_told_apart() -> None:
    asked = Recorded("grep -aoHsE 'aws-ofi-nccl [0-9]+' /usr/lib/libnccl-net*.so", "", 2)
    assert (read([]).ofi_plugins, read([asked]).ofi_plugins) == (None, ())


def test_one_search_tells_all_plugins_and_the_version_of_aws_ofi_nccl(tmp_path: Path) -> None:
    """The real shell text on real files; and listing its folder alone does not look into it."""
    (tmp_path / "libnccl-net-other.so").write_bytes(b"\x7fELF\0 another plugin")
    (tmp_path / "libnccl-net.so").write_bytes(b"\x7fELF\0\0Initializing aws-ofi-nccl 1.14.0\0\n")
    answer = subprocess.run(
        ["sh", "-c", PLUGINS.shell],
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    host = read([Recorded(PLUGINS.shown or "", answer.stdout, answer.returncode)])
    mine = [path for path in host.nccl_net_plugins or () if path.startswith(str(tmp_path))]
    assert mine == [f"{tmp_path}/libnccl-net-other.so", f"{tmp_path}/libnccl-net.so"]
    assert OfiPlugin(path=f"{tmp_path}/libnccl-net.so", version="1.14.0") in (host.ofi_plugins or ())
    assert read([Recorded("ls /opt/aws-ofi-nccl/lib", "libnccl-net.so\n", 0)]).ofi_plugins is None


def test_a_plugin_built_from_sources_has_no_version() -> None:
    text = "/usr/lib/libnccl-net.so:aws-ofi-nccl git-6e504db\n"
    (plugin,) = read([Recorded("grep -aoHsE 'aws-ofi-nccl [0-9]+' /usr/lib/libnccl-net.so", text, 0)]).ofi_plugins or ()
    assert plugin.version is None


def test_a_rate_stated_in_hosts_yaml_is_that_of_the_adapter() -> None:
    outputs = recorded(COPIES / "efa-p5-ibv-devinfo")
    nics = read_host("host", outputs, HostNotes(speeds_gbps={"rdmap85s0": 200})).nics
    assert [port.rate_gbps for port in nics] == [200, None, None, None]


def efa_host(name: str, address: str, **facts: Any) -> Host:
    """A host with two EFA adapters of 100 Gbit/s, its plugin, and one interface."""
    ports = tuple(nic(device, "EFA", rate_gbps=100.0, usable_by_nccl_ib=False) for device in ADAPTERS)
    known: dict[str, Any] = {"ofi_plugins": (PLUGIN,), "nics": ports, "netdevs": (netdev("ens32", address),)}
    return host(name, **(known | facts))


def clusters(*hosts: Host) -> dict[str, tuple[str, ...]]:
    return {cluster.name: cluster.hosts for cluster in find_clusters(hosts, {})[0]}


def test_efa_hosts_of_one_subnet_are_one_cluster_and_of_two_subnets_two() -> None:
    a, b, c = efa_host("a", "10.0.1.1/24"), efa_host("b", "10.0.1.2/24"), efa_host("c", "10.0.2.1/24")
    assert clusters(a, b, c) == {"efa-1": ("a", "b"), "efa-2": ("c",)}


def test_an_efa_host_without_the_plugin_is_an_ethernet_cluster_and_shares_its_subnet_without_a_conflict() -> None:
    a, b = efa_host("a", "10.0.1.1/24"), efa_host("b", "10.0.1.2/24", ofi_plugins=())
    assert clusters(a, b) == {"efa-1": ("a",), "eth-1": ("b",)}
    assert severities("NET-SUBNET-CONFLICT", a, b) == []
    assert severities("NIC-EFA-NEEDS-PLUGIN", a, b) == ["F"]


def test_plugins_that_nccl_names_differently_are_two_clusters() -> None:
    old = PLUGIN.model_copy(update={"version": "1.9.1"})
    assert clusters(efa_host("a", "10.0.1.1/24"), efa_host("b", "10.0.1.2/24", ofi_plugins=(old,))) == {
        "efa-1": ("a",),
        "efa-2": ("b",),
    }


def test_a_port_of_an_efa_fabric_has_adapters_their_rate_and_the_library() -> None:
    (cluster,), _ = find_clusters([efa_host("a", "10.0.1.1/24")], {})
    (port,) = cluster.fabric.ports
    assert (cluster.fabric.kind, cluster.fabric.net_name) == ("EFA", "Libfabric")
    assert port.hcas == tuple(f"{device}:1" for device in ADAPTERS)
    assert (port.rdma_bandwidth_bytes_per_s, port.net_plugin) == (25e9, PLUGIN.path)


def test_adapters_are_numbered_as_rails_and_hosts_yaml_may_name_some() -> None:
    machine = efa_host("a", "10.0.1.1/24")
    assert [(port.rail, port.rail_why) for port in with_rails(machine).nics] == [(0, WITH_PLUGIN), (1, WITH_PLUGIN)]
    named = with_rails(machine, [ADAPTERS[1]])
    assert [port.rail for port in named.nics] == [None, 0]
    assert list(stated_rail_findings(named, [ADAPTERS[1]])) == []
    without = with_rails(efa_host("a", "10.0.1.1/24", ofi_plugins=()))
    assert {port.rail for port in without.nics} == {None}


def test_an_adapter_that_libfabric_does_not_list_is_no_rail() -> None:
    listed = (LibfabricDomain(provider="efa", device=ADAPTERS[0]),)
    machine = efa_host("a", "10.0.1.1/24", libfabric=listed)
    assert [port.device for port in efa_rails(machine)] == [ADAPTERS[0]]
    assert severities("EFA-NOT-IN-LIBFABRIC", machine) == ["W"]


def test_adapters_are_numbered_rails_and_hosts_yaml_may_name_some_of_them() -> None:
    machine = efa_host("a", "10.0.1.1/24")
    assert [(port.device, port.rail) for port in with_rails(machine).nics] == list(zip(ADAPTERS, (0, 1), strict=True))
    assert [port.rail for port in with_rails(machine, ADAPTERS[1:]).nics] == [None, 0]
    assert [port.rail for port in with_rails(efa_host("b", "10.0.1.2/24", ofi_plugins=())).nics] == [None, None]


def test_adapters_need_no_peer_memory_module() -> None:
    machine = efa_host("a", "10.0.1.1/24", gpus=(gpu(),), peermem=False, open_gpu_driver=False)
    assert severities("GDR-NO-PEERMEM", machine) == []


TRAY = recorded(COPIES / "gb200-nvl72-tray")


def trays(**imex: str | None) -> Inventory:
    """Trays of one rack by name, each with the state of its IMEX service; None: it was not asked for."""
    return inventory_of(
        {
            name: HostRecording(
                (*TRAY, *([Recorded("systemctl is-active nvidia-imex", f"{state}\n", 0)] if state else []))
            )
            for name, state in imex.items()
        }
    )


def test_trays_of_one_clique_are_one_nvlink_domain() -> None:
    (domain,) = trays(a=None, b=None).nvlink_domains
    assert (domain.name, domain.hosts, domain.clique) == ("nvlink-1", ("a", "b"), 4026)


def test_one_tray_alone_is_no_domain() -> None:
    assert trays(a=None).nvlink_domains == ()


def rules(inventory: Inventory) -> set[str]:
    return {finding.rule for finding in inventory.findings if finding.rule.startswith("NVLINK")}


def test_trays_whose_imex_is_not_known_are_told_about() -> None:
    assert "NVLINK-IMEX-NOT-KNOWN" in rules(trays(a=None, b=None))


def test_gpus_whose_fabric_is_not_completed_are_in_no_clique() -> None:
    facts = {"nvlink_cluster": "9c6f", "nvlink_clique": 1}
    ready, waiting = gpu(0, fabric_state="Completed", **facts), gpu(1, fabric_state="In Progress", **facts)
    assert clique_of(host(gpus=(ready,))) == ("9c6f", 1)
    assert clique_of(host(gpus=(ready, waiting))) is None


def test_a_host_of_another_maker_is_not_told_to_load_a_driver() -> None:
    amd = host(other_accelerators=("AMD Instinct MI300X",) * 8, kernel_modules=(), kernel_modules_complete=True)
    found = [finding for finding in audited(amd) if finding.rule.startswith("GPU-")]
    assert [(finding.rule, finding.severity, finding.evidence) for finding in found] == [
        ("GPU-NOT-SUPPORTED", "W", "8 x AMD Instinct MI300X")
    ]


def test_an_integrated_graphics_unit_beside_nvidia_gpus_is_nobody_s_business() -> None:
    assert severities("GPU-NOT-SUPPORTED", host(other_accelerators=("AMD Radeon Graphics",), gpus=(gpu(),))) == []


@pytest.mark.parametrize(("lid", "known"), [(0x12345, 0x12345), (0x1000000, None)])
def test_lids_of_omni_path_have_24_bits(lid: int, known: int | None) -> None:
    head = "hfi1_0:1      PortGID:0xfe80000000000000:0011750101095a2b\n   PortState:     Active\n"
    text = f"{head}   LID: 0x{lid:08x}-0x{lid:08x}       SM LID: 0x00010001 SL: 0 \n"
    found = read_host("a", (Recorded("opainfo", text, 0),), HostNotes())
    assert [(port.kind, port.lid, port.sm_lid) for port in found.nics] == [("Omni-Path", known, 0x10001)]
    assert [each.fact for each in found.impossible] == ([] if known else ["lid"])
    ib = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tBase lid: 74565\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\n"
    assert [each.fact for each in read_host("a", (Recorded("ibstat", ib, 0),), HostNotes()).impossible] == ["lid"]
