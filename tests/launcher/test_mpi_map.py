"""What mpirun makes of an emitted plan, asked without starting anything: each rank's host and local rank."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from launcher.emit.folder_files import plain_files
from launcher.emit.mpi_job import mpi_files
from launcher.emit.write_folder import write_folder
from launcher.prepare.user_variables import UserVariables
from tests.launcher.emitted import kept_plan

VERSION = 5  # 4.1 maps nothing on hosts that it has not reached
PLANS = 50


def mpirun_major() -> int | None:
    if shutil.which("mpirun") is None:
        return None
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\(Open MPI\) (\d+)", said)
    return int(found[1]) if found else None


def random_plan(seed: int) -> Plan:
    """One to five hosts that do not exist, with as many ranks each as chance has it, in the order that it has."""
    draw = random.Random(seed)
    names = [f"host{number // 2}.{'ab'[number % 2]}.invalid" for number in range(draw.randint(1, 5))]
    hosts = [*names, *draw.choices(names, k=draw.randint(0, 12))]
    draw.shuffle(hosts)
    counts, first_rank, first_node = Counter(hosts), kept_plan().ranks[0], kept_plan().nodes[0]
    ranks = [
        first_rank.model_copy(update={"rank": rank, "host": host, "local_rank": hosts[:rank].count(host)})
        for rank, host in enumerate(hosts)
    ]
    nodes = [
        first_node.model_copy(update={"node_rank": index, "host": host, "num_ranks": counts[host]})
        for index, host in enumerate(dict.fromkeys(hosts))
    ]
    return kept_plan().model_copy(update={"ranks": tuple(ranks), "nodes": tuple(nodes)})


@pytest.mark.process
@pytest.mark.skipif(mpirun_major() != VERSION, reason=f"no mpirun of Open MPI {VERSION} here")
def test_map_is_the_plan(tmp_path: Path) -> None:
    environment = {**os.environ}
    for name in ("OMPI", "PRTE"):
        environment |= {f"{name}_ALLOW_RUN_AS_ROOT": "1", f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for seed in range(PLANS):
        plan, folder = random_plan(seed), tmp_path / str(seed)
        write_folder(folder, {**plain_files(plan, UserVariables({}, {})), **mpi_files(plan)})
        line = [f"{folder}/mpirun.sh", "--display", "map", "--do-not-launch"]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        expected = {rank.rank: (rank.host, rank.local_rank) for rank in plan.ranks}
        assert mapped(done.stdout) == expected, done.stdout + done.stderr


def mapped(said: str) -> dict[int, tuple[str, int]]:
    """By rank the host and local rank that mpirun's map gives it."""
    host, rank, found = "", -1, {}
    for line in said.splitlines():
        if (node := re.search(r"Data for node: (\S+)", line)) is not None:
            host = node[1]
        elif (process := re.search(r"Data for proc: \[.*,(\d+)\]", line)) is not None:
            rank = int(process[1])
        elif (local := re.search(r"Local rank: (\d+)", line)) is not None:
            found[rank] = (host, int(local[1]))
    return found
