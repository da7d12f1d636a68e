"""The diagnosis of NCCL's logs: the verdict with its lines, further findings, and tables; or all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import out, print_out
from prober.nccl_logs.diagnose import SOUND, Diagnosis
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.run_table import LoggedCommunicator, LoggedHost, communicator_rows, host_rows

MAX_ROWS = 32
_OF_HOSTS = ("host", "processes", "NCCL", "network", "RDMA devices", "interfaces", "GPUDirect", "devices used")
_OF_COMMUNICATORS = ("communicator", "hosts", "ranks in the logs", "channels", "made")


def show_diagnosis(diagnosis: Diagnosis, facts: LogFacts) -> None:
    """Print the verdict first, then further findings, then hosts and communicators."""
    lines = (f"{file}:{number}: {text}" for file, number, text in diagnosis.evidence)
    print_verdict(diagnosis.cause, diagnosis.says, lines, diagnosis.remedy, diagnosis.needed)
    for finding in diagnosis.also:
        shown = (f"{file}:{number}: {text}" for file, number, text in finding.evidence)
        print_finding(finding.says, finding.cause, shown, finding.remedy)
    print_out("")
    _show_tables(diagnosis, facts)
    for note in _notes(facts):
        print_out(f"note: {note}")


def print_verdict(cause: str | None, says: str, lines: Iterable[str], remedy: str, needed: str) -> None:
    """Print the verdict, or that there is none, with its lines and what helps."""
    print_out(f"no verdict: {says}" if cause is None else f"verdict: {says}" + f" [{cause}]" * (cause != SOUND))
    for line in lines:
        print_out(f"  {line}")
    if remedy:
        print_out(f"do: {remedy}")
    if needed:
        print_out(f"needed: {needed}")


def print_finding(says: str, cause: str, lines: Iterable[str], remedy: str) -> None:
    """Print a further finding."""
    print_out(f"\nalso: {says} [{cause}]")
    for line in lines:
        print_out(f"  {line}")
    print_out(f"do: {remedy}")


def _show_tables(diagnosis: Diagnosis, facts: LogFacts) -> None:
    run = diagnosis.run
    versions = ", ".join(run.versions) or "version not seen"
    title = f"Network {run.network or 'not seen'}, GPUDirect RDMA {_yes(run.gdr)}, NCCL {versions}"
    hosts, communicators = host_rows(facts), communicator_rows(facts)
    out.print(fitted_table(_OF_HOSTS, map(_host_cells, hosts[:MAX_ROWS]), out.width, title, unwrapped=("host",)))
    if communicators:
        rows = map(_communicator_cells, communicators[:MAX_ROWS])
        out.print(fitted_table(_OF_COMMUNICATORS, rows, out.width))
    for name, count in (("hosts", len(hosts)), ("communicators", len(communicators))):
        if count > MAX_ROWS:
            print_out(f"{count - MAX_ROWS} more {name} are in the record of `--json`")


def _yes(value: bool | None) -> str:
    return "not seen" if value is None else "on" if value else "off"


def _host_cells(row: LoggedHost) -> tuple[str, ...]:
    names = (row.versions, row.networks, row.hcas, row.interfaces)
    cells = (
        row.host or "not named",
        str(row.processes or "not named"),
        *(", ".join(each) or "not seen" for each in names),
    )
    return (*cells, _yes(row.gdr), ", ".join(map(str, row.devices_used)) or "not seen")


def _communicator_cells(row: LoggedCommunicator) -> tuple[str, ...]:
    nodes, channels = ("not seen" if count is None else str(count) for count in (row.nodes, row.channels))
    return (f"{row.ranks} ranks", nodes, str(row.ranks_in_logs), channels, "yes" if row.completed else "not seen")


def _notes(facts: LogFacts) -> Iterator[str]:
    """Yield the limits of the answer."""
    for name, size in facts.files.items():
        if size.messages == 0:
            yield f"{name}: no line of NCCL in its {size.lines} lines"
        if size.cut:
            yield f"{name}: {size.cut} lines were too long and were read in part"
        if size.skipped:
            yield f"{name}: {size.skipped} lines after the first {size.messages} messages were left out"
    for name, line in facts.restarts.items():
        yield f"{name}: several runs; the last one is read, from line {line} on"
    if facts.left_out:
        yield f"{facts.left_out} messages of further processes and communicators were left out: pass fewer logs"


def print_record(diagnosis: Diagnosis, facts: LogFacts) -> None:
    """Print the diagnosis as one JSON record; null means not seen."""
    run = diagnosis.run
    record = {
        "cause": diagnosis.cause,
        "open": diagnosis.is_open,
        "says": diagnosis.says,
        "remedy": diagnosis.remedy,
        "needed": diagnosis.needed,
        "evidence": [line._asdict() for line in diagnosis.evidence],
        "also": [finding.cause for finding in diagnosis.also],
        "findings": [
            {
                "cause": finding.cause,
                "says": finding.says,
                "remedy": finding.remedy,
                "evidence": [line._asdict() for line in finding.evidence],
            }
            for finding in diagnosis.also
        ],
        "network": run.network or "unknown",
        "interfaces": run.interfaces,
        "hcas": run.hcas,
        "gdr": run.gdr,
        "nranks": run.num_ranks,
        "nnodes": run.num_nodes,
        "nccl_version": ",".join(run.versions) or None,
        "hosts": [row._asdict() for row in host_rows(facts)],
        "communicators": [row._asdict() for row in communicator_rows(facts)],
        "files": {name: {"lines": size.lines, "messages": size.messages} for name, size in facts.files.items()},
        "notes": list(_notes(facts)),
    }
    out.file.write(json.dumps(record) + "\n")
