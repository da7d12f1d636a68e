"""A watched host, read from the raw outputs of the script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.running import watch_script as asked
from prober.running.byte_counts import (
    Connected,
    Interface,
    RdmaPort,
    connections,
    interfaces,
    parse_sockets,
    rdma_ports,
)
from prober.running.gpu_samples import WatchedGpu, parse_gpu_processes, parse_gpus
from prober.running.processes import (
    Helper,
    ProcessStat,
    WatchedRank,
    cpu_shares,
    facts_by_pid,
    families,
    is_descendant,
    parse_stats,
    split_family,
    variables_by_pid,
)

_XID = re.compile(
    r"(?:<\d{1,3}>)?\[ {0,12}(\d{1,12}\.\d{1,9})\] .{0,64}?NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,16})\): (\d{1,4})"
    r"(?:, pid=(\d{1,10})\b)?"
)
_INODE = re.compile(r"\s*(\d{1,20}) /proc/(\w{1,12})/ns/net")
MAX_XIDS = 100


class Xid(NamedTuple):
    """A fault of a GPU in the kernel log, in seconds since the host's start."""

    at_s: float
    pci_address: str
    number: int
    pid: int | None


class Busy(NamedTuple):
    """A process outside the training, with its CPU seconds per second."""

    pid: int
    name: str
    cpu_share: float


@dataclass(frozen=True)
class WatchedHost:
    """A host during the watch, which took `seconds` and began `began_s` after the host's start.

    `failure` is the reason if it could not be watched. `others` are sorted by CPU share, the busiest first. `holders`
    are the UUIDs of the GPUs of each process that computes on any.
    """

    name: str
    failure: str | None = None
    began_s: float = 0.0
    seconds: float = 0.0
    cores: int | None = None
    is_root: bool | None = None
    ranks: tuple[WatchedRank, ...] = ()
    others: tuple[Busy, ...] = ()
    connections: tuple[Connected, ...] | None = None
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[RdmaPort, ...] = ()
    gpus: tuple[WatchedGpu, ...] = ()
    holders: Mapping[int, frozenset[str]] = field(default_factory=dict)
    xids: tuple[Xid, ...] = ()
    kernel_log_refused: bool = False
    nccl_log: str = ""

    def gpus_of(self, ranks: Sequence[WatchedRank]) -> list[WatchedGpu]:
        """Return the GPUs that the ranks compute on."""
        return list({gpu.uuid: gpu for rank in ranks if (gpu := self.gpu_of(rank))}.values())

    def gpu_of(self, rank: WatchedRank) -> WatchedGpu | None:
        """Return the GPU that the rank computes on, if nvidia-smi or its variables show it."""
        uuids = {uuid for pid in (rank.pid, *(each.pid for each in rank.helpers)) for uuid in self.holders.get(pid, ())}
        if len(uuids) == 1:
            return next((gpu for gpu in self.gpus if gpu.uuid in uuids), None)
        visible = rank.variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
        local = rank.local_rank
        if local is None or uuids:
            return None
        chosen = visible[local] if visible != [""] and local < len(visible) else str(local) if visible == [""] else None
        return next((gpu for gpu in self.gpus if chosen in (str(gpu.index), gpu.uuid)), None)


@dataclass(frozen=True)
class _Outputs:
    """The outputs before, during and after the snapshots, by their commands."""

    all: Mapping[str, list[str]]
    times: tuple[float, ...]

    def of(self, command: Command) -> list[str]:
        """Return the texts of one command, in order."""
        return self.all.get(command.shown or command.shell, [])

    def ends(self, command: Command) -> tuple[str, str] | None:
        """Return the first and the last of two or more texts."""
        texts = self.of(command)
        return (texts[0], texts[-1]) if len(texts) > 1 else None


