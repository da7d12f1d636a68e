"""A place to run Holmes' three commands as a user would: on a bed, or on local processes where there can be none."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holmes_cli.demo.demo_run import only_run
from holmes_cli.demo.demo_site import DemoSite, measured_compute, standard_library_corpus, write_local_hosts
from tests.testbed.bed import Bed

__all__ = ["Site", "bed_site", "local_site", "measured_compute", "only_run", "said_until", "standard_library_corpus"]


@dataclass(frozen=True)
class Site(DemoSite):
    """`bed` is None for local processes."""

    bed: Bed | None = None


@contextlib.contextmanager
def bed_site(
    folder: Path,
    fast_mbps: int = 2000,
    slow_mbps: int = 100,
    trunk_mbps: int | None = None,
    trunk_delay_ms: float = 0,
    with_sshd: bool = True,
    behind_nat: bool = False,
) -> Iterator[Site]:
    """A bed that lives as long as the context."""
    with Bed(fast_mbps, slow_mbps, None, trunk_mbps, trunk_delay_ms, with_sshd, behind_nat) as bed:
        yield Site(folder, bed.hosts_yaml, tuple(bed.controller_command([])), bed)


def local_site(folder: Path) -> Site:
    """Four names for this machine, in two pinned clusters, over the loopback."""
    return Site(folder, write_local_hosts(folder))


def said_until(process: subprocess.Popen[str], start: str) -> str:
    """What a launch said on stderr up to the line that starts so. Raises EOFError where none comes."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith(start):
            return said
    raise EOFError(f"it ended before {start!r}; it said:\n{said[-3000:]}")
