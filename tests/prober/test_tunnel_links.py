"""`--links` in a tunnel: what its ends are told and what comes of failures, by fakes; the program there, by stubs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from holmes_core.errors import HostError
from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.link import DIRECTIONS, Link
from holmes_runtime.node.admission import wireguard_tools
from prober.links import tunnel_end
from prober.links.link_audit import audit_links
from prober.links.link_pairs import Pair, choose_pairs
from prober.links.link_session import LinkProblem, LinkSession, TunnelSession, program_text
from prober.links.pair_test import LinkLimits
from prober.links.trunk_rate import alone_links
from prober.links.tunnel_test import measure_in_tunnel
from tests.eventually import eventually
from tests.planner.fleets import cpu_inventory
from tests.prober.test_links import link

POINTS = [[0.01 * step, 100_000 * step] for step in range(101)]
LIMITS = LinkLimits(streams=(1, 4), methods=("tcp",))


class Session:
    """A LinkSession of a host; nothing passes where it is `closed`."""

    tools: frozenset[str] = frozenset()

    def __init__(self, closed: bool) -> None:
        self.closed = closed
        self.asked: list[tuple[str, str]] = []

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        self.asked.append((command, values["address"]))
        if self.closed and command == "ping":
            raise LinkProblem("NET-PORT-CLOSED", "connecting to 198.19.255.254 port 1: timed out")
        return {"port": 1, "round_trips_s": [2e-3], "sent_bytes": 1}

    def answer(self) -> dict[str, Any]:
        return {"points": POINTS}


@dataclass
class Ends:
    """The TunnelSessions of all hosts: what they were asked, which refuse and which were left."""

    refuses: str = ""
    unreachable: str = ""
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def enter(self, host: Host) -> TunnelSession:
        if host.name == self.unreachable:
            raise HostError(host.name, "unreachable", "no route to host", "ping it")
        return cast(TunnelSession, End(self, host.name))


@dataclass
class End:
    ends: Ends
    host: str

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        self.ends.asked.setdefault(self.host, {})[command] = values
        if self.host == self.ends.refuses:
            raise LinkProblem("NET-TUNNEL-NOT-MEASURED", "`wg` is not installed", remedy="install wireguard-tools")
        return {"public_key": f"key of {self.host}", "port": 51820 if self.host == "a1" else 51821}

    def close(self) -> None:
        self.ends.left.append(self.host)


def measured(ends: Ends, closed: bool = False) -> tuple[list[Link], list[Finding], dict[str, Session]]:
    """What a tunnel between a1 and b1 gives, and what their fakes were asked."""
    inventory, pair = pair_to_measure()
    fakes = {name: Session(closed) for name in pair.hosts}
    sessions = {name: cast(LinkSession, fake) for name, fake in fakes.items()}
    found = list(measure_in_tunnel(inventory, pair, sessions, LIMITS, ends.enter))
    links = [each for each in found if isinstance(each, Link)]
    return links, [each for each in found if isinstance(each, Finding)], fakes


def pair_to_measure() -> tuple[Inventory, Pair]:
    inventory = cpu_inventory([1, 1])
    (pair,) = choose_pairs(inventory, 8)
    return inventory, pair


def test_ends_are_told_of_each_other_and_the_pair_is_tested_at_its_addresses_in_the_tunnel() -> None:
    ends, (_, pair) = Ends(), pair_to_measure()
    links, problems, fakes = measured(ends)
    assert problems == []
    assert [(each.streams, each.direction) for each in links] == [(n, way) for way in DIRECTIONS for n in (1, 4)]
    assert {(each.tunnel, each.kind, each.devices, each.hosts) for each in links} == {
        (True, "between", ("eth0", "eth0"), ("a1", "b1"))
    }
    addresses = [port.address for port in pair.ports]
    assert ends.asked["a1"]["open"] == {"address": "198.19.255.253/30"}
    assert ends.asked["a1"]["meet"] == {"peer": ["key of b1", addresses[1], 51821, "198.19.255.254", [], False]}
    assert ends.asked["b1"]["meet"] == {"peer": ["key of a1", addresses[0], 51820, "198.19.255.253", [], False]}
    assert {address for fake in fakes.values() for _, address in fake.asked} == {
        "198.19.255.253",
        "198.19.255.254",
    }
    assert sorted(ends.left) == ["a1", "b1"]


@pytest.mark.parametrize(("host", "left"), [("a1", ["a1"]), ("b1", ["b1", "a1"])])
def test_a_host_that_refuses_is_named_with_its_remedy_and_no_end_stays(host: str, left: list[str]) -> None:
    ends = Ends(refuses=host)
    links, (problem,), _ = measured(ends)
    assert links == []
    assert (problem.rule, problem.severity, problem.hosts) == ("NET-TUNNEL-NOT-MEASURED", "W", (host,))
    assert (problem.evidence, problem.remedy) == ("`wg` is not installed", "install wireguard-tools")
    assert ends.left == left


def test_a_tunnel_through_which_nothing_passes_is_a_warning_on_both_hosts() -> None:
    ends = Ends()
    links, (problem,), _ = measured(ends, closed=True)
    assert links == []
    assert (problem.rule, problem.severity, problem.hosts) == ("NET-TUNNEL-NOT-MEASURED", "W", ("a1", "b1"))
    assert "UDP port 51820" in problem.remedy
    assert sorted(ends.left) == ["a1", "b1"]


def test_a_host_that_lets_nobody_in_for_a_tunnel_is_a_warning() -> None:
    ends = Ends(unreachable="b1")
    _, (problem,), _ = measured(ends)
    assert (problem.rule, problem.hosts, problem.remedy) == ("NET-TUNNEL-NOT-MEASURED", ("b1",), "ping it")
    assert ends.left == ["a1"]


def test_a_tunnels_figure_is_no_fault_of_the_wire_and_no_part_of_a_trunk() -> None:
    inventory = cpu_inventory([1, 1], shared_gbps=1.0)
    clear, slow = link(("a1", "b1"), 0.9), link(("a1", "b1"), 0.2).model_copy(update={"tunnel": True})
    assert audit_links(inventory, [clear, slow]) == ()
    assert alone_links([slow, clear]) == {(("a1", "b1"), "forward"): clear}
    assert alone_links([slow]) == {}


TOOLS = {
    "sudo": 'shift; exec "$@"',
    "ip": 'echo "ip $*" >>{home}/calls; case $2 in show) cat {home}/alias;; esac',
    "wg": 'echo "wg $*" >>{home}/calls; case $1 in genkey) echo PRIVATE;; pubkey) cat >/dev/null; echo PUBLIC;; '
    '*) [ "$3" != private-key ] || cat >{home}/key;; esac',
}


@dataclass(frozen=True)
class Program:
    """The end's program, as it is sent. Its stub tools make no interface; the loopback stands in for one."""

    process: subprocess.Popen[bytes]

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode()
        answer: dict[str, Any] = json.loads(line.removeprefix(tunnel_end.MARK))
        return answer


