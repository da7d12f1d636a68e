"""Any plan trains like a single process: losses, gradient norms, gradients, evaluation.

The public Holmes code lost its gradients under pipelining; here every schedule's are compared number by number. In
fp32 the difference is the order of sums; the same plan run twice differs in nothing. In 16 bits tensor shards differ
by more, since they round their partial results before they add them up. Where edges are packed, the single process
packs and unpacks at the same cuts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from holmes_runtime.config.rank_grid import EDGE_AXES
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.node.data_files.token_file import TokenFileWriter
from tests.seeds import all_but

from .asked_for import asked_for
from .drawn_teacher import write_logits
from .launched_runs import REPOSITORY
from .parity_cells import CELLS, GPT, Cell

# Minutes where many share the processors; alone, a world size takes about half a minute.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

TOLERANCE = {"fp32": 1e-6, "bf16": 2e-3, "fp16": 1e-3}

# Exhaustive: other cells have each schedule, degree, precision and feature of theirs, and most pairs of these.
COVERED = [
    "t1p2d1-gpipe-llama-full-fp32",
    "t1p2d1-1f1b-llama-selective-fp32",
    "t1p2d1-eager-llama-none-fp32",
    "t1p2d1-interleaved-llama-full-fp32-chunks2",
    "t1p2d1-zero-bubble-llama-selective-fp32",
    "t1p2d1-zero-bubble-gpt-none-bf16",
    "t2p1d1-1f1b-llama-selective-fp32",
    "t1p1d2-1f1b-llama-full-fp32-zero3",
    "t1p1d2-1f1b-tied-gpt-none-fp32",
    "t2p1d1-1f1b-qwen-selective-fp32",
    "t1p2d1-gpipe-tied-llama-full-fp32",
    "t1p2d1-eager-tied-llama-none-fp32",
    "t1p2d1-eager-llama-none-fp32-int4+bf16",
    "t1p2d1-1f1b-gpt-none-fp32-documents",
    "t2p1d1-1f1b-gpt-none-fp32-documents",
    "t1p1d2-1f1b-gpt-none-fp16-examples",
    "t2p1d1-1f1b-gpt-none-fp32-examples",
    "t1p2d1-eager-mixtral-full-fp32",
    "t2p1d1-1f1b-mixtral-full-bf16",
    "t1p2d1-eager-gpt-none-fp32-int8+int4-lora",
    "t2p1d1-1f1b-llama-full-fp32-lora",
    "t1p3d1-zero-bubble-gpt-none-fp32",
    "t1p3d1-1f1b-qwen-none-bf16",
    "t1p3d1-1f1b-gpt-none-fp32-int4+int8",
    "t1p3d1-zero-bubble-gpt-none-fp32-int8+int4",
    "t1p3d1-1f1b-gpt-none-fp32-documents",
    "t1p4d1-gpipe-llama-full-fp32",
    "t1p4d1-1f1b-gpt-selective-fp32",
    "t1p2d2-gpipe-gpt-full-fp32-2x6",
    "t1p2d2-eager-gpt-none-fp32-2x6",
    "t1p1d4-1f1b-llama-none-bf16",
    "t1p1d4-1f1b-llama-none-fp16-aabb",
    "t1p1d4-1f1b-gpt-full-bf16-zero3",
    "t1p1d4-1f1b-gpt-none-bf16-abba-zero3",
    "t2p1d2-1f1b-gpt-full-fp32-zero3",
    "t1p2d2-eager-gpt-selective-fp32-zero3",
    "t1p2d2-interleaved-own-none-fp32-chunks2-zero3",
    "t2p2d1-1f1b-qwen-none-fp32",
    "t1p2d2-interleaved-qwen-none-fp16-chunks2",
    "t2p2d1-zero-bubble-llama-none-fp32-int8+int4",
    "t2p2d1-interleaved-gpt-none-fp32-chunks2-int8+int8",
    "t1p2d2-interleaved-gpt-full-fp32-chunks2-2x6-documents",
    "t1p2d2-interleaved-mixtral-none-fp32-chunks2-2x6",
    "t2p1d2-1f1b-mixtral-none-fp32-zero3",
    "t1p2d2-zero-bubble-mixtral-selective-fp32-ep2",
    "t1p2d1-gpipe-llama-full-fp32-cp2",
    "t1p2d1-1f1b-gpt-selective-fp32-cp2",
    "t1p2d1-eager-llama-none-fp32-cp2",
    "t1p1d2-1f1b-llama-none-fp32-3x5-cp2",
    "t1p2d1-zero-bubble-tied-llama-selective-fp32-documents-cp2",
    "t1p2d3-eager-llama-none-fp32-3x3x2",
    "t2p2d2-gpipe-gpt-full-fp32-2x6",
    "t2p2d2-1f1b-llama-selective-fp32-2x6",
    "t2p2d2-eager-gpt-none-fp32-2x6",
    "t2p1d4-1f1b-llama-none-fp32-aaaabbbb",
    "t1p4d2-zero-bubble-llama-none-fp32-3x5",
    "t2p4d1-zero-bubble-gpt-none-fp32",
    "t1p2d4-interleaved-gpt-none-fp32-chunks2",
    "t1p2d4-1f1b-llama-none-fp32-1x1x3x3-aabbaabb-zero3",
    "t2p2d2-zero-bubble-tied-gpt-none-fp32-4x4",
]


@pytest.fixture(scope="module")
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, Any]]:
    """Return by world size the worker's results for the cells that this session asks for, of one start of processes."""
    folder = tmp_path_factory.mktemp("parity")
    names = {str(parameters["cell"]) for parameters in asked_for(request)}
    return cache(lambda world_size: compare(world_size, names, folder / str(world_size)))


