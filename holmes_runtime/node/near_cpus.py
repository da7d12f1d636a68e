"""Keep a rank on the CPUs near its GPU, which the plan names. Memory that it touches first is then near the GPU too.

`torchrun --numa-binding` is not used: it needs numactl on every host and asks CUDA for the GPUs' addresses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

RANK_CPUS = "HOLMES_RANK_CPUS"
"""A list of CPUs for each local rank, joined by `;`. Empty: stay where the host's owner allows."""


def stay_near_gpu(environ: Mapping[str, str]) -> frozenset[int]:
    """Bind this process, and every thread it starts later, to its rank's CPUs. Return the CPUs it may use then.

    CPUs that it could not use before are ignored. If none remain, or this process is not a rank, nothing changes.

    Raises:
        ValueError: the variable has no list for this rank; the message names the variable.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    lists, local_rank = environ.get(RANK_CPUS), environ.get("LOCAL_RANK")
    if not lists or local_rank is None:
        return allowed
    of_rank = lists.split(";")
    if int(local_rank) >= len(of_rank):
        raise ValueError(f"{RANK_CPUS}={lists!r} has {len(of_rank)} lists of CPUs, none for local rank {local_rank}")
    near = allowed & read_cpu_list(of_rank[int(local_rank)])
    if near:
        os.sched_setaffinity(0, near)
    return near or allowed


def read_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-31,64-95`. Raises ValueError naming a part that is not a number or range.

    Source: cpuset(7), "List format".
    """
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{RANK_CPUS}: {part!r} of {text!r} is neither a CPU nor a range such as 0-31")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
