"""A recording to give away: the same inventory under other names, and nothing in it tells whose it is."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holmes_core.hosts.hosts_file import StatedTrunk
from holmes_core.records.access import Access
from holmes_core.records.inventory import Finding, Hints, Inventory
from holmes_core.records.link import Security
from prober.anonymize import anonymize, anonymous_hosts
from prober.asking.anonymous_addresses import AnonymousAddresses
from prober.asking.anonymous_text import AnonymousText
from prober.asking.recording import (
    HostNotes,
    HostRecording,
    Recorded,
    read_site,
    write_recording,
    write_site,
)
from prober.probe import inventory_of, replay
from tests.prober.fleet_machine import recording
from tests.prober.planted_fleet import FLEETS, Fleet, MachineKind
from tests.prober.test_recordings import COPIES, SHARED, expected
from tests.seeds import few_of

KEY = b"a key of this test"
SAMPLES = [
    folder
    for place in (COPIES, SHARED)
    if place.is_dir()
    for folder in sorted(place.iterdir())
    if (folder / "expected.json").exists()
]
FEW = 8  # one in so many samples is read in the default layer
Outputs = dict[str, list[Recorded]]


def outputs_of(folder: Path) -> Outputs:
    found: Outputs = {}
    for file, about in expected(folder)["files"].items():
        text = (folder / file).read_bytes().decode(errors="replace")
        found.setdefault(about.get("host", "falcon-07"), []).append(
            Recorded(about["command"], text, about["exit_code"])
        )
    return found


def given_away(tmp_path: Path, outputs: Outputs, notes: HostNotes | None = None) -> tuple[Inventory, str]:
    """The inventory of an anonymous copy, and all that the copy's folder holds."""
    for name, of_host in outputs.items():
        write_recording(tmp_path / "own", name, of_host, notes)
    anonymize(tmp_path / "own", tmp_path / "shared")
    files = sorted(file for file in (tmp_path / "shared").rglob("*") if file.is_file())
    text = "\n".join(f"{file.relative_to(tmp_path / 'shared')}\n{file.read_text(encoding='utf-8')}" for file in files)
    return replay(tmp_path / "shared"), text


def facts(text: str) -> Any:
    """An inventory's facts, lists in an order of their own: that of addresses changes."""
    data = json.loads(text)
    data["findings"] = [{key: each[key] for key in ("rule", "severity", "hosts")} for each in data["findings"]]
    for host in data["hosts"]:
        del host["sources"]
    return in_order({key: value for key, value in data.items() if key != "digest"})


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(map(in_order, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def networks(interfaces: Iterable[str]) -> list[str]:
    return [str(ipaddress.ip_interface(each).network) for each in interfaces]


def secrets_of(inventory: Inventory, outputs: Outputs) -> set[str]:
    """Every name, address, GUID, UUID and serial of the hosts, found without what replaces them."""
    found = set(outputs)
    for host in inventory.hosts:
        found |= {str(host.hostname), str(host.boot_id), *(str(gpu.uuid) for gpu in host.gpus)}
        for netdev in host.netdevs:
            found.add(str(netdev.mac))
            found |= {each.partition("/")[0] for each in (*netdev.addresses, *netdev.ipv6_addresses)}
        for nic in host.nics:
            found |= {str(each) for each in (nic.node_guid, nic.port_guid, nic.sm_guid)}
            found |= {gid.gid for gid in nic.gids}
    text = "\n".join(output.text for of_host in outputs.values() for output in of_host)
    found |= set(re.findall(r"(?i)serial number\s*:\s*(\w*\d\w{5,})", text))
    found |= set(re.findall(r"(?<![\w.-])(?:10|172|192)(?:\.[1-9]?\d|\.[12]\d\d){3}(?![\w.])", text))
    return {each.casefold() for each in found if not public_knowledge(each)}


def public_knowledge(text: str) -> bool:
    """It names nobody: no value, zeros, or an address that every host may have."""
    if text in ("None", "", "localhost") or set(text.removeprefix("GPU-")) <= set("0fe:-."):
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    small = address.version == 6 and int(address) & ((1 << 64) - 1) <= 0xFFFE << 24
    return bool(small or mapped.is_loopback or str(mapped).startswith(("0.", "169.254.", "198.18.", "255.")))


@pytest.mark.parametrize(
    "folder",
    [pytest.param(each, marks=[pytest.mark.slow] * bool(at % FEW)) for at, each in enumerate(SAMPLES)],
    ids=lambda folder: f"{folder.parent.name}/{folder.name}",
)
def test_a_sample_gives_the_same_inventory_and_tells_no_name(folder: Path) -> None:
    assert_same_without_names(outputs_of(folder))


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(kinds, id=name, marks=[pytest.mark.slow] * (" and " not in name)) for name, kinds in FLEETS.items()],
)
def test_a_fleet_gives_the_same_inventory_and_tells_no_name(kinds: tuple[MachineKind, ...]) -> None:
    fleet = Fleet(kinds, 2)
    machines = [fleet.machine(number) for number in range(fleet.hosts)]
    assert_same_without_names({machine.name: list(recording(machine).outputs) for machine in machines})


