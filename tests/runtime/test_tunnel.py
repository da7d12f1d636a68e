"""The tunnel's end on a node, with tools that only write down how they were called."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault
from holmes_runtime.node.admission import tunnel as tunnel_module
from holmes_runtime.node.admission.tunnel import Tunnel, take_down
from holmes_runtime.node.admission.wireguard_tools import TunnelRefused, let_relay, set_up

LOOPBACK = socket.if_nametoindex("lo") if sys.platform == "linux" else 1
TOOLS = {
    "sudo": 'shift; exec "$@"',
    "ip": 'echo "ip $*" >>{calls}',
    "wg": 'echo "wg $*" >>{calls}; case $1 in genkey) echo PRIVATE;; pubkey) cat >/dev/null; echo PUBLIC;; '
    '*) [ "$4" != private-key ] || cat >{key};; esac',
}
WITHOUT_KERNEL = 'case "$*" in *"type wireguard"*) echo "Error: Unknown device type." >&2; exit 2;; esac'
WITHOUT_RIGHTS = 'echo "RTNETLINK answers: Operation not permitted" >&2; exit 2'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder, on a host where all is as it should be."""
    folder = tmp_path / "runs" / "run" / "0-0"
    folder.mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    for name, script in TOOLS.items():
        install(tmp_path, name, script.format(calls=tmp_path / "calls", key=tmp_path / "key"))
    install(tmp_path, "cat", 'exec /bin/cat "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    return folder


def install(home: Path, name: str, script: str) -> None:
    tool = home / "tools" / name
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)


def tunnel(folder: Path, interface: str = "lo", **changes: Any) -> Tunnel:
    """Of the first of two nodes. The loopback stands in for an interface: tools that do nothing make none."""
    config = NodeConfig(
        *("run", "a1", 0, 1, ("198.18.0.1", "198.18.0.2"), 29500, {}, (), None, (), {}, (), 15.0, False)
    )
    if changes:
        config = config._replace(node_addresses=tuple(f"198.18.0.{number}" for number in (1, 2, 3)))
    return Tunnel(config, TunnelConfig(interface, ("127.0.0.1",) * 3)._replace(**changes), folder)


def calls(home: Path) -> list[str]:
    file = home / "calls"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def record(home: Path, **changes: object) -> Path:
    """What an agent that is gone has left."""
    file = home / f"tunnel-{socket.gethostname()}.json"
    made = {"interface": "lo", "index": LOOPBACK, "address": "198.18.0.1", "folder": str(home / "runs/run/0-0")}
    file.write_text(json.dumps({**made, **changes}), encoding="utf-8")
    return file