def compare(world_size: int, names: Collection[str], place: Path) -> dict[str, Any]:
    place.mkdir()
    (place / "text.txt").write_bytes(bytes(range(32, 127)) * 20)
    texts = (bytes(range(48, 48 + length)).decode() for length in (3, 1, 7, 12, 2, 40, 5))
    (place / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) * 25)
    write_examples(place / "examples.bin")
    of_size = [str(cell) for cell in CELLS if cell.world_size == world_size and str(cell) in names]
    command = [sys.executable, "-m", "tests.runtime.parity_worker", str(place), *of_size]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1750, check=False
    )
    found = place / "parity.json"
    cells: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
    return cells | {"stderr": done.stderr[-3000:]}


def write_examples(path: Path) -> None:
    """Examples of 3 to 13 tokens in sequences of 16; of half of them few tokens are to be predicted, or none."""
    drawn = random.Random(1)
    with TokenFileWriter(path, "int32", packed_length=GPT.seq_length) as writer:
        for _ in range(50):
            first = drawn.randint(3, 13)
            for length in (first, GPT.seq_length - first):
                known = drawn.choice((1, 2, length - 1, length))
                tokens = [32 + (known + place) % 95 for place in range(length)]
                writer.add([~token if place < known else token for place, token in enumerate(tokens)])
                writer.end_document()
        writer.add([~0])
    write_logits(path, GPT.seq_length, top=5, vocab_size=GPT.vocab_size)


@pytest.mark.parametrize("cell", all_but(COVERED, CELLS))
def test_a_plan_trains_like_a_single_process(cell: Cell, compared: Callable[[int], dict[str, Any]]) -> None:
    found = compared(cell.world_size)

    assert str(cell) in found, found["stderr"]
    errors = found[str(cell)]
    # One last bit may round one number of a packed message the other way; all of them are 1e-4 of a loss.
    limit = 1e-5 if cell.is_packed and cell.tp * cell.dp > 1 else TOLERANCE[cell.value_type]
    assert errors["losses"][-1] < errors["losses"][0] - 0.005  # it learns
    assert errors["loss"] <= limit
    assert errors["gradient"] <= limit
    # Single micro-batches of the trained model, and norms, which are sums over all parameters.
    assert errors["evaluated"] <= 10 * limit
    assert errors["norm"] <= 10 * limit
    assert errors["equal"]
    edges = [group.name for group in cell.config(Path()).groups if group.axis in EDGE_AXES]
    assert errors["timed"] == (sorted(edges) if cell.is_packed else [])
    # AdamW's first steps divide a gradient by its own size, which makes more of a difference in a tiny one, and of what
    # tensor shards and compiled blocks round otherwise far more.
    if (cell.clusters or cell.zero > 1) and cell.tp == 1 and not cell.compiled:
        assert errors["weight"] <= 3 * limit


def test_hierarchical_data_parallelism_is_held_with_one_and_more_replicas_a_cluster_and_across_three() -> None:
    seen = {(len(set(cell.clusters)), cell.dp) for cell in CELLS if cell.clusters and cell.pp == cell.tp == 1}
    assert seen >= {(2, 2), (2, 4), (3, 6)}
    assert {cell.value_type for cell in CELLS if cell.clusters} == set(TOLERANCE)


def test_the_matrix_has_every_schedule_with_every_kind_of_parallelism() -> None:
    assert len(set(map(str, CELLS))) >= 40
    for schedule in get_args(ScheduleName):
        seen = [cell for cell in CELLS if cell.schedule == schedule and cell.value_type == "fp32"]
        assert any(cell.tp > 1 and cell.dp > 1 and len(set(cell.microbatches)) > 1 for cell in seen)
        assert {cell.family for cell in seen} >= {"gpt", "llama"}