Start = Callable[[str], Program]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts one whose interface is called so, all with one lock of this test alone."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "alias").write_text(f"1: lo: <LOOPBACK>\n    alias {tunnel_end.ALIAS}\n", encoding="utf-8")
    for name, script in TOOLS.items():
        tool = tmp_path / "tools" / name
        tool.write_text(f"#!/bin/sh\n{script.format(home=tmp_path)}\n", encoding="utf-8")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    started: list[subprocess.Popen[bytes]] = []

    def program(interface: str) -> Program:
        text = program_text(tunnel_end, wireguard_tools).decode()
        text = text.replace("0holmes-probe", f"0{tmp_path}").replace('"holmes-probe"', f'"{interface}"')
        file = tmp_path / "program.py"
        file.write_text(text, encoding="utf-8")
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, "-I", "-B", str(file)], stdin=pipe, stdout=pipe))
        return Program(started[-1])

    yield program
    for process in started:
        process.kill()
        process.wait()


def calls(home: Path) -> list[str]:
    file = home / "calls"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_an_end_answers_with_its_public_key_and_keeps_the_private_one(start: Start, tmp_path: Path) -> None:
    end = start("holmes-none")
    assert end.ask(do="open", address="198.19.255.253/30") == {"public_key": "PUBLIC", "port": 51820}
    assert end.ask(do="meet", peer=["THEIRS", "127.0.0.1", 51821, "198.19.255.254"]) == {"met": True}
    assert end.ask(do="take_down") == {"left": False}
    assert (tmp_path / "key").read_text(encoding="utf-8").strip() == "PRIVATE"
    assert "ip link add dev holmes-none type wireguard" in calls(tmp_path)
    assert "ip address add 198.19.255.253/30 dev holmes-none" in calls(tmp_path)
    assert (
        "wg set holmes-none peer THEIRS endpoint 127.0.0.1:51821 persistent-keepalive off allowed-ips 198.19.255.254/32"
        in calls(tmp_path)
    )
    assert not any("PRIVATE" in call for call in calls(tmp_path))


@pytest.mark.parametrize("ending", ["killed", "input"])
def test_however_an_end_ends_its_interface_is_removed(start: Start, tmp_path: Path, ending: str) -> None:
    end = start("lo")
    assert end.ask(do="open", address="198.19.255.253/30")["port"] == 51820
    made = len(calls(tmp_path))
    if ending == "killed":
        end.process.kill()
    else:
        assert end.process.stdin is not None
        end.process.stdin.close()
    assert eventually(lambda: "ip link delete dev lo" in calls(tmp_path)[made:])


def test_what_a_killed_probe_left_is_removed_first(start: Start, tmp_path: Path) -> None:
    start("lo").ask(do="open", address="198.19.255.253/30")
    done = calls(tmp_path)
    assert done.index("ip link delete dev lo") < done.index("ip link add dev lo type wireguard")


def test_an_interface_without_the_alias_is_left_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "alias").write_text("1: lo: <LOOPBACK>\n", encoding="utf-8")
    refused = start("lo").ask(do="open", address="198.19.255.253/30")
    assert refused["refused"] == "an interface lo is there that no probe has made"
    assert calls(tmp_path) == ["ip link show dev lo"]


def test_what_cannot_be_removed_is_said(start: Start) -> None:
    end = start("lo")
    end.ask(do="open", address="198.19.255.253/30")
    assert end.ask(do="take_down")["refused"] == "lo could not be removed"


def test_a_host_has_one_end_at_a_time(start: Start) -> None:
    first, second = start("holmes-none"), start("holmes-none")
    assert "public_key" in first.ask(do="open", address="198.19.255.253/30")
    refused = second.ask(do="open", address="198.19.255.253/30")
    assert refused["refused"] == "another probe has a tunnel on this host"
    assert first.ask(do="take_down") == {"left": False}
    first.process.kill()
    first.process.wait()
    assert "public_key" in start("holmes-none").ask(do="open", address="198.19.255.253/30")
