"""Causes that slow a current run: GPUs, CPUs, disks, loaders, networks, and the layout of the ranks."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from holmes_core.units import format_bytes, format_rate
from prober.running import running_texts as causes
from prober.running.byte_counts import Interface
from prober.running.gpu_samples import WatchedGpu
from prober.running.processes import WatchedRank
from prober.running.rank_order import rank_order_cause
from prober.running.running_texts import RunFinding
from prober.running.standing_causes import is_idle, named
from prober.running.watched_host import WatchedHost
from prober.running.watched_run import BULK_BYTES_PER_S, BytePath, WatchedRun, interface_of

LOW_CLOCK = 0.8  # of the median of the run's GPUs: boost clocks of sound GPUs differ less
BUSY_SHARE = 0.8  # of a core
IDLE_GPU = 0.5
DISK_BYTES_PER_S = 50e6
STARTING_S = 120.0  # in which a rank imports modules, compiles and reads its weights
_TENSOR_OPTIONS = re.compile(
    r"--(?:tensor[_-]model[_-]parallel[_-]size|tensor[_-]parallel[_-](?:size|degree)|tp(?:[_-]size|[_-]degree)?)"
    r"(?:=(\d{1,6}))?$"
)


def costly_causes(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield causes that slow the run, in any order. `cost` is their share of the time."""
    gpus = {host.name: host.gpus_of(run.of_host(host.name)) for host in run.answered}
    usual_mhz = statistics.median([gpu.clock_mhz for each in gpus.values() for gpu in each if gpu.clock_mhz] or [0.0])
    for host in run.answered:
        yield from _gpu_slowed(host, gpus[host.name], usual_mhz)
        yield from _cpu_taken(host)
        yield from _one_nic(host, len(run.of_host(host.name)))
    yield from _disk(run)
    yield from _loading(run)
    yield from _slow_rank(run)
    yield from _tcp_not_rdma(run)
    yield from _slow_interface(run)
    yield from _tensor_across(run)
    yield from rank_order_cause(run)


def _gpu_slowed(host: WatchedHost, gpus: Sequence[WatchedGpu], usual_mhz: float) -> Iterator[RunFinding]:
    lines, costs = [], []
    for gpu in gpus:
        clock, reasons = gpu.clock_mhz, gpu.slowed_by()
        if clock is not None and (reasons or (clock < LOW_CLOCK * usual_mhz and (gpu.utilisation or 0) >= IDLE_GPU)):
            why = f": {', '.join(reasons)}" if reasons else ""
            lines.append(f"{host.name}: GPU {gpu.index} runs at {clock:.0f} MHz, of {usual_mhz:.0f} as usual here{why}")
            best = max(usual_mhz, gpu.max_clock_mhz or 0) if reasons else usual_mhz
            costs.append(1 - clock / best if best else 0.1)
    if lines:
        yield causes.GPU_SLOWED.finding(f"on {host.name}", *lines, cost=max(0.05, *costs))


def _cpu_taken(host: WatchedHost) -> Iterator[RunFinding]:
    own = sum(rank.cpu_share + sum(each.cpu_share for each in rank.helpers) for rank in host.ranks)
    others = sum(each.cpu_share for each in host.others)
    hungry = [rank for rank in host.ranks if 2 * rank.states.count("R") >= len(rank.states)]
    # A rank that is always ready but seldom runs is a sign in itself, as processes that end meanwhile are not counted.
    busy = 0.5 if any(set(rank.states) == {"R"} and rank.main_share < 0.5 for rank in hungry) else 0.8
    if host.cores and hungry and others >= 0.25 * host.cores and own + others >= busy * host.cores:
        lines = [
            f"{host.name}: {each.name} (PID {each.pid}) keeps {each.cpu_share:.1f} cores busy" for each in host.others
        ]
        detail = f"on {host.name}, {others:.1f} of its {host.cores} cores"
        yield causes.CPU_TAKEN.finding(detail, *lines[:3], cost=min(1.0, others / host.cores))


