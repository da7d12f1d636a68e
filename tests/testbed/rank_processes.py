"""Which processes on a host of the bed are ours, told by the modules on their command lines."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.testbed.bed import Bed

AGENT, TORCHRUN, RANK = "holmes_runtime.node.agent", "holmes_runtime.torchrun", "holmes_runtime.train"


def agent_pids(bed: Bed, host: str) -> list[int]:
    """The node's agent and the relay that is its parent, in order of pid."""
    return _pids(bed, host, AGENT)


def torchrun_pids(bed: Bed, host: str) -> list[int]:
    """Every torchrun on `host`, whose command line names the module of its ranks, too."""
    return _pids(bed, host, TORCHRUN)


def rank_pids(bed: Bed, host: str) -> list[int]:
    """Every rank on `host`."""
    others = {*agent_pids(bed, host), *torchrun_pids(bed, host)}
    return [pid for pid in _pids(bed, host, RANK) if pid not in others]


def our_pids(bed: Bed, host: str) -> list[int]:
    """Agent, torchrun and ranks on `host`; sshd's own session process is not among them."""
    return [pid for module in (AGENT, TORCHRUN) for pid in _pids(bed, host, module)] + rank_pids(bed, host)


def _pids(bed: Bed, host: str, module: str) -> list[int]:
    return [pid for pid in bed.guest_pids(host) if module.encode() in _words(pid)]


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []
