"""How RDMA is tried between hosts of which facts leave open whether they share a fabric, by sessions that are faked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from holmes_core.errors import HostError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.inventory import Host, Inventory
from prober.fabrics.clusters import find_clusters, find_shared_network, place_hosts
from prober.fabrics.placing import Placing
from prober.fabrics.settle import RdmaVerdict
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.link_tools import unanswered_line
from prober.links.rdma_trials import try_open_pairs
from prober.probe import probe
from prober.rails.choose_rails import with_rails
from tests.builders.railed_hosts import netdev_with
from tests.prober.test_clusters_by_proof import ib_host, leaf_routed
from tests.prober.test_rail_links import TABLE

NO_WAY = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
NO_MEETING = "Couldn't connect to 10.9.0.2:18515\nUnable to open file descriptor for socket connection\n"


def nobody_listens(subject: str, state: str) -> None:
    """No progress is shown."""


@dataclass
class Machines:
    """Hosts on real fabrics, what each is asked, and what perftest says where nothing comes through."""

    fabric_of: dict[str, int]
    failure: str = NO_WAY
    broken: tuple[str, ...] = ()  # devices of every host
    without_tool: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()  # hosts that let nobody in
    asked: list[tuple[str, list[str]]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def enter(self, host: Host) -> LinkSession:
        if host.name in self.closed:
            raise HostError(host.name, "unreachable", "no route to host", "ping it")
        return cast(LinkSession, Session(self, host.name))


class Session:
    """One of these hosts, in place of a LinkSession."""

    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.host = machines, name
        self.tools = frozenset(() if name in machines.without_tool else ("ib_write_bw",))

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        words: list[str] = values["words"]
        self.machines.asked.append((self.host, words))
        if command == "serve_tool":
            return {"port": 1}
        there = self.machines.addresses[words[-1]]
        one_fabric = self.machines.fabric_of[there] == self.machines.fabric_of[self.host]
        if one_fabric and words[2] not in self.machines.broken:
            return {"exit_code": 0, "output": TABLE, "errors": ""}
        return {"exit_code": 1, "output": "", "errors": self.machines.failure}

    def answer(self) -> dict[str, Any]:
        return {"exit_code": 0, "output": "", "errors": ""}

    def close(self) -> None:
        self.machines.left.append(self.host)


def tried(hosts: Sequence[Host], machines: Machines) -> tuple[RdmaVerdict, ...]:
    ready = [with_rails(each) for each in hosts]
    clusters, findings = find_clusters(ready, {})
    inventory = Inventory(
        hosts=tuple(ready), clusters=clusters, shared=find_shared_network(ready), findings=tuple(findings)
    )
    machines.addresses = {port.address or "": port.host for port in inventory.shared.ports} if inventory.shared else {}
    return try_open_pairs(inventory, place_hosts(ready, {}), nobody_listens, machines.enter)


def leaf(name: str, number: int, gid: int | None = 3) -> Host:
    """A RoCE host whose rails are in a subnet each, with a front end that all share."""
    made = leaf_routed(name, number, around=(netdev_with("bond0", f"10.9.0.{number}/24"),))
    return made.model_copy(update={"nics": tuple(nic.model_copy(update={"gid_choice": gid}) for nic in made.nics)})


def alike(name: str, lid: int, number: int) -> Host:
    """An InfiniBand host of which the address on the network that all share tells nothing."""
    return ib_host(name, lid, netdevs=(netdev_with("bond0", f"10.9.0.{number}/24"),))


ALIKE = (alike("a1", 1, 1), alike("a2", 2, 2), alike("b1", 1, 3), alike("b2", 2, 4))
SITES = {"a1": 1, "a2": 1, "b1": 2, "b2": 2}


def test_infiniband_hosts_are_found_where_they_belong() -> None:
    machines = Machines(SITES)
    trials = tried(ALIKE, machines)
    clusters, _ = find_clusters([with_rails(each) for each in ALIKE], {}, trials)
    assert [cluster.hosts for cluster in clusters] == [("a1", "a2"), ("b1", "b2")]
    assert sorted(machines.left) == sorted(SITES)


def test_a_trial_says_devices_method_and_rate() -> None:
    (trial,) = tried((leaf("a", 1), leaf("b", 2)), Machines({"a": 1, "b": 1}))
    assert (trial.hosts, trial.verdict) == (("a", "b"), "works")
    assert trial.how == "ib_write_bw from mlx5_0:1 of a to mlx5_0:1 of b at 391.5 Gbit/s"


def test_the_tools_meet_on_the_shared_network_and_take_nccl_s_gid() -> None:
    machines = Machines({"a": 1, "b": 1})
    tried((leaf("a", 1), leaf("b", 2)), machines)
    (server, _), (client, words) = machines.asked
    assert (server, client) == ("b", "a")
    assert words[-3:] == ["-x", "3", "10.9.0.2"]


def test_a_broken_rail_does_not_hide_the_others() -> None:
    (trial,) = tried((leaf("a", 1), leaf("b", 2)), Machines({"a": 1, "b": 1}, broken=("mlx5_0",)))
    assert trial.verdict == "works"
    assert "mlx5_1:1 of a" in trial.how


def test_a_failure_is_tried_both_ways() -> None:
    machines = Machines({"a": 1, "b": 2})
    (trial,) = tried((leaf("a", 1), leaf("b", 2)), machines)
    assert trial.verdict == "fails"
    assert "ib_write_bw from mlx5_1:1 of b to mlx5_1:1 of a: Failed status 12: wr_id 0 syndrom 0x81" in trial.how
    assert {host for host, words in machines.asked if words[-1].startswith("10.")} == {"a", "b"}


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        (Machines({"a": 1, "b": 2}, failure=NO_MEETING), "Unable to open file descriptor"),
        (Machines({"a": 1, "b": 1}, without_tool=("b",)), "ib_write_bw is missing on b, and TCP proves nothing"),
        (Machines({"a": 1, "b": 1}, closed=("a",)), "a cannot be entered: no route to host"),
    ],
)
def test_what_could_not_be_tried_proves_nothing(machines: Machines, said: str) -> None:
    (trial,) = tried((leaf("a", 1), leaf("b", 2)), machines)
    assert trial.verdict == "unknown"
    assert said in trial.how


def test_roce_without_a_known_gid_may_fail_for_that_reason() -> None:
    hosts = (leaf("a", 1, gid=None), leaf("b", 2, gid=None))
    assert [trial.verdict for trial in tried(hosts, Machines({"a": 1, "b": 2}))] == ["unknown"]
    assert [trial.verdict for trial in tried(hosts, Machines({"a": 1, "b": 1}))] == ["works"]


def test_nobody_is_entered_without_a_question() -> None:
    machines = Machines({"a": 1, "b": 1})
    assert tried((alike("a", 1, 1), alike("b", 2, 2)), machines) == ()
    assert machines.left == []


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (NO_WAY, "Failed status 12: wr_id 0 syndrom 0x81"),
        (" Completion with error at client\n Failed status 9: wr_id 0 syndrom 0x8a\n", None),
        (" Completion with error at client\n Failed status 112: wr_id 0 syndrom 0x8a\n", None),
        (
            "Failed to modify QP 59 to RTR\n Unable to Connect the HCA's through the link\n",
            "Failed to modify QP 59 to RTR",
        ),
        (NO_MEETING, None),
        ("", None),
    ],
)
def test_only_unanswered_packets_show_that_there_is_no_way(said: str, line: str | None) -> None:
    assert unanswered_line(said) == line


def test_a_session_that_is_lost_on_the_way_proves_nothing() -> None:
    class Lost(Session):
        def ask(self, command: str, **values: Any) -> dict[str, Any]:
            raise LinkProblem("PROBE-TOOL-FAILED", f"no answer to {command} of {len(values)} values")

    class Losing(Machines):
        def enter(self, host: Host) -> LinkSession:
            return cast(LinkSession, Lost(self, host.name))

    (trial,) = tried((leaf("a", 1), leaf("b", 2)), Losing({"a": 1, "b": 1}))
    assert trial.verdict == "unknown"
    assert "a to b: no answer to serve_tool" in trial.how


def test_a_probe_tries_before_it_says_what_the_clusters_are() -> None:
    data = {"transport": "local", "python": sys.executable, "hosts": ["one", "two"]}
    asked: list[tuple[str, ...]] = []

    def tries(inventory: Inventory, placing: Placing) -> Sequence[RdmaVerdict]:
        asked.append(tuple(host.name for host in inventory.hosts))
        assert set(placing.fabrics) == {"one", "two"}
        return [RdmaVerdict(("one", "two"), "unknown", "nobody tried")]

    probed = probe(HostsFile.model_validate(data), nobody_listens, try_open_pairs=tries)
    assert asked == [("one", "two")]
    assert [cluster.hosts for cluster in probed.clusters] == [("one", "two")]
