"""The tests of one pair of hosts in one direction: latency and TCP by Holmes's program, RDMA by ib_write_bw."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holmes_core.records.inventory import Finding, Inventory, NetworkPort
from holmes_core.records.link import Direction, Link, LinkMethod, Spread
from prober.links.link_pairs import Pair
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.link_tools import Points, cuda_options, ib_write_bw, parse_ib_write_bw, window_rates

PING_COUNT = 200
PING_S = 0.5
RDMA_RUNS = 3
TOOL_SPARE_S = 5.0

Sessions = Mapping[str, LinkSession]
T = TypeVar("T")


@dataclass(frozen=True)
class LinkLimits:
    """Limits of the tests: pairs per network, and seconds, bytes and numbers of streams of each transfer."""

    pairs: int = 8
    seconds: float = 1.0
    size_bytes: int = 256 * 10**6
    streams: tuple[int, ...] = (1, 4, 8)
    methods: tuple[LinkMethod, ...] = ("ib_write_bw", "tcp")


USUAL_LIMITS = LinkLimits()


@dataclass(frozen=True)
class PairTest:
    """The tests of one pair in one direction."""

    pair: Pair
    direction: Direction
    sessions: Sessions
    limits: LinkLimits

    @property
    def sender(self) -> NetworkPort:
        return self.pair.ports[0 if self.direction == "forward" else 1]

    @property
    def receiver(self) -> NetworkPort:
        return self.pair.ports[1 if self.direction == "forward" else 0]

    def tcp_links(self) -> Iterator[Link]:
        """Yield a link for each number of streams.

        Raises:
            LinkProblem: A test fails.
        """
        source, address = self.sender.address, self.receiver.address
        if self.pair.rdma_only or "tcp" not in self.limits.methods or source is None or address is None:
            return
        latency = self._latency_s(source, address)
        devices = (self.sender.netdev or source, self.receiver.netdev or address)
        for streams in self.limits.streams:
            yield self._link("tcp", streams, devices, latency, read_figures(window_rates, self.transfer(streams)))

    def transfer(self, streams: int) -> Points:
        """Return the received bytes over time of one TCP transfer.

        Raises:
            LinkProblem: The test fails.
        """
        source, address, token = self.sender.address, self.receiver.address, secrets.token_hex(8)
        bounds = {"streams": streams, "seconds": self.limits.seconds, "size_bytes": self.limits.size_bytes}
        port = self._server.ask("receive", address=address, token=token, **bounds)["port"]
        _, received = self._both("send", source=source, address=address, port=port, token=token, **bounds)
        points: Points = received["points"]
        return points

    def problem(self, problem: LinkProblem) -> Finding:
        """Return the finding that this test gave no figure."""
        evidence = f"{self.sender.host} to {self.receiver.host} on {self.pair.network}: {problem.evidence}"
        closed = "open the ports of `net.ipv4.ip_local_port_range` between these hosts"
        failed = "run the tool between the two hosts by hand and read its message"
        remedy = closed if problem.rule == "NET-PORT-CLOSED" else failed
        return link_finding(problem.rule, self.pair.hosts, evidence, remedy)

    def rdma_links(self, inventory: Inventory) -> Iterator[Iterator[Link]]:
        """Yield a link for each rail by ib_write_bw, if both ends have it. Each link raises LinkProblem at a failure.

        The first rail is tested repeatedly, and from GPU memory too if both ends can.
        """
        address = self.receiver.address or _shared_address(inventory, self.receiver.host)
        have_tool = all("ib_write_bw" in self.sessions[host].tools for host in self.pair.hosts)
        if not address or "ib_write_bw" not in self.limits.methods or not have_tool:
            return
        for position, hcas in enumerate(self.rails()):
            yield self._rail_link(hcas, address, RDMA_RUNS if position == 0 else 1)
            options = self._cuda_options(inventory, hcas) if position == 0 else None
            if options is not None:
                yield self._rail_link(hcas, address, RDMA_RUNS, options)

    def _rail_link(
        self, hcas: tuple[str, str], address: str, runs: int, options: tuple[list[str], list[str]] | None = None
    ) -> Iterator[Link]:
        rates = [self.rdma_rate(hcas, address, options or ([], [])) for _ in range(runs)]
        link = self._link("ib_write_bw", 1, hcas, None, rates)
        yield link if options is None else link.model_copy(update={"memory": "gpu"})

    def _cuda_options(self, inventory: Inventory, hcas: tuple[str, str]) -> tuple[list[str], list[str]] | None:
        """Return the options of sender and receiver for GPU memory, or None if one of them cannot use it."""
        ends = (self.sender.host, self.receiver.host)
        sender, receiver = (
            cuda_options(inventory.host(host), hca, self.sessions[host].tools)
            for host, hca in zip(ends, hcas, strict=True)
        )
        return None if sender is None or receiver is None else (sender, receiver)

    def rails(self) -> list[tuple[str, str]]:
        """Return every rail of each end with one of the other. Each pair of a network begins with another rail."""
        ours, theirs = self.sender.hcas, self.receiver.hcas
        if not ours or not theirs or self.sender.net_plugin is not None:  # EFA lacks the queue pairs of ib_write_bw
            return []
        count = max(len(ours), len(theirs))
        numbers = [(self.pair.number + offset) % count for offset in range(count)]
        return [(ours[number % len(ours)], theirs[number % len(theirs)]) for number in numbers]

    def _latency_s(self, source: str, address: str) -> Spread:
        """Return half the time of small round trips."""
        token = secrets.token_hex(8)
        port = self._server.ask("echo", address=address, token=token, seconds=PING_S)["port"]
        values = {"count": PING_COUNT, "seconds": PING_S}
        round_trips, _ = self._both("ping", source=source, address=address, port=port, token=token, **values)
        half = [seconds / 2 for seconds in round_trips["round_trips_s"]]
        if not half:
            raise LinkProblem("PROBE-TOOL-FAILED", f"no byte came back from {address} port {port}")
        return _spread(half)

    def rdma_rate(self, hcas: tuple[str, str], address: str, options: tuple[list[str], list[str]]) -> float:
        """Return the average bytes per second of one run between two HCAs. `address` is for its handshake.

        Raises:
            LinkProblem: The test fails.
        """
        seconds, size = self.limits.seconds + TOOL_SPARE_S, self.limits.size_bytes
        words = ib_write_bw(hcas[1], None, "{port}", size, options[1])
        port = self._server.ask("serve_tool", words=words, seconds=seconds)["port"]
        words = ib_write_bw(hcas[0], address, str(port), size, options[0])
        client, _ = self._both("run_tool", words=words, seconds=seconds)
        tool = " ".join(("ib_write_bw", *options[0], "from", hcas[0], "to", hcas[1]))
        if (code := client["exit_code"]) != 0:
            message = client["errors"] or client["output"]
            last = (message.strip().splitlines() or ["no message"])[-1]
            text = "not done in time" if code in (124, 137) else f"exit {code}: {last.strip()[:200]}"
            raise LinkProblem("PROBE-TOOL-FAILED", f"{tool}: {text}", output=message)
        return read_figures(parse_ib_write_bw, client["output"])

    @property
    def _server(self) -> LinkSession:
        return self.sessions[self.receiver.host]

    def _both(self, command: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the sender's answer to `command` and the receiver's pending one. The sender's fault comes first."""
        fault = None
        sent: dict[str, Any] = {}
        try:
            sent = self.sessions[self.sender.host].ask(command, **values)
        except LinkProblem as problem:
            fault = problem
        try:
            received = self._server.answer()
        except LinkProblem as problem:
            raise fault or problem from None
        if fault is not None:
            raise fault
        return sent, received

    def _link(
        self, method: LinkMethod, streams: int, devices: tuple[str, str], latency: Spread | None, rates: Sequence[float]
    ) -> Link:
        ordered = devices if self.direction == "forward" else (devices[1], devices[0])
        return Link(
            kind=self.pair.kind,
            network=self.pair.network,
            clusters=self.pair.clusters,
            hosts=self.pair.hosts,
            devices=ordered,
            method=method,
            streams=streams,
            direction=self.direction,
            latency_s=latency,
            bandwidth_bytes_per_s=_spread(rates),
            samples=len(rates),
        )


def _shared_address(inventory: Inventory, host: str) -> str | None:
    port = inventory.shared.port_of(host) if inventory.shared else None
    return port.address if port else None


def _spread(values: Sequence[float]) -> Spread:
    return Spread(min=min(values), median=statistics.median(values))


def read_figures(read: Callable[[Any], T], answer: object) -> T:
    """Return the figures that `read` finds in a tool's answer.

    Raises:
        LinkProblem: They cannot be read.
    """
    try:
        return read(answer)
    except (ValueError, KeyError, TypeError) as error:
        raise LinkProblem("PROBE-TOOL-FAILED", f"its figures cannot be read: {error}") from None


def link_finding(rule: str, hosts: tuple[str, ...], evidence: str, remedy: str) -> Finding:
    """Return the finding that a link of `hosts` was not measured."""
    return Finding(
        rule=rule,
        severity="W" if rule == "PROBE-TOOL-FAILED" else "F",
        hosts=hosts,
        evidence=evidence,
        effect="this link was not measured" + ("; NCCL and Gloo meet here" if rule == "NET-PORT-CLOSED" else ""),
        remedy=remedy,
    )
