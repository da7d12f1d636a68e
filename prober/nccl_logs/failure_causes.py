"""Causes that stop a run: versions, interfaces, connections, RDMA, shared memory, multicast memory."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import replace

from prober.nccl_logs import cause_texts as causes
from prober.nccl_logs.cause_texts import LogFinding
from prober.nccl_logs.log_facts import LogFacts, LoggedVariable, NcclProcess, Sighting
from prober.nccl_logs.run_facts import RunFacts, network_of

_LOCAL_NAME = re.compile(r"(docker|lo$|lo:|virbr|veth|br-|cni|flannel|cali|tunl|kube-ipvs|podman|pod-id-link)")
_DOCKER0 = "172.17.0.1"  # Docker's default address for docker0 on each host
_STATUS_NAMES = {
    "IBV_WC_LOC_PROT_ERR": 4,
    "IBV_WC_WR_FLUSH_ERR": 5,
    "IBV_WC_REM_ACCESS_ERR": 10,
    "IBV_WC_REM_OP_ERR": 11,
    "IBV_WC_RETRY_EXC_ERR": 12,
    "IBV_WC_RNR_RETRY_EXC_ERR": 13,
}
_PROTECTION = {4, 10}
_UNREACHED = {12, 13}
_SHARED_SETTINGS = re.compile(  # variables on which both ends of a connection must agree
    r"NCCL_(ALGO|PROTO|NET|NET_PLUGIN|IB_DISABLE|P2P_\w*|SHM_DISABLE|BUFFSIZE|LL_BUFFSIZE|LL128_BUFFSIZE|NTHREADS"
    r"|M(?:IN|AX)_(?:NCHANNELS|CTAS|NRINGS)|CROSS_NIC|NVLS_ENABLE|COLLNET_ENABLE|IB_MERGE_NICS|IB_SPLIT_DATA_ON_QPS"
    r"|IB_QPS_PER_CONNECTION|NSOCKS_PERTHREAD|SOCKET_NTHREADS|NCHANNELS_PER_NET_PEER|RUNTIME_CONNECT|PXN_DISABLE"
    r"|IB_GID_INDEX|IB_HCA|OOB_NET_ENABLE|CUMEM_ENABLE|MNNVL_ENABLE|NET_SHARED_BUFFERS)$"
)


def failures(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    """Yield causes that stop the run, the most certain first."""
    yield from _versions(facts)
    yield from _shared_memory(facts)
    yield from _nvls(facts)
    yield from _rdma(facts, run)
    yield from _settings(facts)
    yield from _interfaces(facts, run)
    yield from _connections(facts)


def _versions(facts: LogFacts) -> Iterator[LogFinding]:
    if mismatch := facts.first("version-mismatch"):
        versions = " and ".join(facts.versions)
        detail, remedy = (f": {versions}", f"{versions} are in use. ") if versions else ("", "")
        yield causes.VERSION_MISMATCH.finding(mismatch.evidence, detail=detail, remedy=remedy)
    elif len(facts.versions) > 1 and not facts.completed and facts.first("truncated", "odd-family"):
        lines = list(facts.versions.values())
        yield causes.VERSION_MISMATCH.finding(
            *lines[:2], facts.line("odd-family", "truncated"), detail=f": {' and '.join(facts.versions)}"
        )
    elif (odd := facts.first("odd-family")) and not _ignored_name(facts, odd) and facts.first("bootstrap"):
        apart = len(_networks(facts)) > 1 or facts.first("ofi-failed", "plugin-failed")
        if not apart:
            detail = ": the address that a peer sent reads as nonsense, though the bootstrap had an interface"
            yield causes.VERSION_MISMATCH.finding(odd.evidence, detail=detail)


def _ignored_name(facts: LogFacts, odd: Sighting) -> LoggedVariable | None:
    """Return NCCL_SOCKET_IFNAME of a process that names no interface afterwards, so that none matched."""
    for process in facts.processes.values():
        setting = process.settings.get("NCCL_SOCKET_IFNAME")
        same = process.host == odd.host or not odd.host
        if setting and same and not process.interfaces and not process.sockets and not process.out_of_band:
            return setting
    return None


def _networks(facts: LogFacts) -> set[str]:
    return set(filter(None, map(network_of, facts.processes.values())))


def _shared_memory(facts: LogFacts) -> Iterator[LogFinding]:
    shm = facts.signs.get("shm", [])
    if shm and not (facts.completed and all("retrying" in sighting.evidence.text for sighting in shm)):
        text = " ".join(sighting.evidence.text for sighting in shm)
        detail = ": it is full" if "No space left" in text else ""
        detail = ": the segment of another rank is not there" if "No such file" in text else detail
        yield causes.SHM_FAILED.finding(*(sighting.evidence for sighting in shm), detail=detail)


def _nvls(facts: LogFacts) -> Iterator[LogFinding]:
    """Yield a failure of multicast memory. A trace through its source file counts only without other errors."""
    nvls = facts.signs.get("nvls", [])
    others = facts.first("peer-closed", "other-warning", "connect-failed", "completion", "modify-qp")
    full = next((each for each in facts.signs.get("cuda", ()) if "out of memory" in each.evidence.text), None)
    own = [each.evidence for each in nvls]
    if nvls and not (full and full.evidence not in own):
        detail = ": the GPU has too little memory left" if full else ""
        finding = causes.NVLS_FAILED.finding(*own, detail=detail)
        yield replace(finding, is_remark=facts.first("cleanup") is not None and not facts.first("fatal"))
    elif not nvls and not others and not facts.first("cuda") and (trace := facts.line("nvls-trace")):
        yield causes.NVLS_FAILED.finding(trace)


def completion_status(sighting: Sighting) -> int | None:
    """Return the status of a completion, which NCCL prints as a number, a name, or both."""
    text = sighting.values["status"]
    number = re.search(r"\((\d{1,4})\)", text) or re.fullmatch(r"(\d{1,4})", text)
    return int(number[1]) if number else _STATUS_NAMES.get(text)


def _rdma(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    completions = facts.signs.get("completion", [])
    broken = [each for each in completions if completion_status(each) in _PROTECTION]
    failed = [
        each
        for each in facts.signs.get("register-failed", [])
        if not re.search("Cannot allocate|not supported", each.values["error"]) or "dmabuf" in each.evidence.text
    ]
    efa = [each for each in failed if each.values["error"].startswith("RC")]
    if broken or efa or (failed and (facts.first("fatal") or any(each.warns for each in failed))):
        remedy = (
            "Update the EFA installer, or set FI_EFA_SET_CUDA_SYNC_MEMOPS=0 with one before 1.29.1. " if efa else ""
        )
        yield causes.GDR_BROKEN.finding(*(each.evidence for each in (broken or failed)), remedy=remedy)
    elif memory := facts.first("no-locked-memory"):
        yield causes.NO_LOCKED_MEMORY.finding(memory.evidence)
    lost = [each for each in completions if completion_status(each) in _UNREACHED]
    for sighting in (*facts.signs.get("modify-qp", ()), *lost):
        yield _unreached(facts, run, sighting)
        return
    if mixed := facts.line("mixed-links"):
        yield causes.RDMA_UNREACHABLE.finding(mixed, detail=": one end is InfiniBand and the other RoCE")
    yield from _link_events(facts)


def _link_events(facts: LogFacts) -> Iterator[LogFinding]:
    """Yield a failure of a port or queue pair, as a remark if the port came back and nothing failed afterwards."""
    for event in facts.signs.get("link-event", ()):
        port, line = event.values.get("port"), event.evidence
        later = (each for each in facts.signs.get("link-up", ()) if each.evidence.line > line.line)
        back = any(each.evidence.file == line.file and each.values.get("port") == port for each in later)
        if event.warns or facts.first("fatal"):
            detail = ": a port went down and came back" if back else ": a port or queue pair failed"
            finding = causes.RDMA_UNREACHABLE.finding(line, detail=f"{detail}{f' ({port})' if port else ''}")
            yield replace(finding, is_remark=back and not facts.first("fatal"))
            return


def _unreached(facts: LogFacts, run: RunFacts, sighting: Sighting) -> LogFinding:
    """Return the cause of a queue pair that does not reach its peer: the GID, the rail, or else the fabric."""
    local, remote, error = (sighting.values.get(name, "") for name in ("local", "remote", "error"))
    line = sighting.evidence
    for event in facts.signs.get("link-event", ()) if "status" in sighting.values else ():
        if (event.host, event.evidence.file) == (sighting.host, line.file) and event.evidence.line < line.line:
            return causes.RDMA_UNREACHABLE.finding(event.evidence, line, detail=": a port or queue pair failed before")
    roce = run.network == "RoCE" or bool(local)
    if any(_is_link_local(gid) for gid in (local, remote)) and run.network != "IB":
        return causes.ROCE_GID.finding(line, detail=f": {local} to {remote or 'a peer'}")
    low = facts.setting("NCCL_IB_GID_INDEX", "0", "1", "2", host=sighting.host)  # link-local, or of RoCE v1
    if roce and not local and (sign := facts.line("link-local-gid") or (low and low.evidence)):
        return causes.ROCE_GID.finding(line, sign)
    if facts.first("gid-hint") or (roce and re.match(r"Network is unreachable|Invalid argument", error)):
        setting = facts.setting("NCCL_IB_GID_INDEX", host=sighting.host)
        return causes.ROCE_GID.finding(line, setting.evidence if setting else facts.line("gid-hint"))
    if bool(local) != bool(remote) and roce and sighting.values.get("index") == "0":
        return causes.ROCE_GID.finding(line)
    unresolved = re.match("Connection timed out|No route", error)
    ends = {(each.values.get("local", ""), each.values.get("remote", "")) for each in facts.signs.get("completion", ())}
    several = len([pair for pair in ends if all(pair) and _rails_differ(*pair)]) > 1
    # Where others have connected, rails are routed, and a single pair may just be down.
    lost = not error and len(run.hcas) > 1 and (several or not facts.first("connected"))
    rails = unresolved or lost or facts.first("rail-hint")
    if local and remote and rails and _rails_differ(local, remote):
        return causes.RAILS_UNROUTABLE.finding(line, facts.line("rail-hint"), detail=f": {local} and {remote}")
    if facts.first("rail-hint") and not local:
        return causes.RAILS_UNROUTABLE.finding(line, facts.line("rail-hint"))
    return causes.RDMA_UNREACHABLE.finding(line)


def _is_link_local(gid: str) -> bool:
    return gid.lower().startswith("fe80:") or gid in ("::", "0:0:0:0:0:0:0:0")


def _rails_differ(local: str, remote: str) -> bool:
    """Return True unless both GIDs are IPv4 addresses of one /24. Masked ones count as different, as in NCCL's hint."""
    ends = [gid.lower().removeprefix("::ffff:").rstrip(",") for gid in (local, remote)]
    try:
        first, second = (ipaddress.IPv4Address(end) for end in ends)
    except ValueError:
        return all(gid.lower().startswith("::ffff:") for gid in (local, remote))
    return first.packed[:3] != second.packed[:3]


