"""Logs of NCCL written by hand, and what holmes doctor makes of them."""

from __future__ import annotations

import io

from prober.nccl_logs.diagnose import Diagnosis, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log


def info(text: str, host: str = "n1", pid: int = 10, gpu: int = 0) -> str:
    """Return a line as NCCL writes it at level INFO."""
    return f"{host}:{pid}:{pid + 100} [{gpu}] NCCL INFO {text}"


def warn(text: str, source: str = "misc/socket.cc:49", host: str = "n1", pid: int = 10) -> str:
    """Return a line as NCCL writes it at level WARN."""
    return f"{host}:{pid}:{pid + 100} [0] {source} NCCL WARN {text}"


def facts_of(*logs: str | bytes) -> LogFacts:
    """Return the facts of several logs."""
    facts = LogFacts()
    for number, log in enumerate(logs):
        data = log if isinstance(log, bytes) else log.encode()
        read_log(io.BytesIO(data), f"log{number}", facts)
    return facts


def diagnosed(*lines: str) -> Diagnosis:
    """Return the diagnosis of the lines of one log."""
    return diagnose(facts_of("\n".join(lines) + "\n"))


def two_hosts(*, rank: int = 0, ranks: int = 2, completed: bool = True) -> list[str]:
    """Return the lines of a rank of a communicator on two hosts of one rank each."""
    start = f"ncclCommInitRank comm 0x5 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init"
    lines = [
        info(f"{start} START"),
        info(f"comm 0x5 rank {rank} nRanks {ranks} nNodes 2 localRanks 1 localRank 0 MNNVL 0"),
    ]
    return [*lines, info(f"{start} COMPLETE")] if completed else lines
