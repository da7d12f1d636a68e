"""Make an Inventory: ask all hosts at once, in one SSH round trip each, or read a recording of their answers."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from holmes_core.errors import HolmesError, HostError
from holmes_core.hosts.hosts_file import HostEntry, HostsFile, StatedTrunk
from holmes_core.records.access import Access
from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.link import IN_THE_CLEAR, Security
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import Connection, last_lines
from prober.asking.answers import read_hosts
from prober.asking.commands import cut, fresh_token, script
from prober.asking.recording import (
    HostNotes,
    HostRecording,
    Recorded,
    make_recording_folder,
    read_site,
    write_recording,
    write_site,
)
from prober.fabrics.clusters import find_clusters, find_shared_network, place_hosts
from prober.fabrics.nvlink_domains import domain_findings, find_nvlink_domains
from prober.fabrics.own_bridges import with_own_bridges
from prober.fabrics.placing import Placing
from prober.fabrics.settle import RdmaVerdict
from prober.facts.machine.limits import parse_clock
from prober.findings.audit import audit, joined
from prober.findings.gpu_choice import gpu_choice_findings
from prober.findings.hint_findings import hint_findings
from prober.findings.stated_trunks import find_stated_trunks
from prober.findings.tool_findings import tool_findings
from prober.findings.value_findings import value_findings
from prober.rails.choose_rails import with_rails
from prober.rails.stated_rails import stated_rail_findings
from prober.read_host import commands, read_host
from prober.rules.reported_rules import NO_ANSWER, RULE_OF_ERROR, UNREACHABLE

HOST_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.5
MAX_AT_ONCE = 256  # threads; most hosts are waiting for the second reading of their NIC counters
MAX_CONNECTING = 64  # a login takes about 50 ms of a local core; with more at once, SSH would time out
_connecting = threading.BoundedSemaphore(MAX_CONNECTING)

Progress = Callable[[str, str], None]
TryOpenPairs = Callable[[Inventory, Placing], Sequence[RdmaVerdict]]
"""Tries RDMA between hosts that facts neither join nor separate, and returns the verdicts."""


def probe(
    hosts_file: HostsFile, progress: Progress, record: Path | None = None, try_open_pairs: TryOpenPairs | None = None
) -> Inventory:
    """Return the Inventory of all hosts. Call `progress(host, state)` after each host, and keep outputs in `record`.

    `try_open_pairs` tries pairs of hosts that facts leave open. A host that cannot be reached or read stays in the
    inventory with a finding, and does not affect others.
    """
    recorded = ask_all(hosts_file, functools.partial(_ask_host, hosts_file), progress, record)
    if record is not None:
        write_site(record, hosts_file.trunks, hosts_file.security)
    read = [read_recording(name, recording) for name, recording in recorded.items()]
    stated = hosts_file.trunks, hosts_file.security
    inventory = inventory_of_read(read, *stated)
    trials = try_open_pairs(inventory, place_hosts(inventory.hosts, _pins(read))) if try_open_pairs else ()
    return inventory_of_read(read, *stated, trials) if trials else inventory


def ask_all(
    hosts_file: HostsFile,
    ask: Callable[[HostEntry, int], HostRecording],
    progress: Progress,
    record: Path | None,
    gives_up: Callable[[], bool] = lambda: False,
) -> dict[str, HostRecording]:
    """Return the answers of all hosts by name, in order, and keep them in the folder `record`.

    `ask` gets a host and its position. Ctrl-C takes effect at once, because daemon threads end with the process; a pool
    would wait for its threads. Once `gives_up()` is true, hosts that have not answered count as failed.

    Raises:
        HolmesError: `record` holds a recording, or cannot be written.
    """
    if record is not None:
        make_recording_folder(record)
    waiting, done = SimpleQueue[tuple[int, HostEntry]](), SimpleQueue[tuple[str, Future[HostRecording]]]()
    for numbered in enumerate(hosts_file.hosts):
        waiting.put(numbered)

    def work() -> None:
        with contextlib.suppress(Empty):
            while True:
                position, entry = waiting.get_nowait()
                answer = Future[HostRecording]()
                try:
                    answer.set_result(ask(entry, position))
                except BaseException as error:
                    answer.set_exception(error)
                done.put((entry.name, answer))

    for _ in range(min(MAX_AT_ONCE, len(hosts_file.hosts))):
        threading.Thread(target=work, daemon=True).start()
    answers: dict[str, HostRecording] = {}
    while len(answers) < len(hosts_file.hosts) and not gives_up():
        with contextlib.suppress(Empty):
            name, answered = done.get(timeout=LOOK_AGAIN_S)
            answers[name] = answered.result()
            progress(name, "read" if answers[name].notes.failure is None else "not reachable")
    recorded = {
        entry.name: answers.get(entry.name) or _given_up(hosts_file, entry, position)
        for position, entry in enumerate(hosts_file.hosts)
    }
    if record is not None:
        for name, answer in recorded.items():
            write_recording(record, name, answer.outputs, answer.notes)
    return recorded


def _given_up(hosts_file: HostsFile, entry: HostEntry, position: int) -> HostRecording:
    failure = failure_of(entry.name, HolmesError("it did not answer in time", "probe it alone"))
    return HostRecording((), HostNotes(position=position, access=hosts_file.access(entry), failure=failure))


def script_to_run() -> str:
    """Return a shell script with all commands of `probe`, for hosts that Holmes cannot reach. See `replay`."""
    about = "# Made by `holmes probe --script`. It only reads, and needs no root: `sh probe.sh > HOST.txt`."
    return f"#!/bin/sh\n{about}\n{script(commands(Access()), fresh_token())}"


def replay(folder: Path) -> Inventory:
    """Return the Inventory of the recording or answers in `folder`.

    Raises:
        HolmesError: A file or key cannot be read. The message names it.
    """
    return inventory_of(read_hosts(folder), *read_site(folder))


def inventory_of(
    recorded: Mapping[str, HostRecording], stated: Sequence[StatedTrunk] = (), security: Security = IN_THE_CLEAR
) -> Inventory:
    """Return the Inventory of the hosts' answers by name, with the trunks and security that hosts.yaml states.

    The same answers give the same inventory.
    """
    return inventory_of_read(
        [read_recording(name, recording) for name, recording in recorded.items()], stated, security
    )


@dataclass(frozen=True)
class ReadHost:
    """A host as read from its recording, the findings on it, and its cluster in hosts.yaml."""

    host: Host
    findings: tuple[Finding, ...]
    cluster: str | None


def read_recording(name: str, recording: HostRecording) -> ReadHost:
    """Return one host with its rails, from its recording alone."""
    notes = recording.notes
    failure = notes.failure
    if failure is None and not recording.outputs:
        failure = NO_ANSWER.finding((name,), "its recording holds no output")
    if failure is not None:
        unread = Host(name=name, access=notes.access, reachable=False, hints=notes.hints)
        return ReadHost(unread, (failure,), notes.cluster)
    host = with_rails(read_host(name, recording.outputs, notes), notes.rails)
    on_outputs = (*tool_findings(name, recording.outputs), *value_findings(host, recording.outputs))
    on_choices = (*stated_rail_findings(host, notes.rails), *gpu_choice_findings(host))
    return ReadHost(host, (*on_outputs, *on_choices), notes.cluster)


def inventory_of_read(
    read: Sequence[ReadHost],
    stated: Sequence[StatedTrunk] = (),
    security: Security = IN_THE_CLEAR,
    trials: Sequence[RdmaVerdict] = (),
) -> Inventory:
    """Return the Inventory of hosts already read, with clusters, networks and findings.

    `trials` decide which clusters are one where facts leave that open.
    """
    pinned = _pins(read)
    hosts = with_own_bridges([each.host for each in read], pinned)
    clusters, cluster_findings = find_clusters(hosts, pinned, trials)
    shared = find_shared_network(hosts)
    trunks, trunk_findings = find_stated_trunks(stated, clusters)
    host_findings = [finding for each in read for finding in each.findings]
    domains = find_nvlink_domains(hosts)
    nvlink_findings = domain_findings(domains, hosts, clusters)
    fleet_findings = (*cluster_findings, *trunk_findings, *nvlink_findings, *hint_findings(hosts, clusters))
    findings = (*host_findings, *fleet_findings, *audit(hosts, clusters, shared))
    return Inventory(
        hosts=hosts,
        clusters=clusters,
        shared=shared,
        trunks=trunks,
        nvlink_domains=domains,
        security=security,
        findings=joined(findings),
    )


def _pins(read: Sequence[ReadHost]) -> dict[str, str]:
    return {each.host.name: each.cluster for each in read if each.cluster is not None}


def _ask_host(hosts_file: HostsFile, entry: HostEntry, position: int) -> HostRecording:
    access = hosts_file.access(entry)
    notes = HostNotes(
        position=position,
        access=access,
        cluster=entry.cluster,
        speeds_gbps={**hosts_file.speeds_gbps, **entry.speeds_gbps},
        rails=entry.rails or hosts_file.rails,
        gpus=hosts_file.gpus if entry.gpus is None else entry.gpus,
        hints=entry.hints,
    )
    try:
        outputs, asked_at, answered_at = ask_by_script(
            entry.name, access, lambda token: script(commands(access), token)
        )
    except Exception as error:  # one host's failure must not stop the others
        return HostRecording((), notes.model_copy(update={"failure": failure_of(entry.name, error)}))
    clock = parse_clock(outputs)
    if clock is not None:
        began, ended = clock
        waited_s = max(0.0, (answered_at - asked_at) - (ended - began))
        skew_s = _least_skew_s(began - asked_at, ended - answered_at)
        notes = notes.model_copy(update={"round_trip_s": round(waited_s, 4), "clock_skew_s": round(skew_s, 4)})
    return HostRecording(outputs, notes)


def failure_of(name: str, error: Exception) -> Finding:
    """Return the finding on a host that could not be asked."""
    if isinstance(error, HostError):
        rule, evidence, remedy = RULE_OF_ERROR[error.kind], error.evidence, error.hint
    elif isinstance(error, HolmesError):
        rule, evidence, remedy = UNREACHABLE.id, error.what, error.hint
    else:
        rule, remedy = NO_ANSWER.id, NO_ANSWER.remedy
        evidence = f"asking it ended with {type(error).__name__}: {error}"
    return NO_ANSWER.finding((name,), evidence, remedy).model_copy(update={"rule": rule})


def _least_skew_s(after_asking_s: float, after_answer_s: float) -> float:
    """Return the smallest skew that explains the readings of a host's clock.

    On the host's clock, the script began `after_asking_s` after the question was sent, and ended `after_answer_s` after
    the answer arrived, which is usually negative. A login shell may take seconds to start the script, so neither is the
    skew itself.
    """
    return max(after_answer_s, min(0.0, after_asking_s))


def ask_by_script(
    name: str,
    access: Access,
    make: Callable[[str], str],
    timeout_s: float = HOST_TIMEOUT_S,
    connecting: Callable[[str, Access], Connection] = connect,
) -> tuple[tuple[Recorded, ...], float, float]:
    """Run a script on a host in one round trip. Return its outputs, and the times of question and answer.

    `make` returns the script, given the first word of its markers. Nothing is written on the host.

    Raises:
        HolmesError: The host does not answer.
    """
    token = fresh_token()
    with _connecting:
        connection = connecting(name, access)
    try:
        asked_at = time.time()
        answer = connection.run("sh -s", make(token).encode(), timeout_s)
        answered_at = time.time()
    finally:
        connection.close()
    outputs = cut(answer.stdout.decode(errors="replace"), token, "; ".join(last_lines(answer.stderr, 2)))
    if not outputs:
        words = "; ".join(last_lines(answer.stderr, 2) or last_lines(answer.stdout, 2)) or "without a word"
        lost = " (killed, or the connection was lost)" if answer.exit_code < 0 else ""
        what = f"its shell ended with status {answer.exit_code}{lost} and ran nothing that was asked: {words}"
        raise HostError(name, "no answer", what, NO_ANSWER.remedy)
    return outputs, asked_at, answered_at
