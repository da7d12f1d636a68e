"""Trainings whose ranks are killed at random moments, with the folders of hosts deleted, go on to the same losses.

`python -m tests.runtime.killed_hosts FOLDER KILLS HOW [EVERY_STEPS]` prints JSON: for every kill the step after which
it came, the first step after it, none if training did not go on, how many steps were taken twice, and the largest
difference of a later loss from that of a run that is not killed. It saves after every step, or every so many.

HOW: `host`, a random one of four hosts loses its folder each time and the same degrees go on, to be killed again;
`cluster`, both hosts of a random one lose theirs; `gone`, a host is gone and the others go on with three replicas, from
the beginning each time.
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
from typing import Any, NamedTuple

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from tests.free_ports import free_port

from .forked_ranks import enter, run
from .own_folders_worker import CLUSTERS, FOUR, HOSTS, THREE, Worker, own_folder

MIN_STEPS, MAX_STEPS = 4, 12  # of a start that is killed and saves every step; by the fourth its first is whole
MIN_SAVES, MAX_SAVES = 1.0, 3.5  # of one that saves less often
STEPS_AFTER = 4  # the last kill
LIMIT_S = 600


class Killed(NamedTuple):
    """One kill, and the losses of the start that came after it, by step."""

    lost: list[str]
    after_steps: int
    losses: dict[int, float]


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


def steps_until_kill(every_steps: int) -> int:
    """Return a random number of steps."""
    if every_steps == 1:
        return random.randint(MIN_STEPS, MAX_STEPS)
    return round(every_steps * random.uniform(MIN_SAVES, MAX_SAVES))


def kill_in_training(config: RunConfig, folder: Path) -> dict[int, float]:
    """Kills all ranks some steps from the start; the losses until then."""
    folder.mkdir()
    fork, port = multiprocessing.get_context("fork"), free_port()
    ranks = [
        fork.Process(target=enter, args=(config, rank, port, folder, lambda: None, own_folder)) for rank in range(4)
    ]
    for process in ranks:
        process.start()
    assert config.checkpoint is not None
    steps, deadline_s = steps_until_kill(config.checkpoint.every_steps), time.monotonic() + LIMIT_S
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


def kill_and_go_on(worker: Worker, folder: Path, kills: int, how: str, every_steps: int) -> list[Killed]:
    """As many kills of a training, the last of which it survives."""
    folder.mkdir()
    saving = CheckpointSettings(str(folder / "saved"), every_steps, 3, 2)
    kept: list[Killed] = []
    for number in range(kills):
        config = worker.config(10**6, FOUR, HOSTS, checkpoint=saving, resume=number > 0, from_scratch=True)
        losses = kill_in_training(config, folder / f"killed-{number}")
        if kept:
            kept[-1] = kept[-1]._replace(losses=losses)
        kept.append(Killed(lose(how), max(losses) + 1, {}))
        for host in kept[-1].lost:
            shutil.rmtree(folder / "saved" / host)
    lost, after_steps, _ = kept[-1]
    plan, hosts = (THREE, [host for host in HOSTS if host not in lost]) if how == "gone" else (FOUR, HOSTS)
    last = worker.config(after_steps + STEPS_AFTER, plan, hosts, checkpoint=saving, resume=True)
    done = run(last, folder / "last", own=own_folder)
    if set(done["exit_codes"]) != {0}:
        print(done["said"], file=sys.stderr)
        return kept
    kept[-1] = kept[-1]._replace(losses=dict(zip(done["steps"], done["losses"], strict=True)))
    return kept


def main() -> None:
    folder, kills, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    every_steps = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    random.seed(11)
    worker = Worker(folder)
    all_at_once = [kills] if how != "gone" else [1] * kills
    killed = [
        each
        for number, together in enumerate(all_at_once)
        for each in kill_and_go_on(worker, folder / str(number), together, how, every_steps)
    ]
    steps = max(step for each in killed for step in each.losses) + 1
    whole = run(worker.config(steps, FOUR, HOSTS), folder / "whole")
    expected = dict(zip(whole["steps"], whole["losses"], strict=True))
    found = [
        {
            "lost": each.lost,
            "after_steps": each.after_steps,
            "goes_on_with": min(each.losses, default=None),
            "taken_twice": each.after_steps - min(each.losses, default=0),
            "difference": max((abs(loss - expected[step]) for step, loss in each.losses.items()), default=None),
        }
        for each in killed
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
