"""Hosts of a bed with a disk each that nobody else sees."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from holmes_runtime.config.node_config import memory_folder
from tests.testbed.bed import Bed


@contextlib.contextmanager
def own_disks(bed: Bed, folder: Path) -> Iterator[None]:
    """At `folder` each host sees a disk of its own, and nobody else does."""
    folder.mkdir()
    for host in bed.hosts:
        on_host(bed, host.name, "mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", str(folder))
    try:
        yield
    finally:
        for host in bed.hosts:
            on_host(bed, host.name, "umount", "--lazy", str(folder))


def on_host(bed: Bed, host: str, *command: str) -> str:
    """What the command prints there."""
    return subprocess.run(bed.on_host_command(host, command), check=True, capture_output=True, text=True).stdout


def hosts_that_remember(bed: Bed, run_id: str) -> list[str]:
    """The hosts that have something of a run's newest checkpoint in their memory."""
    found = {host.name: on_host(bed, host.name, "find", "/dev/shm", "-type", "f") for host in bed.hosts}
    return [host for host, files in found.items() if f"{memory_folder(run_id, host)}/" in files]
