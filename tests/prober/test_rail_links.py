"""`--links` over RDMA: every rail of every host, from host memory and from GPU memory where the tools can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from holmes_core.records.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.records.link import DIRECTIONS, Link, Spread
from holmes_core.units import bytes_per_s_from_gbps
from prober.links import link_node
from prober.links.link_audit import audit_links
from prober.links.link_pairs import choose_pairs
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.link_tools import cuda_options, ib_write_bw
from prober.links.pair_test import LinkLimits, PairTest
from tests.builders.host_facts import gpu, host, nic

TABLE = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      3906             392.10             391.50             0.746
"""


def port_of_rails(name: str, rails: int) -> NetworkPort:
    hcas = tuple(f"mlx5_{number}:1" for number in range(rails))
    return NetworkPort(host=name, netdev="eth0", address="10.0.0.1", bandwidth_bytes_per_s=None, hcas=hcas)


def cluster_of(rails: dict[str, int], facts: dict[str, Any] | None = None) -> Inventory:
    """Hosts of one InfiniBand cluster with so many rails each."""
    hosts = tuple(
        host(name, nics=tuple(nic(f"mlx5_{number}") for number in range(count)), **(facts or {}))
        for name, count in rails.items()
    )
    fabric = Network(
        name="ib-1",
        kind="InfiniBand",
        subnet=None,
        ports=tuple(port_of_rails(name, count) for name, count in rails.items()),
    )
    cluster = Cluster(name="ib-1", hosts=tuple(rails), fabric=fabric)
    return Inventory(hosts=hosts, clusters=(cluster,), shared=None, findings=())


class FakeSession:
    """A host whose ib_write_bw answers with a table; one HCA may be broken."""

    def __init__(self, asked: list[list[str]], tools: tuple[str, ...], broken: str | None) -> None:
        self.asked, self.tools, self.broken = asked, frozenset(tools), broken

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        self.asked.append(values["words"])
        if command == "serve_tool":
            return {"port": 1}
        failed = self.broken is not None and self.broken in values["words"]
        return {"exit_code": int(failed), "output": "" if failed else TABLE, "errors": "no such port" if failed else ""}

    def answer(self) -> dict[str, Any]:
        return {"exit_code": 0, "output": "", "errors": ""}


def measured(
    inventory: Inventory, tools: tuple[str, ...] = ("ib_write_bw",), broken: str | None = None
) -> tuple[list[Link], list[str], list[list[str]]]:
    """Links and problems of every pair of the inventory in both directions, and what was asked."""
    links: list[Link] = []
    problems: list[str] = []
    asked: list[list[str]] = []
    for pair in choose_pairs(inventory, 8):
        sessions = {name: cast(LinkSession, FakeSession(asked, tools, broken)) for name in pair.hosts}
        for direction in DIRECTIONS:
            for rail in PairTest(pair, direction, sessions, LinkLimits()).rdma_links(inventory):
                try:
                    links += rail
                except LinkProblem as problem:
                    problems.append(problem.evidence)
    return links, problems, asked


def ends(links: list[Link]) -> set[tuple[str, str]]:
    return {end for link in links for end in zip(link.hosts, link.devices, strict=True)}


@pytest.mark.parametrize("rails", [{"a": 8, "b": 8}, {"a": 8, "b": 7, "c": 8}, {"a": 2, "b": 4}])
def test_every_rail_of_each_host_is_tested_in_both_directions(rails: dict[str, int]) -> None:
    inventory = cluster_of(rails)
    links, _, _ = measured(inventory)
    every = {(name, f"mlx5_{number}:1") for name, count in rails.items() for number in range(count)}
    for direction in DIRECTIONS:
        assert ends([link for link in links if link.direction == direction]) == every


def test_hosts_above_the_limit_of_pairs_have_their_rails_tested_and_no_tcp() -> None:
    pairs = choose_pairs(cluster_of({f"h{number:02}": 2 for number in range(40)}), 8)
    assert {name for pair in pairs for name in pair.hosts} == {f"h{number:02}" for number in range(40)}
    assert [pair.rdma_only for pair in pairs] == [False] * 8 + [True] * 12
    extra = PairTest(pairs[-1], "forward", {}, LinkLimits())
    assert list(extra.tcp_links()) == []


def test_a_broken_rail_is_named_and_the_others_are_tested() -> None:
    links, problems, _ = measured(cluster_of({"a": 4, "b": 4}), broken="mlx5_2")
    assert {device for _, device in ends(links)} == {"mlx5_0:1", "mlx5_1:1", "mlx5_3:1"}
    assert problems == ["ib_write_bw from mlx5_2:1 to mlx5_2:1: exit 1: no such port"] * 2