def differing_settings(facts: LogFacts) -> list[tuple[str, LoggedVariable, NcclProcess | None]]:
    """Return variables that differ between processes, each with one of its lines and a process without it.

    Only processes at the same point are compared, because NCCL logs a variable when it first reads it.
    """
    grown = [process for process in facts.processes.values() if process.pid and process.settings | process.networks]
    differing: list[tuple[str, LoggedVariable, NcclProcess | None]] = []
    for name in sorted({name for process in grown for name in process.settings if _SHARED_SETTINGS.match(name)}):
        values = {process.settings[name].value: process for process in grown if name in process.settings}
        having = [process for process in grown if name in process.settings]
        hosts = {process.host for process in having}
        missing = [process for process in grown if name not in process.settings and process.host not in hosts]
        if name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX") and len(values) < 2:
            continue
        if len(values) > 1 or any(process.networks for process in missing):
            differing.append((name, having[0].settings[name], missing[0] if missing else None))
    return differing


def _settings(facts: LogFacts) -> Iterator[LogFinding]:
    """Yield a variable that differs, if an error or a second network shows that it matters."""
    sign = facts.first("truncated", "mixed-nics", "timeout")
    apart = len(_networks(facts)) > 1
    if sign is None and not apart and not (facts.first("odd-family") and facts.first("bootstrap")):
        return
    networks = [line for process in facts.processes.values() for line in process.networks.values()] if apart else []
    for name, setting, _ in differing_settings(facts):
        matters = r"NCCL_(NET|NET_PLUGIN|IB_DISABLE|IB_HCA)$" if apart else r"NCCL_(ALGO|PROTO|\w*BUFFSIZE)$"
        if setting.value and (facts.first("truncated", "mixed-nics") or re.match(matters, name)):
            lines = (setting.evidence, sign.evidence if sign else None, *networks[:1])
            yield causes.ENV_MISMATCH.finding(*lines, detail=f": {name}={setting.value}", remedy=f"{name}: ")
            return
    if truncated := facts.line("truncated"):
        detail = ": ranks disagree about the size of a message, and these logs do not have the variable"
        remedy = "If variables are the same, compare versions of NCCL, and the ranks' collective calls. "
        yield causes.ENV_MISMATCH.finding(truncated, detail=detail, remedy=remedy)
    if sign and "mixed-nics" in facts.signs:
        yield causes.ONE_NIC.finding(sign.evidence, detail=": some ranks see fewer than others")