def _one_nic(host: WatchedHost, num_ranks: int) -> Iterator[RunFinding]:
    active = [port for port in host.ports if port.is_active and port.traffic is not None]
    total = sum(port.traffic.total for port in active if port.traffic)
    for port in active:
        kind = port.rate_bytes_per_s, port.link_layer
        equal = [each for each in active if (each.rate_bytes_per_s, each.link_layer) == kind]
        carried = port.traffic.total if port.traffic else 0
        if len(equal) > 1 and num_ranks > 1 and carried >= 0.9 * total and total >= BULK_BYTES_PER_S * host.seconds:
            lines = [
                f"{host.name}: {each.name} carried {format_bytes(each.traffic.total)}" for each in equal if each.traffic
            ]
            detail = f"{port.name} on {host.name}, {len(equal)} of the same rate are active"
            yield causes.ONE_NIC.finding(detail, *lines, cost=1 - 1 / len(equal))


def _disk(run: WatchedRun) -> Iterator[RunFinding]:
    for rank in run.ranks:
        blocked = rank.states.count("D") / len(rank.states)
        seconds = run.by_name[rank.host].seconds
        rates = [("reads", (rank.read_bytes or 0) / seconds), ("writes", (rank.written_bytes or 0) / seconds)]
        heavy = max(rate for _, rate in rates) >= DISK_BYTES_PER_S and len(run.ranks) > 1
        heavy = heavy and all(is_idle(run, each) for each in run.ranks if each is not rank)
        if blocked >= 0.5 or heavy:
            lines = [f"{named(rank)}: state D in {rank.states.count('D')} of {len(rank.states)} snapshots"] * (
                blocked > 0
            )
            lines += [f"{named(rank)}: {what} {format_bytes(rate)} a second" for what, rate in rates if rate >= 1e6]
            lines += [f"{named(rank)}: waits in {wait}" for wait in dict.fromkeys(rank.waits) if wait not in ("0", "")]
            yield causes.DISK_WAIT.finding(named(rank), *lines, cost=max(blocked, 0.5))
            return


def _loading(run: WatchedRun) -> Iterator[RunFinding]:
    waiting, bound = [], []
    for rank in run.ranks:
        if run.by_name[rank.host].began_s - rank.started_s < STARTING_S:
            continue
        use = run.utilisation_of(rank)
        busy = [each for each in rank.helpers if each.cpu_share >= BUSY_SHARE]
        idles = use < IDLE_GPU if use is not None else rank.cpu_share < 0.3
        if idles and busy and 2 * len(busy) >= len(rank.helpers):
            waiting.append((rank, 1 - (use if use is not None else rank.cpu_share), len(busy)))
        elif use is not None and use < IDLE_GPU and rank.main_share >= 0.9:
            bound.append((rank, 1 - use, 0))
    for cause, ranks in ((causes.DATA_LOADING, waiting), (causes.CPU_BOUND, bound)):
        if 2 * len(ranks) > len(run.ranks):
            lines = [_loading_line(run, rank, busy) for rank, _, busy in ranks]
            detail = f"{len(ranks)} of {len(run.ranks)} ranks"
            yield cause.finding(detail, *lines[:3], cost=statistics.fmean(cost for _, cost, _ in ranks))


def _loading_line(run: WatchedRun, rank: WatchedRank, busy: int) -> str:
    use = run.utilisation_of(rank)
    gpu = "" if use is None else f"its GPU computes {use:.0%} of the time, "
    loaders = f", {busy} of {len(rank.helpers)} loaders at a core each" if busy else ""
    return f"{named(rank)}: {gpu}main thread {rank.main_share:.0%} of a core{loaders}"


