"""The diagnosis of a watched run: verdict and further findings with their lines, ranks, paths; or all of it as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.show_doctor import MAX_ROWS, print_finding, print_verdict
from holmes_cli.screen.terminal import out, print_out
from holmes_core.units import format_bytes, format_rate
from prober.running.diagnose_run import RunDiagnosis
from prober.running.processes import WatchedRank
from prober.running.watched_run import BytePath, WatchedRun

_OF_RANKS = ("rank", "host", "process", "state", "CPU", "helpers", "GPU", "connections", "disk")
_OF_PATHS = ("from", "to", "interface", "bytes", "rate", "link", "measured")


def show_watched(diagnosis: RunDiagnosis, run: WatchedRun) -> None:
    """Print the verdict first, then further findings, then ranks, and bytes by host and interface."""
    print_verdict(diagnosis.cause, diagnosis.says, diagnosis.evidence, diagnosis.remedy, diagnosis.needed)
    for finding in diagnosis.also:
        print_finding(finding.says, finding.cause, finding.evidence, finding.remedy)
    print_out("")
    if run.ranks:
        seconds = max(host.seconds for host in run.answered)
        size = run.job.size if run.job and run.job.size is not None else "an unknown number of"
        title = f"{len(run.ranks)} of {size} ranks, watched for {seconds:.1f} s"
        rows = [_rank_cells(run, rank) for rank in run.ranks[:MAX_ROWS]]
        out.print(fitted_table(_OF_RANKS, rows, out.width, title, unwrapped=("host",)))
    rows = [*(_path_cells(run, path) for path in run.paths if path.sent_bytes), *_port_cells(run)]
    if rows:
        out.print(fitted_table(_OF_PATHS, rows[:MAX_ROWS], out.width))
    for name, count in (("ranks", len(run.ranks)), ("paths", len(rows))):
        if count > MAX_ROWS:
            print_out(f"{count - MAX_ROWS} more {name} are in the record of `--json`")
    for note in diagnosis.notes:
        print_out(f"note: {note}")


def _rank_cells(run: WatchedRun, rank: WatchedRank) -> tuple[str, ...]:
    use, moved, seconds = run.utilisation_of(rank), run.bytes_of(rank), run.by_name[rank.host].seconds
    disk = None if rank.read_bytes is None else rank.read_bytes + (rank.written_bytes or 0)
    helpers = f"{len(rank.helpers)}: {sum(each.cpu_share for each in rank.helpers):.0%}" if rank.helpers else "none"
    per_second = ("not seen" if count is None else f"{format_bytes(count / seconds)}/s" for count in (moved, disk))
    gpu = "not seen" if use is None else f"{use:.0%}"
    return (
        *(str(rank.number), rank.host, f"{rank.name} {rank.pid}", "".join(dict.fromkeys(rank.states))),
        *(f"{rank.cpu_share:.0%}", helpers, gpu, *per_second),
    )


def _path_cells(run: WatchedRun, path: BytePath) -> tuple[str, ...]:
    host = run.by_name.get(path.sender) or run.by_name[path.receiver]
    speed = next((each.speed_bytes_per_s for each in host.interfaces if each.name == path.interface), None)
    rate = format_rate(path.sent_bytes / host.seconds)
    measured = run.measured_bytes_per_s(path.sender, path.receiver, path.interface)
    links = ("", "") if path.interface == "lo" else (format_rate(speed), format_rate(measured))
    return (path.sender, path.receiver, path.interface, format_bytes(path.sent_bytes), rate, *links)


def _port_cells(run: WatchedRun) -> Iterator[tuple[str, ...]]:
    for host, port in run.ports():
        if port.traffic is not None:
            total = port.traffic.sent
            rate, link = format_rate(total / host.seconds), format_rate(port.rate_bytes_per_s)
            yield host.name, "all", f"{port.name} (RDMA)", format_bytes(total), rate, link, ""


def print_watched(diagnosis: RunDiagnosis, run: WatchedRun) -> None:
    """Print the diagnosis as one JSON record; null means not seen."""
    record = {
        "cause": diagnosis.cause,
        "says": diagnosis.says,
        "remedy": diagnosis.remedy,
        "needed": diagnosis.needed,
        "evidence": diagnosis.evidence,
        "also": [finding.cause for finding in diagnosis.also],
        "findings": [vars(finding) for finding in diagnosis.also],
        "nranks": run.job.size if run.job else None,
        "ranks": [
            dataclasses.asdict(rank) | {"gpu": run.utilisation_of(rank), "bytes": run.bytes_of(rank)}
            for rank in run.ranks
        ],
        "paths": [path._asdict() | {"measured_bytes_per_s": run.measured_bytes_per_s(*path[:3])} for path in run.paths],
        "notes": diagnosis.notes,
    }
    out.file.write(json.dumps(record) + "\n")
