"""Ranks stay on the CPUs that the plan names; each case in a process of its own, whose CPUs nobody minds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holmes_runtime.node.near_cpus import RANK_CPUS, read_cpu_list, stay_near_gpu

ALLOWED = sorted(os.sched_getaffinity(0))
SHOW = "import os, {module}; {module}.stay_near_gpu(os.environ); print(sorted(os.sched_getaffinity(0)))"


def stays_on(lists: str, local_rank: int | None) -> list[int]:
    """The CPUs that a process with these variables may use once it stays near its GPU."""
    environment = {**os.environ, RANK_CPUS: lists}
    if local_rank is not None:
        environment["LOCAL_RANK"] = str(local_rank)
    command = SHOW.format(module="holmes_runtime.node.near_cpus")
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    return [int(each) for each in done.stdout.strip("[]\n").split(",")]


def test_a_rank_stays_on_its_list_of_cpus() -> None:
    first, last = ALLOWED[0], ALLOWED[-1]
    assert stays_on(f"{first};{last}", 0) == [first]
    assert stays_on(f"{first};{last}", 1) == [last]


def test_cpus_that_the_process_may_not_use_count_for_nothing() -> None:
    beyond = max(ALLOWED) + 1
    assert stays_on(f"{ALLOWED[0]},{beyond}", 0) == ALLOWED[:1]
    assert stays_on(f"{beyond}-{beyond + 7}", 0) == ALLOWED


@pytest.mark.parametrize(("lists", "local_rank"), [("", 0), (str(ALLOWED[0]), None)])
def test_without_a_list_or_outside_ranks_nothing_changes(lists: str, local_rank: int | None) -> None:
    assert stays_on(lists, local_rank) == ALLOWED


def test_a_rank_without_a_list_is_refused_with_the_variable() -> None:
    with pytest.raises(ValueError, match="HOLMES_RANK_CPUS='0-3' has 1 lists of CPUs, none for local rank 2"):
        stay_near_gpu({RANK_CPUS: "0-3", "LOCAL_RANK": "2"})


def test_lists_are_read_as_linux_writes_them() -> None:
    assert read_cpu_list("0-2,8,10-11\n".strip()) == {0, 1, 2, 8, 10, 11}
    with pytest.raises(ValueError, match="'3-x' of '1,3-x' is neither a CPU"):
        read_cpu_list("1,3-x")
