"""Ask all hosts at once, one SSH round trip each, and put the Inventory together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from holmes_core.errors import HostError
from holmes_core.hosts_file import Access, HostEntry, HostsFile
from holmes_core.inventory import Finding, Host, Inventory
from holmes_core.transport import connect
from prober.audit import audit, joined
from prober.clusters import find_clusters, find_shared_network
from prober.facts.question import Output, cut, script
from prober.read_host import commands, read_host, tool_findings

HOST_TIMEOUT_S = 60.0
MAX_AT_ONCE = 64

Progress = Callable[[str, str], None]


def probe(hosts_file: HostsFile, progress: Progress) -> Inventory:
    """The Inventory of all hosts. `progress(host, state)` is called as each one is done.

    A host that cannot be reached or read stays in the inventory with a finding, and hides no other.
    """
    entries = hosts_file.hosts
    with ThreadPoolExecutor(max_workers=min(MAX_AT_ONCE, len(entries))) as pool:
        jobs = {pool.submit(_probe_host, hosts_file, entry): entry.name for entry in entries}
        results = {}
        for job in as_completed(jobs):
            host, _ = results[jobs[job]] = job.result()
            progress(host.name, "read" if host.reachable else "not reachable")
    hosts = tuple(results[entry.name][0] for entry in entries)
    pins = {entry.name: entry.cluster for entry in entries if entry.cluster is not None}
    clusters, pin_findings = find_clusters(hosts, pins)
    shared = find_shared_network(hosts)
    host_findings = [finding for entry in entries for finding in results[entry.name][1]]
    findings = joined((*host_findings, *pin_findings, *audit(hosts, clusters, shared)))
    return Inventory(hosts=hosts, clusters=clusters, shared=shared, findings=findings)


def _probe_host(hosts_file: HostsFile, entry: HostEntry) -> tuple[Host, list[Finding]]:
    access = hosts_file.access(entry)
    try:
        outputs = _ask(entry.name, access)
    except HostError as error:
        finding = Finding(
            rule=error.rule,
            severity="F",
            hosts=(entry.name,),
            evidence=error.evidence,
            effect="nothing is known of this host; the plan leaves it out",
            remedy=error.hint,
        )
        return Host(name=entry.name, access=access, reachable=False), [finding]
    host = read_host(entry.name, access, outputs, {**hosts_file.speeds_gbps, **entry.speeds_gbps})
    return host, tool_findings(entry.name, outputs)


def _ask(name: str, access: Access) -> Mapping[str, Output]:
    """All outputs of one host, in one round trip; nothing is written there."""
    token = f"@@{secrets.token_hex(8)}"
    text = script(commands(access), token)
    connection = connect(name, access)
    try:
        answer = connection.run("sh -s", text.encode(), HOST_TIMEOUT_S)
    finally:
        connection.close()
    return cut(answer.stdout.decode(errors="replace"), token)