def assert_same_without_names(outputs: Outputs) -> None:
    recorded = {name: HostRecording(tuple(of_host)) for name, of_host in outputs.items()}
    anonymous = AnonymousText(KEY)
    copied, own = anonymous_hosts(recorded, anonymous), inventory_of(recorded)
    assert facts(inventory_of(copied).to_json()) == facts(anonymous.text(own.to_json()))
    text = "\n".join(
        f"{name} {each.command} {each.text}" for name, of_host in copied.items() for each in of_host.outputs
    )
    folded = text.casefold()
    bare = re.sub("[:-]", "", folded)
    secrets = secrets_of(own, outputs)
    digits = [each.replace(":", "") for each in secrets if re.fullmatch("[0-9a-f:]{17,}", each)]
    words = [each for each in secrets if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", folded)]
    assert words + [each for each in digits if each in bare] == []


SITE = {
    "falcon-01.hpc.example.edu": [
        Recorded("uname -n", "vm\n", 0),
        Recorded("getent ahosts vm", "127.0.0.1       STREAM vm\n", 0),
        Recorded("alice@falcon-01:~$ uname -a", "Linux falcon-01.hpc.example.edu 6.8.0-57-generic #59 x86_64\n", 0),
        Recorded("ssh bob@falcon-01 'env'", "NCCL_TOPO_FILE=/lustre/moonshot/topo.xml\nHF_TOKEN=hf_abcdef\n", 0),
        Recorded("cat /etc/shadow", "root:$6$secret:1::::::\n", 0),
        Recorded(
            "nvidia-smi -q",
            "    Serial Number  : 1654422012345\n    GPU UUID : GPU-8a5c3f1e-1111-2222-3333-444455556666\n",
            0,
        ),
        Recorded("nvidia-smi --query-gpu=index,serial --format=csv", "index, serial\n0, 1654422012346\n", 0),
        Recorded("lspci -vvv", "\t\t[SN] Serial number: MT2242X12345\n", 0),
        Recorded("lspci -vv", "\tCapabilities: Device Serial Number 94-6d-ae-ff-ff-a1-b2-c4\n", 0),
        Recorded("nvidia-smi", "|    0   N/A  N/A   4242      C   ...ce/moonshot/train    900MiB |\n", 0),
        Recorded("pdsh -w falcon-0[1-2] ibstat", "falcon-01: CA 'mlx5_0'\nfalcon-02: CA 'mlx5_0'\n", 0),
        Recorded("/home/alice/venv/bin/python -c 'import torch'", "/home/alice/venv/bin/python: not found\n", 127),
        Recorded("dmesg", "nfs: falcon-02.hpc.example.edu at 2001:db8:7:1::5 is gone, 946daea1b2c4\n", 0),
        Recorded("ip addr show", "2: ib0: <UP> mtu 4092\n    link/infiniband 00:00:10:29:fe:80:00:00:00:00:00:00:94:6d:"
                 "ae:03:00:a1:b2:c4 brd x\n    inet 10.65.3.2/20 brd 10.65.15.255 scope global ib0\n", 0),
        Recorded("ip route show", "10.65.0.0/20 dev ib0 proto kernel src 10.65.3.2\n", 0),
        Recorded("ip link show", "3: enx946daea1b2c4: <UP> mtu 1500\n    link/ether 94:6d:ae:a1:b2:c4 brd x\n", 0),
    ]
}  # fmt: skip
TOLD = (
    *(
        "falcon",
        "example",
        "alice",
        "bob",
        "moonshot",
        "lustre",
        "hf_abcdef",
        "secret",
        "16544220",
        "MT2242X",
        "8a5c3f1e",
    ),
    *("a1-b2", "a1:b2", "a1b2c4", "10.65.", "db8:7", "east", "leaf-3", "rack-9", "gateway"),
)


def test_no_word_of_a_site_is_left(tmp_path: Path) -> None:
    notes = HostNotes(
        access=Access(address="falcon-01.gateway", user="alice", identity_file="/home/alice/.ssh/id", activate=". bob"),
        cluster="east",
        hints=Hints(network=("leaf-3",), nvlink="rack-9"),
    )
    (tmp_path / "own").mkdir()
    hub = Security(between_clusters="wireguard", tunnel_hub=next(iter(SITE)), tunnel_hub_address="10.65.3.2")
    write_site(tmp_path / "own", [StatedTrunk(between=("east", "ib-1"), gbps=10)], hub)
    shared, text = given_away(tmp_path, SITE, notes)
    assert [word for word in TOLD if word.casefold() in text.casefold()] == []
    assert not re.search(r"\bvm\b", text)
    assert (tmp_path / "shared" / "host-0001" / "recording.json").is_file()
    (host,) = shared.hosts
    assert [host.hostname, host.kernel] == ["host-0002", "6.8.0-57-generic"]  # what it calls itself first is `vm`
    (network,) = networks(next(each.addresses for each in host.netdevs if each.name == "ib0"))
    assert {route.prefix for route in host.routes} == {network}
    trunks, security = read_site(tmp_path / "shared")
    assert [trunk.between for trunk in trunks] == [("cluster-0001", "ib-1")]
    assert shared.clusters[0].name == "cluster-0001"
    assert security.tunnel_hub == host.name
    addresses = {address.partition("/")[0] for each in host.netdevs for address in each.addresses}
    assert security.tunnel_hub_address in addresses


def test_a_host_that_failed_stays_one_without_its_words(tmp_path: Path) -> None:
    failure = Finding(
        rule="SSH-AUTH", severity="F", hosts=("falcon-1",), effect="it is left out",
        evidence="alice@falcon-1 (10.1.2.3) refused the login; tried /home/alice/.ssh/id",
        remedy="`ssh-copy-id alice@falcon-1`",
    )  # fmt: skip
    shared, text = given_away(tmp_path, {"falcon-1": []}, HostNotes(failure=failure, access=Access(user="alice")))
    assert [(finding.rule, finding.hosts) for finding in shared.findings] == [("SSH-AUTH", ("host-0001",))]
    assert [word for word in ("alice", "falcon", "10.1.2.3") if word in text] == []


def test_hosts_of_one_first_label_stay_two() -> None:
    anonymous = AnonymousText(KEY)
    names = ("n1.east", "n1.west", "n1", "n2", "n2.east", "n2.west", "n2", "10.0.0.1", "10.0.0.2", "n1.west")
    numbers = [int(anonymous.name(name, "host")[-4:]) for name in names]
    assert numbers == [1, 2, 1, 3, 3, 4, 3, 5, 6, 2]
    assert anonymous.text("n2.west n2-ib0 n2.org:1 n22 xn2 x8\n") == "host-0004 host-0003-ib0 host-0003:1 n22 xn2 x8\n"


@pytest.mark.parametrize("name", ["10.1.2.3", "a", "node", "fd00:1::7"])
def test_names_that_are_usual_words_or_addresses_are_replaced_where_they_name_the_host(
    tmp_path: Path, name: str
) -> None:
    outputs = {name: [Recorded("ip addr show", "2: eth0: <UP> mtu 1500\n    inet 10.1.2.3/24 scope global eth0\n", 0)]}
    shared, text = given_away(tmp_path, outputs)
    assert [host.name for host in shared.hosts] == ["host-0001"]
    assert "mtu 1500" in text
    assert "10.1.2.3" not in text


def test_networks_stay_networks_and_every_address_changes() -> None:
    addresses = AnonymousAddresses(KEY)
    texts = ("10.0.0.1", "10.0.1.1", "10.128.0.1", "172.16.0.1", "192.168.1.1", "8.8.8.8", "8.8.4.4", "100.64.1.1")
    values = [int(ipaddress.IPv4Address(text)) for text in texts]
    news = [addresses.ipv4(value) for value in values]
    assert not set(values) & set(news)
    for at, one in enumerate(values):
        for other, new in zip(values[at + 1 :], news[at + 1 :], strict=True):
            if (one >> 16 == other >> 16) or ipaddress.IPv4Address(one).is_private:
                assert common_bits(news[at], new) >= min(common_bits(one, other), 16) or common_bits(one, other) < 8
    assert addresses.ipv4(int(ipaddress.IPv4Address("127.0.0.1"))) == 0x7F000001


def common_bits(one: int, other: int) -> int:
    return 32 - (one ^ other).bit_length()


@pytest.mark.parametrize("user", few_of(1, ["nvidia", "mlx5", "infiniband"]))
def test_a_user_called_like_a_device_changes_no_fact(user: str) -> None:
    outputs = tuple(recording(Fleet(FLEETS["H100 on InfiniBand and A100 on RoCE"], 2).machine(0)).outputs)
    own = {"n1": HostRecording(outputs, HostNotes(access=Access(user=user)))}
    (host,), (copy,) = (inventory_of(each).hosts for each in (own, anonymous_hosts(own, AnonymousText(KEY))))
    assert [gpu.name for gpu in copy.gpus] == [gpu.name for gpu in host.gpus]
    assert [(nic.hca, nic.rate_gbps) for nic in copy.nics] == [(nic.hca, nic.rate_gbps) for nic in host.nics]
