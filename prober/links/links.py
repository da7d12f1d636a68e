"""Measure latency and bandwidth between chosen pairs of hosts, inside clusters and between them."""

from __future__ import annotations

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from holmes_core.errors import HostError
from holmes_core.records.inventory import Finding, Host, Inventory, NetworkPort
from holmes_core.records.link import Direction, Link, LinkMethod, Spread
from prober.links.link_pairs import Pair, choose_pairs, into_rounds
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.link_tools import (
    ib_write_bw,
    iperf3_client,
    iperf3_server,
    parse_ib_write_bw,
    parse_iperf3,
    window_rates,
)
from prober.rules.access_rules import RULE_OF_ERROR

MAX_AT_ONCE = 64
PING_COUNT = 200
PING_S = 0.5
RDMA_RUNS = 3
TOOL_SPARE_S = 5.0

_TCP_METHODS: tuple[LinkMethod, ...] = ("iperf3", "tcp")

Progress = Callable[[str, str], None]
Sessions = Mapping[str, LinkSession]


@dataclass(frozen=True)
class LinkLimits:
    """How much to test: pairs a network, and of each transfer the seconds, the bytes and the numbers of streams."""

    pairs: int = 8
    seconds: float = 1.0
    size_bytes: int = 256 * 10**6
    streams: tuple[int, ...] = (1, 4, 8)
    methods: tuple[LinkMethod, ...] = ("ib_write_bw", "iperf3", "tcp")


@dataclass
class LinkResults:
    """What came of the tests: figures, and a finding for each test that gave none."""

    links: list[Link] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)


def measure_links(inventory: Inventory, progress: Progress, limits: LinkLimits = LinkLimits()) -> LinkResults:
    """Links between a few pairs of every cluster and every two clusters, no host in two tests at a time.

    `progress("a1 - b1", state)` is called as each pair is done. Nothing is written on the hosts, and what runs there
    ends with this call or, at the latest, with this process.
    """
    measured = LinkResults()
    pairs = choose_pairs(inventory, limits.pairs)
    with ThreadPoolExecutor(max_workers=MAX_AT_ONCE) as pool, contextlib.ExitStack() as stack:
        sessions = _open_sessions(inventory, pairs, pool, stack, measured)
        for members in into_rounds(pairs):
            jobs = {pool.submit(_measure_pair, inventory, pair, sessions, limits): pair for pair in members}
            for job in as_completed(jobs):
                result = job.result()
                measured.links += result.links
                measured.problems += result.problems
                progress(" - ".join(jobs[job].hosts), "measured" if result.links else "not measured")
    order = {(pair.network, pair.hosts): number for number, pair in enumerate(pairs)}
    measured.links.sort(key=lambda link: order[link.network, link.hosts])
    return measured


def _open_sessions(
    inventory: Inventory, pairs: Sequence[Pair], pool: ThreadPoolExecutor, stack: contextlib.ExitStack, to: LinkResults
) -> dict[str, LinkSession]:
    """A session on every host of `pairs` that lets us in; the others get a finding. `stack` closes them."""
    names = dict.fromkeys(host for pair in pairs for host in pair.hosts)
    sessions = {}
    for opened in pool.map(_open_session, (inventory.host(name) for name in names)):
        if isinstance(opened, Finding):
            to.problems.append(opened)
        else:
            stack.callback(opened.close)
            sessions[opened.host] = opened
    return sessions


def _open_session(host: Host) -> LinkSession | Finding:
    try:
        return LinkSession(host)
    except HostError as error:
        return _problem(RULE_OF_ERROR[error.kind], (host.name,), error.evidence, error.hint)
    except LinkProblem as problem:
        return _problem(problem.rule, (host.name,), problem.evidence, "set `python` in hosts.yaml to one that runs")


def _measure_pair(inventory: Inventory, pair: Pair, sessions: Sessions, limits: LinkLimits) -> LinkResults:
    """Every test of one pair, one after the other, both directions; none if a host let nobody in."""
    result = LinkResults()
    if not all(host in sessions for host in pair.hosts):
        return result
    directions: tuple[Direction, ...] = ("forward", "backward")
    for direction in directions:
        test = _Test(pair, direction, sessions, limits)
        for links in (test.tcp_links(), test.rdma_links(inventory)):
            try:
                for link in links:
                    result.links.append(link)
            except LinkProblem as problem:
                result.problems.append(_pair_problem(test, problem))
    return result