def test_gpu_memory_is_tested_where_perftest_and_driver_can() -> None:
    able = {"gpus": (gpu(0, nearest_nics=("mlx5_1",)), gpu(1, nearest_nics=("mlx5_0",))), "peermem": True}
    links, _, asked = measured(cluster_of({"a": 2, "b": 2}, able), ("ib_write_bw", "--use_cuda"))
    assert [link.devices for link in links if link.memory == "gpu"] == [("mlx5_0:1", "mlx5_0:1")] * 2
    assert any("--use_cuda=1" in words for words in asked)


def test_without_the_option_gpu_memory_is_left_out_without_a_word() -> None:
    links, problems, asked = measured(cluster_of({"a": 2, "b": 2}, {"gpus": (gpu(),), "peermem": True}))
    assert {link.memory for link in links} == {"host"}
    assert problems == []
    assert not any(word.startswith("--use_cuda") for words in asked for word in words)


BOTH = ("--use_cuda", "--use_cuda_dmabuf")


@pytest.mark.parametrize(
    ("tools", "facts", "expected"),
    [
        (BOTH, {"peermem": True}, ["--use_cuda=0"]),
        (BOTH, {"peermem": False, "open_gpu_driver": True}, ["--use_cuda=0", "--use_cuda_dmabuf"]),
        (BOTH, {"peermem": False, "open_gpu_driver": False}, None),
        (("--use_cuda",), {"peermem": False, "open_gpu_driver": True}, None),
        ((), {"peermem": True}, None),
    ],
)
def test_gpu_memory_is_registered_by_peermem_or_dma_buf(
    tools: tuple[str, ...], facts: dict[str, Any], expected: list[str] | None
) -> None:
    assert cuda_options(host(gpus=(gpu(),), **facts), "mlx5_0:1", tools) == expected


def test_options_of_memory_come_before_the_address() -> None:
    words = ib_write_bw("mlx5_2:1", "10.9.0.1", "18515", 256 * 10**6, ["--use_cuda=3"])
    assert words[-3:] == ["18515", "--use_cuda=3", "10.9.0.1"]


def rdma_link(gbps: float, memory: str = "host", device: str = "mlx5_0:1") -> Link:
    rate = bytes_per_s_from_gbps(gbps)
    return Link.model_validate(
        {
            "kind": "inside",
            "network": "ib-1",
            "clusters": ("ib-1", "ib-1"),
            "hosts": ("a", "b"),
            "devices": (device, device),
            "method": "ib_write_bw",
            "streams": 1,
            "direction": "forward",
            "latency_s": None,
            "bandwidth_bytes_per_s": Spread(min=rate, median=rate),
            "samples": 3,
            "memory": memory,
        }
    )


def test_gpu_memory_far_below_host_memory_is_told_and_not_taken_for_the_ports_fault() -> None:
    inventory = cluster_of({"a": 1, "b": 1})
    (finding,) = audit_links(inventory, [rdma_link(390), rdma_link(200, "gpu")])
    assert (finding.rule, finding.severity) == ("RDMA-GPU-BW-LOW", "W")
    assert finding.evidence.endswith("(ib_write_bw, mlx5_0:1 to mlx5_0:1, GPU memory)")
    assert audit_links(inventory, [rdma_link(390), rdma_link(330, "gpu")]) == ()


def test_one_slow_rail_of_eight_is_named() -> None:
    inventory = cluster_of({"a": 8, "b": 8})
    links = [rdma_link(200 if number == 5 else 390, device=f"mlx5_{number}:1") for number in range(8)]
    (finding,) = audit_links(inventory, links)
    assert finding.rule == "RDMA-BW-LOW"
    assert "mlx5_5:1 to mlx5_5:1" in finding.evidence


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("  --use_cuda=<cuda device id>\n  --use_cuda_dmabuf Use CUDA DMA-BUF", {"--use_cuda", "--use_cuda_dmabuf"}),
        ("  --use_cuda=<cuda device id>", {"--use_cuda"}),
        ("  --report_gbits", set()),
    ],
)
def test_a_node_says_what_its_perftest_was_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, options: set[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stub = tmp_path / "ib_write_bw"
    stub.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n", encoding="utf-8")
    stub.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, link_node.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write('{"do": "tools"}\n')
        node.stdin.flush()
        told = set(json.loads(node.stdout.readline().removeprefix(link_node.MARK))["tools"])
        node.stdin.close()
    assert told & {"--use_cuda", "--use_cuda_dmabuf"} == options


def test_pairs_of_hosts_without_rails_keep_to_the_limit() -> None:
    inventory = cluster_of({f"h{number}": 0 for number in range(8)})
    assert len(choose_pairs(inventory, 2)) == 2
