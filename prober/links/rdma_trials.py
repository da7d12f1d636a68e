"""Trials of RDMA between hosts that facts neither join nor separate. `fabrics/settle.py` evaluates them.

A trial counts as failed only if the tools of both ends met over TCP and then nothing passed by RDMA. A missing tool or
a closed port proves nothing, and TCP over the rails' netdevs proves nothing about RDMA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from holmes_core.errors import HostError
from holmes_core.records.inventory import Host, Inventory, NetworkPort
from holmes_core.records.link import DIRECTIONS
from holmes_core.units import format_rate
from prober.fabrics.collisions import Pair as Names
from prober.fabrics.placing import Placing
from prober.fabrics.settle import RdmaVerdict, next_pairs, settle
from prober.links.link_pairs import Pair
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.link_tools import gid_options, unanswered_line
from prober.links.pair_test import USUAL_LIMITS, PairTest

MAX_AT_ONCE = 64
MAX_ROUNDS = 64  # of pairs without a host in common; later pairs stay undecided
MAX_RAILS = 2  # per pair, in case one is broken
LIMITS = replace(USUAL_LIMITS, size_bytes=16 * 10**6)

Entered = LinkSession | str
"""A host's session, or the reason why there is none."""
Progress = Callable[[str, str], None]


def try_open_pairs(
    inventory: Inventory, placing: Placing, progress: Progress, enter: Callable[[Host], LinkSession] = LinkSession
) -> tuple[RdmaVerdict, ...]:
    """Return trials between clusters that a finding asks about, and of their hosts with neighbours.

    `progress("a1 - b1", verdict)` is called after each. `enter` opens a host's session. All are closed at the end.
    """
    trials: list[RdmaVerdict] = []
    sessions: dict[str, Entered] = {}
    with ThreadPoolExecutor(max_workers=MAX_AT_ONCE) as pool, contextlib.ExitStack() as stack:
        for _ in range(MAX_ROUNDS):
            pairs = next_pairs(settle(placing, trials))
            if not pairs:
                break
            new = [name for pair in pairs for name in pair if name not in sessions]
            opened = pool.map(lambda name: _entered(inventory.host(name), enter), new)
            for name, session in zip(new, opened, strict=True):
                sessions[name] = session
                if not isinstance(session, str):
                    stack.callback(session.close)
            for trial in pool.map(lambda pair: _trial(inventory, pair, sessions), pairs):
                trials.append(trial)
                progress(" - ".join(trial.hosts), trial.verdict)
    return tuple(trials)


def _entered(host: Host, enter: Callable[[Host], LinkSession]) -> Entered:
    try:
        return enter(host)
    except (HostError, LinkProblem) as error:
        return f"{host.name} cannot be entered: {error.evidence}"


def _trial(inventory: Inventory, names: Names, sessions: Mapping[str, Entered]) -> RdmaVerdict:
    """Try up to MAX_RAILS rails of both hosts, forward and backward, until one passes data."""
    entered: dict[str, LinkSession] = {}
    for name in names:
        session = sessions[name]
        if isinstance(session, str):
            return RdmaVerdict(names, "unknown", session)
        entered[name] = session
    missing = [name for name in names if "ib_write_bw" not in entered[name].tools]
    if missing:
        where = " and ".join(missing)
        return RdmaVerdict(names, "unknown", f"ib_write_bw is missing on {where}, and TCP proves nothing of RDMA")
    ports = (_port(inventory, names[0]), _port(inventory, names[1]))
    tests = [PairTest(Pair("inside", "rails", names, ports, 0), way, entered, LIMITS) for way in DIRECTIONS]
    unanswered: list[str] = []
    other: list[str] = []
    for test, hcas in _runs(tests):
        try:
            return RdmaVerdict(names, "works", _rate(inventory, test, hcas))
        except LinkProblem as problem:
            line = _proof(inventory, test, hcas, problem)
            if line is not None:
                unanswered.append(f"{_way(test, hcas)}: {line}")
            else:
                other.append(f"{test.sender.host} to {test.receiver.host}: {problem.evidence}")
    if unanswered and not other:
        return RdmaVerdict(names, "fails", ", ".join(unanswered))
    return RdmaVerdict(names, "unknown", ", ".join(other) or "no address is known at which the tools could meet")


def _runs(tests: Iterable[PairTest]) -> Iterable[tuple[PairTest, Names]]:
    """Return each rail in one direction and then the other."""
    of_ways = [[(test, hcas) for hcas in test.rails()[:MAX_RAILS]] for test in tests if test.receiver.address]
    return (run for runs in zip(*of_ways, strict=False) for run in runs)


def _rate(inventory: Inventory, test: PairTest, hcas: Names) -> str:
    """Return the path and the measured rate, in words."""
    assert test.receiver.address is not None
    rate = test.rdma_rate(hcas, test.receiver.address, _options(inventory, test, hcas))
    return f"{_way(test, hcas)} at {format_rate(rate)}"


def _way(test: PairTest, hcas: Names) -> str:
    return f"ib_write_bw from {hcas[0]} of {test.sender.host} to {hcas[1]} of {test.receiver.host}"


def _options(inventory: Inventory, test: PairTest, hcas: Names) -> tuple[list[str], list[str]]:
    """Return the options for the GID of each end that NCCL uses. Older tools take the first, which is link-local."""
    ends = (test.sender.host, test.receiver.host)
    sender, receiver = (gid_options(inventory.host(host), hca) for host, hca in zip(ends, hcas, strict=True))
    return (sender, receiver) if sender and receiver else ([], [])


def _proof(inventory: Inventory, test: PairTest, hcas: Names, problem: LinkProblem) -> str | None:
    """Return the line that shows lost packets. RoCE without a chosen GID proves nothing: the GID may be wrong."""
    nics = inventory.host(test.sender.host).nics
    roce = any(nic.kind == "RoCE" for nic in nics if nic.hca == hcas[0])
    gid_known = bool(_options(inventory, test, hcas)[0])
    return unanswered_line(problem.output) if gid_known or not roce else None


def _port(inventory: Inventory, name: str) -> NetworkPort:
    """Return the host's port on its fabric, with its address on the shared network for the tools to meet."""
    port = next(port for cluster in inventory.clusters for port in cluster.fabric.ports if port.host == name)
    shared = inventory.shared.port_of(name) if inventory.shared else None
    return port.model_copy(update={"address": shared.address}) if shared and shared.address else port
