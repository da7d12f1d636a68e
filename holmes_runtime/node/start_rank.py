"""`python -m holmes_runtime.node.start_rank` in a folder written by `holmes emit`: become one rank of the plan.

HOLMES_HOST and LOCAL_RANK determine the rank through the folder's table of ranks, so the starter may number ranks in
any way. Variables and secrets of the rank are files in the folder, and its output goes to `out` there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.node_config import TRAINER_FILE, TRAINER_VARIABLE
from holmes_runtime.config.rank_metrics import PRINTS_STEPS
from holmes_runtime.config.rooted_path import CACHE_PARTS
from holmes_runtime.node.start_torchrun import compile_caches, gpu_environment, rank_words

RANK_TABLE = "ranks"
SECRET = "secret-"
OUT = "out"
FIRST_ATTEMPT = {"HOLMES_ATTEMPT": "0", "HOLMES_ATTEMPT_REASON": "the first start"}
"""For a trainer's own command, unless the starter sets them: Holmes does not see restarts here."""


class Place(NamedTuple):
    """A row of the table: the rank and its node, the number of ranks on its host, and the number of all ranks."""

    rank: int
    node: int
    num_local: int
    num_ranks: int


def find_place(table: str, host: str, local_rank: str) -> Place:
    """Return the row of (host, local rank). Raises ValueError naming the host's ranks if the plan has no such row."""
    rows = [line.split() for line in table.split("\n") if line and not line.startswith("#")]
    here = [row for row in rows if row[1] == host]
    for rank, _, local, node, *_ in here:
        if local == local_rank:
            return Place(int(rank), int(node), len(here), len(rows))
    known = ", ".join(row[2] for row in here) or "none"
    raise ValueError(f"host {host}, local rank {local_rank!r}: the plan's local ranks there are {known}; start these")


def rank_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the rank. Raises ValueError naming a variable that is missing or fits no rank."""
    for name in ("HOLMES_HOST", "LOCAL_RANK"):
        if not environ.get(name):
            raise ValueError(f"{name} is not set: start ranks with start-rank.sh, with srun, mpirun or torchrun")
    place = find_place(_read(folder / RANK_TABLE), environ["HOLMES_HOST"], environ["LOCAL_RANK"])
    lines = _read(folder / f"node-{place.node}.env").split("\n")
    planned = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    secrets = {file.name.removeprefix(SECRET): _read(file).rstrip("\n") for file in folder.glob(f"{SECRET}*")}
    out = folder / OUT
    ours = {"HOLMES_METRICS_DIR": str(out), PRINTS_STEPS: "1", **FIRST_ATTEMPT}
    environment = {**ours, **environ, **planned, **secrets, "PYTHONUNBUFFERED": "1"}
    if "CUDA_VISIBLE_DEVICES" in planned:
        caches = compile_caches(Path.home().joinpath(*CACHE_PARTS), os.uname().nodename)
        environment = {**caches, **gpu_environment(environment, out)}
    environment[TRAINER_VARIABLE] = str(folder / TRAINER_FILE)
    numbers = {"RANK": place.rank, "LOCAL_WORLD_SIZE": place.num_local, "WORLD_SIZE": place.num_ranks}
    return {**environment, "LOCAL_RANK": environ["LOCAL_RANK"], **{name: str(each) for name, each in numbers.items()}}


def _read(file: Path) -> str:
    with open(file, encoding="utf-8", newline="") as opened:
        return opened.read()


def main() -> None:
    """Become the rank. Never return."""
    folder = Path.cwd()
    try:
        environment = rank_environment(folder, os.environ)
    except (OSError, ValueError) as error:
        sys.exit(f"holmes: {error}")
    (folder / OUT).mkdir(mode=0o700, exist_ok=True)
    os.execve(sys.executable, [sys.executable, *rank_words(folder)], environment)


if __name__ == "__main__":
    main()