def _slow_rank(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield the one rank that computes on CPUs while others wait. On GPUs, waiting looks like computing."""
    if len(run.ranks) < 2 or any(host.gpus for host in run.answered):
        return
    *others, slowest = sorted(run.ranks, key=lambda rank: rank.cpu_share)
    if slowest.cpu_share >= 0.9 and others[-1].cpu_share <= 0.5 * slowest.cpu_share and not is_idle(run, others[0]):
        lines = [f"{named(rank)}: {rank.cpu_share:.2f} cores busy" for rank in (slowest, *reversed(others))]
        mean = statistics.fmean(rank.cpu_share for rank in others)
        yield causes.SLOW_RANK.finding(named(slowest), *lines, cost=1 - mean / slowest.cpu_share)


def _between(run: WatchedRun) -> list[tuple[BytePath, float]]:
    """Return paths between watched hosts with much traffic, and their rates. Other paths may lead to storage."""
    paths = [path for path in run.paths if path.leaves_host and path.is_watched and path.sender in run.by_name]
    rated = [(path, path.sent_bytes / run.by_name[path.sender].seconds) for path in paths]
    return [(path, rate) for path, rate in rated if rate >= BULK_BYTES_PER_S]


def _tcp_not_rdma(run: WatchedRun) -> Iterator[RunFinding]:
    ports = list(run.ports())
    tcp = _between(run)
    carried = sum(port.traffic.total for _, port in ports if port.traffic)
    sent = sum(path.sent_bytes for path, _ in tcp)
    if len({host.name for host, _ in ports}) < 2 or not tcp or any(port.traffic is None for _, port in ports):
        return
    if carried < 0.1 * sent:
        path, rate = tcp[0]
        lines = [f"{path.sender} to {path.receiver}: {format_rate(rate)} by TCP on {path.interface}"]
        lines += [
            f"{host.name}: {port.name} ({port.link_layer}) is active and carried {format_bytes(port.traffic.total)}"
            for host, port in ports
            if port.traffic
        ]
        setting = next((rank for rank in run.ranks if rank.variables.get("NCCL_IB_DISABLE") == "1"), None)
        if setting is not None:
            lines.insert(1, f"{named(setting)}: NCCL_IB_DISABLE=1")
        fastest = max((port.rate_bytes_per_s or 0 for _, port in ports), default=0)
        yield causes.TCP_NOT_RDMA.finding(
            f"{path.interface} carries {format_rate(rate)}",
            *lines,
            cost=max(0.2, 1 - rate / fastest if fastest else 0.5),
        )


def _slow_interface(run: WatchedRun) -> Iterator[RunFinding]:
    for path, rate in _between(run):
        sender, receiver = run.by_name[path.sender], run.by_name.get(path.receiver)
        used = interface_of(sender, path.interface)
        speed = used.speed_bytes_per_s if used else None
        if receiver is None or speed is None:
            continue
        for other in sender.interfaces:
            fast = other.speed_bytes_per_s or 0.0
            if other.is_up and fast >= 2 * speed and _share_network(other, receiver):
                ends = f"{path.sender} to {path.receiver}"
                line = f"{ends}: {format_rate(rate)} on {path.interface}, a link of {format_rate(speed)}"
                better = f"{ends}: {other.name} is up on both, a link of {format_rate(fast)}"
                cost = max(0.1, (1 - speed / fast) * min(1.0, 2 * rate / speed))
                detail = f"{path.interface} in place of {other.name}"
                remedy = f"NCCL_SOCKET_IFNAME=={other.name} and GLOO_SOCKET_IFNAME={other.name}. "
                yield causes.SLOW_INTERFACE.finding(detail, line, better, cost=cost, remedy=remedy)
                return


def _share_network(interface: Interface, host: WatchedHost) -> bool:
    networks = {each.network for each in interface.addresses if not each.ip.is_link_local}
    return any(each.network in networks for at in host.interfaces if at.is_up for each in at.addresses)


def _tensor_across(run: WatchedRun) -> Iterator[RunFinding]:
    rank = run.ranks[0]
    local = rank.local_size
    for word, following in pairwise((*rank.words, "")):
        match = _TENSOR_OPTIONS.match(word)
        text = (match[1] or following) if match else ""
        if local is not None and re.fullmatch(r"\d{1,6}", text) and int(text) > local:
            line = f"{named(rank)}: {word.partition('=')[0]} {text}, and {local} ranks on a host"
            yield causes.TENSOR_ACROSS.finding(f"{text} shards, {local} ranks on a host", line, cost=0.5)
            return