def read_watched(name: str, outputs: Sequence[Recorded], slurm_job: str | None = None) -> WatchedHost:
    """Return the host in `outputs`. Facts that no output shows are None or empty."""
    found = _by_command(outputs)
    readings = found.ends(asked.PROCESSES)
    if readings is None or len(found.times) < 2 or found.times[-1] <= found.times[0]:
        return WatchedHost(name, failure="its answer, or its ranks, ended before they were seen twice")
    seconds = found.times[-1] - found.times[0]
    first, last = (parse_stats(text) for text in readings)
    shares = cpu_shares(first, last, seconds)
    ranks = tuple(_ranks(name, found, last, shares, slurm_job))
    sockets, counters = found.ends(asked.SOCKETS), found.ends(asked.INTERFACES) or ("", "")
    own = {pid for rank in ranks for pid in (rank.pid, *(each.pid for each in rank.helpers))}
    others = (
        Busy(pid, last[pid].name, share)
        for pid, share in shares.items()
        if share > 0 and not is_descendant(pid, own, last)
    )
    log = "\n".join(found.of(asked.KERNEL_LOG))
    return WatchedHost(
        name=name,
        began_s=found.times[0],
        seconds=seconds,
        cores=_number(found.of(asked.CORES)),
        is_root=None if (user := _number(found.of(asked.USER))) is None else user == 0,
        ranks=ranks,
        others=tuple(sorted(others, key=lambda each: -each.cpu_share)),
        connections=None if sockets is None else connections(*map(parse_sockets, sockets)),
        interfaces=interfaces(_first(found.of(asked.ADDRESSES)), _first(found.of(asked.SPEEDS)), *counters),
        ports=rdma_ports(_first(found.of(asked.PORTS)), *(found.ends(asked.PORT_COUNTERS) or ("", ""))),
        gpus=parse_gpus([*found.of(asked.GPUS), *found.of(asked.GPUS_BEFORE_535)]),
        holders={
            pid: frozenset(held) for pid, held in parse_gpu_processes(_first(found.of(asked.GPU_PROCESSES))).items()
        },
        xids=tuple(_xids(log)),
        kernel_log_refused="not permitted" in log,
        nccl_log=_first(found.of(asked.NCCL_LOGS)),
    )


def _by_command(outputs: Sequence[Recorded]) -> _Outputs:
    texts: dict[str, list[str]] = {}
    times = []
    for output in outputs:
        texts.setdefault(output.command, []).append(output.text)
        if output.command == asked.UPTIME.shell and (clock := re.match(r"\d{1,12}\.\d{1,3}\b", output.text)):
            times.append(float(clock.group()))
    return _Outputs(texts, tuple(times))


def _ranks(
    host: str,
    found: _Outputs,
    last: Mapping[int, ProcessStat],
    shares: Mapping[int, float],
    slurm_job: str | None,
) -> Iterator[WatchedRank]:
    """Yield the ranks of all jobs that run on the host."""
    variables = variables_by_pid(facts_by_pid(found.of(asked.ENVIRONMENT), "environ"), slurm_job)
    words = facts_by_pid(found.of(asked.COMMAND_LINES), "cmdline")
    threads = [parse_stats(text) for text in found.of(asked.MAIN_THREADS)]
    waits = [facts_by_pid([text], "wchan") for text in found.of(asked.WAIT_CHANNELS)]
    disk = [facts_by_pid([text], "io") for text in found.of(asked.DISK)]
    networks = _networks(found.of(asked.NETWORK_NAMESPACES))
    main = cpu_shares(threads[0], threads[-1], found.times[-1] - found.times[0]) if len(threads) > 1 else {}
    for job, number, pids in families(variables):
        split = split_family(pids, last)
        if split is None:
            continue
        process, helpers = split
        pid = process.pid
        yield WatchedRank(
            host=host,
            number=number,
            pid=pid,
            name=process.name,
            job=job,
            variables=variables[pid],
            words=tuple(words.get(pid, ()))[:512],
            states=tuple(snapshot[pid].state for snapshot in threads if pid in snapshot) or (process.state,),
            waits=tuple(snapshot[pid][0] for snapshot in waits if pid in snapshot),
            cpu_share=shares.get(pid, 0.0),
            main_share=main.get(pid, 0.0),
            started_s=process.started_s,
            read_bytes=_grown(disk, pid, "read_bytes"),
            written_bytes=_grown(disk, pid, "write_bytes"),
            helpers=tuple(Helper(each.pid, each.name, shares.get(each.pid, 0.0)) for each in helpers),
            foreign_network=networks.get(str(pid), networks.get("self")) != networks.get("self"),
        )


def _xids(log: str) -> Iterator[Xid]:
    """Yield the Xids in a kernel log, in order."""
    for line in log.splitlines()[-MAX_XIDS:]:
        if match := _XID.match(line):
            at, address, number, pid = match.groups()
            yield Xid(float(at), address, int(number), int(pid) if pid else None)


def _networks(texts: Sequence[str]) -> dict[str, str]:
    """Return the inode of the network namespace of each process, and of the script as `self`."""
    matches = (_INODE.match(line) for text in texts for line in text.splitlines())
    return {match[2]: match[1] for match in matches if match}


def _grown(readings: Sequence[Mapping[int, Sequence[str]]], pid: int, name: str) -> int | None:
    """Return the growth of a counter of /proc/PID/io in bytes."""
    values = []
    for reading in readings:
        for line in reading.get(pid, ()):
            if match := re.fullmatch(rf"{name}: (\d{{1,19}})", line.strip()):
                values.append(int(match[1]))
    return max(0, values[-1] - values[0]) if len(values) > 1 else None


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""


def _number(texts: Sequence[str]) -> int | None:
    word = _first(texts).strip()
    return int(word) if re.fullmatch(r"[0-9]{1,9}", word) else None
