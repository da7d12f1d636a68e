"""Trainings whose ranks are killed at a random moment, with the folders of hosts deleted, go on to the same losses.

`python -m tests.runtime.killed_hosts FOLDER KILLS HOW` prints JSON: for every kill the step gone on from, -1 if it did
not go on, and the largest difference of a loss from that of a run that was not killed. HOW: `host`, a random one of
four hosts loses its folder and the same degrees go on; `gone`, that host is gone and three replicas go on; `cluster`,
both hosts of one lose theirs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Checkpointing

from .continuity_worker import enter, run
from .launched_runs import free_port
from .own_folders_worker import CLUSTERS, FOUR, HOSTS, THREE, Worker, own_folder

STEPS, LEAST_STEPS, MOST_STEPS = 200, 4, 12  # of the run that is not killed; after which others are
LIMIT_S = 300


def lose(how: str) -> list[str]:
    """The hosts whose folders are deleted."""
    lost = random.choice(HOSTS)
    return [host for host in HOSTS if CLUSTERS[host] == CLUSTERS[lost]] if how == "cluster" else [lost]


def losses_in(metrics: Path) -> dict[int, float]:
    """By step, of lines that are whole."""
    found: dict[int, float] = {}
    for path in metrics.glob("metrics-rank*.jsonl"):
        for text in path.read_text().splitlines(keepends=True):
            line: dict[str, Any] = json.loads(text) if text.endswith("\n") else {"loss": None}
            if line["loss"] is not None:
                found[line["step"]] = line["loss"]
    return found


def kill_in_training(config: RunConfig, folder: Path) -> dict[int, float]:
    """Kills all ranks some steps from the start; the losses until then."""
    folder.mkdir()
    fork, port = multiprocessing.get_context("fork"), free_port()
    ranks = [
        fork.Process(target=enter, args=(config, rank, port, folder, lambda: None, own_folder)) for rank in range(4)
    ]
    for process in ranks:
        process.start()
    steps, deadline_s = random.randint(LEAST_STEPS, MOST_STEPS), time.monotonic() + LIMIT_S
    while len(losses_in(folder / "metrics")) < steps:
        assert time.monotonic() < deadline_s, f"no {steps} steps within {LIMIT_S} s"
        time.sleep(0.01)
    time.sleep(random.uniform(0.0, 0.1))
    for process in ranks:
        assert process.is_alive(), f"a rank ended by itself with {process.exitcode}"
        os.kill(process.pid or 0, signal.SIGKILL)
    for process in ranks:
        process.join()
    return losses_in(folder / "metrics")


def go_on(config: RunConfig, folder: Path, expected: dict[int, float]) -> tuple[int, float]:
    """The first step after a kill, and how far losses are from those expected."""
    done = run(config, folder, own=own_folder)
    if set(done["exit_codes"]) != {0}:
        print(done["said"], file=sys.stderr)
        return -1, float("inf")
    return done["steps"][0], difference(dict(zip(done["steps"], done["losses"], strict=True)), expected)


def difference(losses: dict[int, float], expected: dict[int, float]) -> float:
    """The largest of a step."""
    return max(abs(loss - expected[step]) for step, loss in losses.items())


def main() -> None:
    folder, kills, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(11)
    worker = Worker(folder)
    whole = run(worker.config(STEPS, FOUR, HOSTS), folder / "whole")
    expected = dict(zip(whole["steps"], whole["losses"], strict=True))
    found: list[dict[str, Any]] = []
    for number in range(kills):
        saving = Checkpointing(str(folder / f"saved-{number}"), 1, 3, 2)
        killed = worker.config(10**6, FOUR, HOSTS, checkpoint=saving)
        before = kill_in_training(killed, folder / f"killed-{number}")
        lost = lose(how)
        for host in lost:
            shutil.rmtree(folder / f"saved-{number}" / host)
        plan, hosts = (THREE, [host for host in HOSTS if host not in lost]) if how == "gone" else (FOUR, HOSTS)
        config = worker.config(max(before) + 4, plan, hosts, checkpoint=saving, resume=True)
        first, apart = go_on(config, folder / f"on-{number}", expected)
        found.append(
            {
                "lost": lost,
                "killed_after": max(before) + 1,
                "first": first,
                "difference": max(apart, difference(before, expected)),
            }
        )
        print(found[-1], file=sys.stderr, flush=True)
        shutil.rmtree(folder / f"saved-{number}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
