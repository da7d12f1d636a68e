"""The runs of all users that have the GPUs of hosts now: `holmes ps --hosts`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from pathlib import Path

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import out, print_err
from holmes_core.errors import HostError
from holmes_core.hosts.hosts_file import HostsFile, read_hosts_file
from holmes_core.remote.connect import connect
from holmes_core.units import format_duration
from holmes_runtime.config.node_config import GpuClaim
from holmes_runtime.node.admission.gpu_claims import SOCKETS, read_claims

AT_ONCE = 32
ANSWER_TIMEOUT_S = 20.0


def show_gpu_holders(hosts_yaml: Path, as_json: bool) -> None:
    """Ask all hosts at once, and print a row for each run on each; hosts that do not answer go to standard error."""
    hosts = read_hosts_file(hosts_yaml)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        found = list(pool.map(lambda index: _claims(hosts, index), range(len(hosts.hosts))))
    names = [entry.name for entry in hosts.hosts]
    if as_json:
        for name, claims in zip(names, found, strict=True):
            for claim in claims or ():
                out.file.write(json.dumps({"host": name, **claim._asdict()}) + "\n")
        return
    show_claims(list(zip(names, found, strict=True)), time.time())


def show_claims(found: Sequence[tuple[str, tuple[GpuClaim, ...] | None]], now_s: float) -> None:
    """Print a row for each run on each host; None for a host that did not answer."""
    rows = [row for name, claims in found for row in _rows(name, claims or (), now_s)]
    if rows:
        out.print(fitted_table(("host", "GPUs", "run", "user", "since"), rows, out.width))
    elif any(claims is not None for _, claims in found):
        out.print("no run has a GPU of these hosts")


def _claims(hosts: HostsFile, index: int) -> tuple[GpuClaim, ...] | None:
    """Return the claims of one host, by run and GPU; None if it does not answer."""
    entry = hosts.hosts[index]
    try:
        with closing(connect(entry.name, hosts.access(entry))) as connection:
            answer = connection.run(f"exec cat {SOCKETS}", b"", ANSWER_TIMEOUT_S)
    except HostError as error:
        print_err(f"host {entry.name}: {error.evidence}")
        return None
    claims = read_claims(answer.stdout.decode(errors="replace"))
    return tuple(sorted(claims, key=lambda claim: (claim.since_s, claim.run_id, claim.gpu_index)))


def _rows(host: str, claims: Sequence[GpuClaim], now_s: float) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for (since_s, run_id, user), group in groupby(claims, lambda claim: (claim.since_s, claim.run_id, claim.user)):
        gpus = ", ".join(str(claim.gpu_index) for claim in group)
        started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since_s))
        rows.append((host, gpus, run_id, user, f"{started}, {format_duration(max(0.0, now_s - since_s))} ago"))
    return rows
