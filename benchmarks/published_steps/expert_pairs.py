"""Published alternatives of one job: which of two settings was faster, of one model, batch, machine and software.

A pair counts where the seconds differ by more than `SPREAD`: what the same setting took in two releases of its software
(GPT-OSS-120B on 64 H100, 5,993 and 5,824 tokens/s a GPU in NeMo 26.02 and 26.06).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from benchmarks.published_steps.measurements import Measurement

SPREAD = 0.03
TABLES = ("V17", "V18", "V19")


class Pair(NamedTuple):
    """Two rows, by their numbers in a sequence: the faster one as published, and the slower one."""

    faster: int
    slower: int


def pairs(rows: Sequence[Measurement]) -> list[Pair]:
    """Return the pairs of settings of one job whose published seconds differ by more than the spread."""
    found = []
    for one, other in combinations(range(len(rows)), 2):
        if _job(rows[one]) == _job(rows[other]):
            faster, slower = sorted((one, other), key=lambda at: rows[at].step_s)
            if rows[slower].step_s > rows[faster].step_s * (1 + SPREAD):
                found.append(Pair(faster, slower))
    return found


def _job(row: Measurement) -> tuple[object, ...]:
    return row.table, row.model, row.global_batch_size, row.tp * row.pp * row.dp * row.cp


NOT_STATED = (
    ("24 of the 47 rows", "their precision is 8 bits"),
    ("the others outside V17", "no other row has the same model, batch, machine and software in 16 bits"),
    (
        "Qwen3-235B, pp 32 with three chunks, against pp 8 (H100 24.2 s, H800 22.4 s)",
        "96 stages of 94 layers: the first and the last one have no layer, which `parallel.layers` has not",
    ),
    ("1F1B overlap of tokens on their way (19.7 and 17.6 s; Qwen3-30B 41.3 and 31.3 s)", "no key says so"),
    ("Megatron's FSDP (17.6 s), and ZeRO-2 (OLMoE on 8 H100: dp 8 0.337 s, ep 8 0.256 s)", "sharding is ZeRO 1 or 3"),
    ("`etp` 4 against 1", "Grok-1 and Maverick ran with 4 alone"),
    ("recomputation of whole experts (`moe`)", "recomputation is none, selective or full"),
    ("Qwen3-235B at 16,384 to 131,072 tokens with cp 1 to 8", "another sequence length is another job"),
)
"""Alternatives that job.yaml cannot state, and why."""