def is_local(name: str, address: str) -> bool:
    """Return True for an interface or an address that other hosts cannot reach."""
    try:
        own = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return bool(_LOCAL_NAME.match(name))
    return own.is_loopback or (own.version == 4 and own.is_link_local) or bool(_LOCAL_NAME.match(name))


def _interfaces(facts: LogFacts, run: RunFacts) -> Iterator[LogFinding]:
    if missing := facts.first("no-interface"):
        names = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
        setting = next(filter(None, (facts.setting(name, host=missing.host) for name in names)), None)
        yield causes.WRONG_INTERFACE.finding(missing.evidence, setting.evidence if setting else None)
    odd = facts.first("odd-family")
    if odd and (setting := _ignored_name(facts, odd)):
        yield causes.WRONG_INTERFACE.finding(
            setting.evidence, odd.evidence, detail=f": none is named {setting.value} (no `Bootstrap: Using` follows)"
        )
    named = (each.interfaces | each.out_of_band | each.sockets for each in facts.processes.values())
    shared = [(name, own) for names in named for name, own in names.items() if not is_local(name, own)]
    docker = "" if any(own.startswith(_DOCKER0[:-3]) for _, own in shared) else _DOCKER0
    for sighting in _unconnected(facts, "connect-failed", "connect-retry"):
        peer = sighting.values.get("peer", "")
        if peer and (is_local("", peer) or peer == docker) and not run.is_one_host:
            hosts_file = (
                "Take the peer's name off the line of 127.0.1.1 in its /etc/hosts. " if peer == "127.0.1.1" else ""
            )
            detail = f": a peer announced {peer}, which is local to its host"
            yield causes.WRONG_INTERFACE.finding(sighting.evidence, detail=detail, remedy=hosts_file)
            return
    local = [
        process
        for process in facts.processes.values()
        for name, address in list(process.interfaces.items())[:1]
        if is_local(name, address)
    ]
    several = (run.num_nodes or 0) > 1 or len(run.hosts) > 1
    failed = facts.first("fatal") or _unconnected(facts, "connect-failed", "connect-retry")
    if local and not facts.completed and (several or (failed and not run.is_one_host) or _waits(facts)):
        name, address = next(iter(local[0].interfaces.items()))
        lines = [each for each in facts.signs["bootstrap"] if f"{name}:" in each.evidence.text]
        line = next((each.evidence for each in lines if each.host == local[0].host), None)
        yield causes.WRONG_INTERFACE.finding(line, facts.line("connect-failed"), detail=f": {name} ({address})")


