"""Bytes that five islands move over the loopback of a network namespace of their own, by the kernel's counters.

`python -m tests.runtime.island_bytes FOLDER`, in that namespace, prints a line of JSON a codec: the bytes of five outer
syncs, as the difference between runs of six and of one, on the interface and as ranks report them; and those of five
rings.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from holmes_runtime.config.codec import OUTER_BLOCK, packed_bytes
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_settings import OuterCodec

from .islands_worker import STEPS, H, Worker
from .launched_runs import TINY

MODEL = replace(TINY, hidden_size=128, ffn_hidden_size=512)
ISLANDS = 5
CODECS: tuple[OuterCodec, ...] = ("none", "int8")


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    (counters,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(counters[0])


def moved(worker: Worker, codec: OuterCodec, inner_steps: int) -> tuple[int, int]:
    """On the interface, and as reported."""
    name, before = f"{codec} {inner_steps}", loopback_bytes()
    worker.together(name, [{"model": MODEL}] * ISLANDS, codec=codec, inner_steps=inner_steps)
    islands: list[dict[str, Any]] = worker.results[name]
    assert all(set(island["exit_codes"]) == {0} for island in islands), islands
    reported = sum(line["sent_bytes"] for island in islands for lines in island["outer"].values() for line in lines)
    return loopback_bytes() - before, reported


if __name__ == "__main__":
    worker = Worker(Path(sys.argv[1]))
    for codec in CODECS:
        many, once = moved(worker, codec, H), moved(worker, codec, STEPS)
        size = packed_bytes(codec, stage_parameters(MODEL, 3, True, True), 4, OUTER_BLOCK)
        rings = (STEPS // H - 1) * ISLANDS * 2 * (ISLANDS - 1) / ISLANDS * size
        print(json.dumps({"wire": many[0] - once[0], "reported": many[1] - once[1], "rings": rings}), flush=True)