@dataclass(frozen=True)
class _Test:
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
        """A link for each number of streams, by iperf3 or else our own test. Raises LinkProblem at a failure."""
        source, address = self.sender.address, self.receiver.address
        methods = [method for method in _TCP_METHODS if method in self.limits.methods]
        usable = [method for method in methods if method == "tcp" or self._both_have(method)]
        if source is None or address is None or not usable:
            return
        latency = self._latency_s(source, address)
        measure = self._iperf3 if usable[0] == "iperf3" else self._tcp
        devices = (self.sender.netdev or source, self.receiver.netdev or address)
        for streams in self.limits.streams:
            yield self._link(usable[0], streams, devices, latency, measure(source, address, streams))

    def rdma_links(self, inventory: Inventory) -> Iterator[Link]:
        """A link of one rail, by ib_write_bw where both have it. Raises LinkProblem at a failure."""
        hcas = self._hcas()
        address = self.receiver.address or _shared_address(inventory, self.receiver.host)
        if hcas and address and "ib_write_bw" in self.limits.methods and self._both_have("ib_write_bw"):
            rates = [self._ib_write_bw(hcas, address) for _ in range(RDMA_RUNS)]
            yield self._link("ib_write_bw", 1, hcas, None, rates)

    def _both_have(self, tool: str) -> bool:
        return all(tool in self.sessions[host].tools for host in self.pair.hosts)

    def _hcas(self) -> tuple[str, str] | None:
        """One rail of each end; the pairs of a network take turns through the rails."""
        rails = min(len(self.sender.hcas), len(self.receiver.hcas))
        if rails == 0:
            return None
        number = self.pair.number % rails
        return self.sender.hcas[number], self.receiver.hcas[number]

    def _latency_s(self, source: str, address: str) -> Spread:
        """Half the time of small round trips."""
        token = secrets.token_hex(8)
        port = self._server.ask("echo", address=address, token=token, seconds=PING_S)["port"]
        values = {"count": PING_COUNT, "seconds": PING_S}
        round_trips, _ = self._both("ping", source=source, address=address, port=port, token=token, **values)
        half = [seconds / 2 for seconds in round_trips["round_trips_s"]]
        if not half:
            raise LinkProblem("PROBE-TOOL-FAILED", f"no byte came back from {address} port {port}")
        return _spread(half)

    def _tcp(self, source: str, address: str, streams: int) -> Sequence[float]:
        """Bytes per second in windows of one transfer, as they arrived."""
        token = secrets.token_hex(8)
        bounds = {"streams": streams, "seconds": self.limits.seconds, "size_bytes": self.limits.size_bytes}
        port = self._server.ask("receive", address=address, token=token, **bounds)["port"]
        _, received = self._both("send", source=source, address=address, port=port, token=token, **bounds)
        return _rates(window_rates, received["points"])

    def _iperf3(self, source: str, address: str, streams: int) -> Sequence[float]:
        """The same with iperf3; the server's figures, since what a sender has sent may still lie in its buffers."""
        seconds = self.limits.seconds + TOOL_SPARE_S
        port = self._server.ask("serve_tool", words=iperf3_server(address), seconds=seconds)["port"]
        words = iperf3_client(source, address, port, streams, self.limits.seconds, self._size_bytes())
        client, server = self._both("run_tool", words=words, seconds=seconds)
        for answer in (client, server):
            _check_exit("iperf3", answer["exit_code"], answer["errors"] or answer["output"])
        return _rates(parse_iperf3, server["output"])

    def _size_bytes(self) -> int | None:
        """The bound in bytes where the links are fast enough to reach it first, or may be; None for a bound in time."""
        rates = [port.bandwidth_bytes_per_s for port in self.pair.ports]
        known = [rate for rate in rates if rate is not None]
        slow = known and min(known) * self.limits.seconds <= self.limits.size_bytes
        return None if slow else self.limits.size_bytes

    def _ib_write_bw(self, hcas: tuple[str, str], address: str) -> float:
        """Average bytes per second of one run between two HCAs; `address` is for its handshake."""
        seconds, size = self.limits.seconds + TOOL_SPARE_S, self.limits.size_bytes
        words = ib_write_bw(hcas[1], None, "{port}", size)
        port = self._server.ask("serve_tool", words=words, seconds=seconds)["port"]
        words = ib_write_bw(hcas[0], address, str(port), size)
        client, _ = self._both("run_tool", words=words, seconds=seconds)
        _check_exit("ib_write_bw", client["exit_code"], client["errors"] or client["output"])
        return _rates(lambda answer: (parse_ib_write_bw(answer),), client["output"])[0]

    @property
    def _server(self) -> LinkSession:
        return self.sessions[self.receiver.host]

    def _both(self, command: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sender's answer to `command`, and the one the receiver still owes; the sender's fault counts first."""
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


def _check_exit(tool: str, code: int, message: str) -> None:
    """Raises LinkProblem with the tool's last words where it failed."""
    if code != 0:
        last = (message.strip().splitlines() or ["no message"])[-1]
        text = "not done in time" if code in (124, 137) else f"exit {code}: {last.strip()[:200]}"
        raise LinkProblem("PROBE-TOOL-FAILED", f"{tool}: {text}")


def _rates(parse: Callable[..., Sequence[float]], answer: object) -> Sequence[float]:
    try:
        return parse(answer)
    except (ValueError, KeyError, TypeError) as error:
        raise LinkProblem("PROBE-TOOL-FAILED", f"its figures cannot be read: {error}") from None


def _pair_problem(test: _Test, problem: LinkProblem) -> Finding:
    evidence = f"{test.sender.host} to {test.receiver.host} on {test.pair.network}: {problem.evidence}"
    closed = "open the ports of `net.ipv4.ip_local_port_range` between these hosts"
    failed = "run the tool between the two hosts by hand and read its message"
    remedy = closed if problem.rule == "NET-PORT-CLOSED" else failed
    return _problem(problem.rule, test.pair.hosts, evidence, remedy)


def _problem(rule: str, hosts: tuple[str, ...], evidence: str, remedy: str) -> Finding:
    return Finding(
        rule=rule,
        severity="W" if rule == "PROBE-TOOL-FAILED" else "F",
        hosts=hosts,
        evidence=evidence,
        effect="this link was not measured" + ("; NCCL and Gloo meet here" if rule == "NET-PORT-CLOSED" else ""),
        remedy=remedy,
    )