def _waits(facts: LogFacts) -> bool:
    """Return True if a communicator with more ranks than the log has was begun and none was made."""
    return facts.largest is not None and not facts.completed and len(facts.largest.ranks) < facts.largest.num_ranks


def _unconnected(facts: LogFacts, *signs: str) -> list[Sighting]:
    """Return failed connections of processes that made no connection later."""
    return [each for sign in signs for each in facts.signs.get(sign, ()) if not facts.went_on(each)]


def blocked(facts: LogFacts) -> list[Sighting]:
    """Return failed connections. In a running job, failures after a peer closed a connection only follow from that."""
    failed, closed = _unconnected(facts, "connect-failed"), facts.first("peer-closed")
    if closed is None or not facts.completed:
        return failed
    file, line, _ = closed.evidence
    return [each for each in failed if each.evidence.file != file or each.evidence.line < line]


def _connections(facts: LogFacts) -> Iterator[LogFinding]:
    if failed := blocked(facts):
        peer, error = (failed[0].values.get(name, "").strip() for name in ("peer", "error"))
        yield causes.BOOTSTRAP_BLOCKED.finding(
            *(each.evidence for each in failed), detail=f" ({peer}: {error})" if peer else ""
        )
    elif facts.completed:
        return
    elif len(retries := _unconnected(facts, "connect-retry")) > 1:
        yield causes.BOOTSTRAP_BLOCKED.finding(retries[-1].evidence)
    elif (trace := facts.line("bootstrap-trace")) and not facts.first("other-warning", "peer-closed", "cuda"):
        yield causes.BOOTSTRAP_BLOCKED.finding(trace)  # NCCL 2.18 fails so without a warning