def test_a_tool_that_is_missing_is_named_with_its_package(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tools" / "wg").unlink()
    fault = tunnel(folder, "holmes-wg").open()
    assert fault == TunnelFault("`wg` is not installed", "install the package wireguard-tools")


def test_neither_kernel_nor_wireguard_go_is_a_fault_with_both_remedies(folder: Path, tmp_path: Path) -> None:
    install(tmp_path, "ip", WITHOUT_KERNEL)
    fault = tunnel(folder, "holmes-wg").open()
    assert isinstance(fault, TunnelFault)
    assert fault.evidence == "the kernel has no WireGuard, and wireguard-go is not installed"
    assert "modprobe wireguard" in fault.remedy


def test_lacking_rights_are_told_apart_from_a_lacking_kernel(folder: Path, tmp_path: Path) -> None:
    install(tmp_path, "ip", WITHOUT_RIGHTS)
    install(tmp_path, "wireguard-go", "exit 0")
    fault = tunnel(folder, "holmes-wg").open()
    assert isinstance(fault, TunnelFault)
    assert "Operation not permitted" in fault.evidence
    assert ("NET_ADMIN" if os.geteuid() == 0 else "sudoers") in fault.remedy


def test_an_interface_that_nobody_recorded_is_left_alone_and_refused(folder: Path, tmp_path: Path) -> None:
    fault = tunnel(folder).open()
    assert isinstance(fault, TunnelFault)
    assert "no run of this user has recorded" in fault.evidence
    assert calls(tmp_path) == []


def test_what_a_dead_agent_left_is_removed_by_its_record(folder: Path, tmp_path: Path) -> None:
    file = record(tmp_path)
    assert take_down(folder)
    assert calls(tmp_path) == ["ip rule del iif lo", "ip rule del iif lo", "ip link delete dev lo"]
    assert file.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("changes", [{"index": LOOPBACK + 1000}, {"interface": "holmes-wg"}, {"folder": "/elsewhere"}])
def test_what_a_record_does_not_name_stays(folder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    record(tmp_path, **changes)
    assert take_down(folder)
    assert not any("link" in each for each in calls(tmp_path))


def test_rules_of_a_hub_whose_interface_is_gone_are_removed(folder: Path, tmp_path: Path) -> None:
    record(tmp_path, interface="holmes-none")
    assert take_down(folder)
    assert calls(tmp_path) == ["ip rule del iif holmes-none"] * 2


def test_the_tunnel_of_an_agent_that_lives_is_nobody_elses(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_module, "LOCK_TIMEOUT_S", 0.1)
    record(tmp_path, index=LOOPBACK + 1000)
    install(tmp_path, "wg", "exit 1")
    living = tunnel(folder, "holmes-wg")
    assert isinstance(living.open(), TunnelFault)  # it goes no further, and holds the record
    assert not take_down(folder)
    other = tunnel(folder, "holmes-wg").open()
    assert isinstance(other, TunnelFault)
    assert "another run on this host has a tunnel" in other.evidence
    living.release()
    assert take_down(folder)


def test_the_tunnel_of_another_that_lives_is_not_left_by_this_one(folder: Path, tmp_path: Path) -> None:
    """As an agent of an island's ranks ends where the tunnel of all islands stands."""
    install(tmp_path, "wg", "exit 1")
    other = folder.parent / "0-1"
    other.mkdir()
    living = tunnel(other, "holmes-wg")
    assert isinstance(living.open(), TunnelFault)  # it goes no further, and holds the record
    assert take_down(folder)
    assert not take_down(other)
    living.release()


def test_a_peer_with_a_new_key_takes_the_place_of_its_old_one(folder: Path, tmp_path: Path) -> None:
    end = tunnel(folder)
    assert end.meet((TunnelEnd("OWN", 51820), None)) is None
    assert calls(tmp_path) == []
    for key in ("OLD", "NEW", "NEW"):
        assert end.meet((TunnelEnd("OWN", 51820), TunnelEnd(key, 51820))) is None
    assert end.meet((TunnelEnd("OWN", 51820), None)) is None
    said = [each.removeprefix("wg set lo ").split(" endpoint")[0] for each in calls(tmp_path) if each.startswith("wg")]
    assert said == ["peer OLD", "peer OLD remove peer NEW", "peer NEW remove"]


def test_peers_are_met_by_key_with_their_own_address_alone(folder: Path, tmp_path: Path) -> None:
    assert tunnel(folder).meet((TunnelEnd("OWN", 51820), TunnelEnd("THEIRS", 51821))) is None
    peer = "peer THEIRS endpoint 127.0.0.1:51821 persistent-keepalive off allowed-ips 198.18.0.2/32"
    assert calls(tmp_path) == [f"wg set lo {peer}", f"ip link set dev lo mtu {65535 - 80}"]


def test_what_the_hub_relays_is_reached_through_it_and_no_peer_of_its_own(folder: Path, tmp_path: Path) -> None:
    ends = tuple(TunnelEnd(key, 51820) for key in ("OWN", "FAR", "HUB"))
    assert tunnel(folder, hub=2, relayed=(1,)).meet(ends) is None
    peer = "peer HUB endpoint 127.0.0.1:51820 persistent-keepalive 10 allowed-ips 198.18.0.3/32,198.18.0.2/32"
    assert calls(tmp_path)[0] == f"wg set lo {peer}"


def test_the_hub_forwards_inside_its_tunnel_alone_and_calls_nobody(folder: Path, tmp_path: Path) -> None:
    install(tmp_path, "sysctl", f'echo "sysctl $*" >>{tmp_path / "calls"}')
    let_relay("lo", "198.18.0.0/29")
    assert calls(tmp_path)[2:] == [
        "ip rule add iif lo prohibit",
        "ip rule add iif lo to 198.18.0.0/29 lookup main",
        "sysctl -q -w net.ipv4.conf.lo.forwarding=1",
    ]
    assert tunnel(folder, hub=0).meet((TunnelEnd("OWN", 51820), TunnelEnd("FAR", 51820), None)) is None
    assert "peer FAR endpoint 127.0.0.1:51820 persistent-keepalive off" in calls(tmp_path)[5]


def test_a_peer_that_is_known_stays_where_it_last_sent_from(folder: Path, tmp_path: Path) -> None:
    end = tunnel(folder, hub=0)
    far, late = TunnelEnd("FAR", 51820), TunnelEnd("LATE", 51820)
    assert end.meet((TunnelEnd("OWN", 51820), far, None)) is None
    assert end.meet((TunnelEnd("OWN", 51820), far, late)) is None
    (first, second) = (each for each in calls(tmp_path) if each.startswith("wg"))
    assert "FAR" in first
    assert "FAR" not in second


@pytest.mark.usefixtures("folder")
def test_a_hub_whose_port_is_taken_is_refused_for_it(tmp_path: Path) -> None:
    install(tmp_path, "wg", 'case "$*" in *listen-port*) echo "Address in use" >&2; exit 1;; genkey) echo KEY;; esac')
    with pytest.raises(TunnelRefused, match="UDP port 51820 is not free"):
        set_up("lo", "198.18.0.1/29", ports=1)
