"""A fault planted in a user's model on one of four ranks, and the rank that a launch of it names.

`python -m tests.cli.planted` tries each fault on each rank. Ranks know their number by torchrun's own variable.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.builders.local_runs import holmes, small_job, write_plan

OWN_MODEL = Path(__file__).parents[2] / "examples" / "own-model-file" / "own_model.py"
RANKS = range(4)
STEPS = 14  # more than the runtime takes before it looks for what is slow
FORWARDS_BEFORE = 4  # two steps
FAULTS = {
    "hang": "time.sleep(3600)",
    "not a number": "hidden = hidden * float('nan')",
    "exception": "raise ValueError('a shape that cannot be')",
    "out of memory": "raise MemoryError('cannot hold the activations')",
    "slow data": "pass",
    "killed": "os.kill(os.getpid(), 9)",
    "hang in C": "re.match('(a+)+$', 'a' * 64 + 'b')",
}
PROMISED = ("hang", "not a number", "exception", "out of memory", "slow data")
MODEL = """
import os, re, time
from torch import nn
from holmes_runtime.data.samples import Samples
import whole

IS_HERE = os.environ["RANK"] == "{rank}"

class Planted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.forwards = inner, 0

    def forward(self, inputs):
        hidden = self.inner(inputs)
        self.forwards += 1
        if IS_HERE and self.forwards > {before}:
            {statement}
        return hidden

def build(stage_layers, job):
    if IS_HERE and "{fault}" == "slow data":
        read = Samples.batch
        Samples.batch = lambda *arguments: (time.sleep(0.3), read(*arguments))[1]
    return Planted(whole.build(stage_layers, job))
"""
_NAMED = re.compile(r"error: host \S+ \(\S+\): rank (\d+) failed first|slow data on \S+: rank (\d+) waits")


class Blamed(NamedTuple):
    """The ranks that a launch named, its exit code, and all that it printed to stderr."""

    ranks: set[int]
    exit_code: int
    stderr: str


def launch_with(folder: Path, fault: str, rank: int) -> Blamed:
    """Launch a model with `fault` planted on `rank`: two replicas of two stages, on two local hosts of two ranks."""
    code = folder / "src"
    code.mkdir()
    shutil.copy(OWN_MODEL, code / "whole.py")
    text = MODEL.format(rank=rank, before=FORWARDS_BEFORE, fault=fault, statement=FAULTS[fault])
    (code / "planted_model.py").write_text(text, encoding="utf-8")
    write_plan(
        folder,
        model={**small_job(folder)["model"], "factory": "planted_model.py:build"},
        launch={"code": "src"},
        parallel={"pp": 2, "dp": 2, "micro_batch_size": 1},
        slots_per_host=2,
        timeout_s=240,  # on a busy machine ranks import torch in more than a minute
        steps=STEPS,
    )
    done = holmes(folder, "launch", "plan.json")
    ranks = {int(failed or waiting) for failed, waiting in _NAMED.findall(done.stderr)}
    return Blamed(ranks, done.returncode, done.stderr)


def main() -> int:
    """Try the promised faults on all ranks, or those that are named; a line each."""
    tries = list(product(sys.argv[1:] or PROMISED, RANKS))
    right = 0
    for fault, rank in tries:
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.monotonic()
            blamed = launch_with(Path(folder), fault, rank)
        right += blamed.ranks == {rank}
        took_s = time.monotonic() - began_s
        print(f"{fault} on rank {rank}: named {blamed.ranks}, exit code {blamed.exit_code}, {took_s:.0f} s", flush=True)
    print(f"{right} of {len(tries)} right")
    return 0 if right == len(tries) else 1


if __name__ == "__main__":
    sys.exit(main())
