"""Islands that are killed at random moments end with one model, bit for bit.

`python -m tests.runtime.killed_islands FOLDER RUNS` trains five islands of unlike degrees with four fragments, kills
the ranks of a random one twenty times a run, and starts it again from its checkpoint, as the launcher does. It prints a
line of JSON a run: who was killed after which step, the exchanges that several islands made with the digests of their
states, whose weights each island's last checkpoint holds, and the digest of the model that is exported from it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.export import export
from holmes_runtime.node.checkpoint_files.checkpoint_folder import newest_in
from holmes_runtime.node.checkpoint_files.description import whose_weights

from .islands_worker import ALONE, PIPELINE, REPLICAS, Island, Worker, before_steps, until
from .meeting_place import MeetingPlace

PLANS: tuple[dict[str, Any], ...] = (PIPELINE, REPLICAS, ALONE, ALONE, ALONE)
OUTER = {"num_islands": len(PLANS), "inner_steps": 16, "fragments": 4, "delay_steps": 1, "codec": "int4"}
STEPS, STEP_S, SAVED_EVERY, KILLS = 320, 0.1, 10, 20
GRACE_S = 20.0  # within which an island begins anew, however busy the machine


def configured(worker: Worker, run: int, island: int) -> RunConfig:
    saved = worker.folder / f"saved-{run}-{island}"
    config = worker.config(PLANS[island], {**OUTER, "grace_s": GRACE_S}, island, saved, resume=True, steps=STEPS)
    return replace(config, checkpoint=CheckpointSettings(str(saved), SAVED_EVERY, 2, 1), from_scratch=True)


def started(worker: Worker, place: MeetingPlace, run: int, island: int, start: int) -> Island:
    name = f"run {run} island {island} start {start}"
    return worker.start(name, place, configured(worker, run, island), slow_steps)


def slow_steps() -> None:
    before_steps(lambda _trainer, _step: time.sleep(STEP_S))


def steps_of(island: Island) -> int:
    """The steps that its slowest rank has come to."""
    taken: list[int] = [lines[-1]["step"] + 1 if lines else 0 for lines in island.lines().values()]
    return min(taken, default=0)


def states_by_exchange(islands: list[Island]) -> dict[str, list[str]]:
    """Return by exchange and its members the states after it, if all ranks of at least two islands reported it."""
    found = defaultdict[str, list[str]](list)
    for island in islands:
        by_rank = [
            {f"{each['exchange']} of {each['islands']}": int(each["digest"], 16) for each in exchanges}
            for lines in island.lines().values()
            if (exchanges := [line["outer"] for line in lines if line["outer"] and not line["outer"]["has_joined"]])
        ]
        if len(by_rank) == len(island.ranks):
            for key in set[str].intersection(*(set(each) for each in by_rank)):
                found[key].append(f"{sum(each[key] for each in by_rank) % 2**64:016x}")
    return {key: sorted(set(states)) for key, states in found.items() if len(states) > 1}


def kill_and_start_again(worker: Worker, run: int) -> dict[str, Any]:
    """One run, and what has come of it."""
    place, draw = worker.store(len(PLANS)), random.Random(run)
    islands = [started(worker, place, run, island, 0) for island in range(len(PLANS))]
    killed, everyone = [], [*islands]
    for start in range(1, KILLS + 1):
        island, after = draw.randrange(len(PLANS)), draw.randrange(STEPS * start // (KILLS + 1))
        until(lambda island=island, after=after: steps_of(islands[island]) > after)()  # type: ignore[misc]
        islands[island].kill()
        islands[island].ended()
        place.meeting.lose(island)
        killed.append((island, after))
        islands[island] = started(worker, place, run, island, start)
        everyone.append(islands[island])
    ended = [island.ended() for island in islands]
    assert all(set(island["exit_codes"]) == {0} for island in ended), ended
    models, words = [], []
    for island in range(len(PLANS)):
        saved, model = worker.folder / f"saved-{run}-{island}", worker.folder / f"model-{run}-{island}"
        export(saved, model)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(model.glob("*.safetensors"))]
        models.append("".join(digests)[:16])
        words.append(whose_weights(newest_in(saved) or saved))
    exchanges = states_by_exchange(everyone)
    return {"run": run, "killed": killed, "exchanges": exchanges, "weights": words, "models": models}


if __name__ == "__main__":
    folder, runs = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(runs):
        print(json.dumps(kill_and_start_again(Worker(folder), number)), flush=True)
