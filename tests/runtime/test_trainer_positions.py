"""Ranks of a script that knows nothing of Holmes tell how far they are in their groups; who is missing is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holmes_runtime.config.messages import ASK_FILE, POSITIONS_FILE, RankPosition
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.rank_metrics import GROUPS_FILE, GroupRecord
from holmes_runtime.config.strict_json import parse
from holmes_runtime.config.trainer_config import HOOK_FOLDER, SHARED, TrainerConfig, TrainerNetwork, TrainerRank
from launcher.supervise.blocking_rank import WatchedGroup, culprit, operations_under_way
from tests.eventually import eventually
from tests.free_ports import free_port

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
WORLD = 4
# Two groups are described alike; rank 3 leaves the second operation of its own to rank 1.
SCRIPT = """
import sys, torch, torch.distributed as dist

dist.init_process_group("gloo")
groups = [dist.new_group(ranks, group_desc="replicas") for ranks in ([0, 2], [1, 3])]
mine = groups[dist.get_rank() % 2]
dist.all_reduce(torch.ones(4), group=mine)
if dist.get_rank() == 3:
    sys.stdin.read()
dist.all_reduce(torch.ones(4), group=mine)
dist.barrier()
dist.destroy_process_group()
"""


def culprit_in(folder: Path) -> tuple[int, str] | None:
    """Return the rank that holds up the others, by the last position of every rank; None while no rank is seen to."""
    (folder / ASK_FILE).touch()
    groups: dict[str, WatchedGroup] = {}
    positions: dict[int, RankPosition] = {}
    for file in folder.glob(GROUPS_FILE.format(rank="*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = parse(GroupRecord, line)
            groups[record.key] = WatchedGroup(record.key, record.name, record.ranks)
    for file in folder.glob(POSITIONS_FILE.format(rank="*")):
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        if lines:
            position = parse(RankPosition, lines[-1])
            positions[position.rank] = position
    return culprit(list(operations_under_way(groups.values(), positions))) if len(positions) == WORLD else None


def test_the_rank_that_others_wait_for_is_seen_by_the_groups_of_a_script(tmp_path: Path) -> None:
    ranks = tuple(TrainerRank(f"host-{rank}", 0, {SHARED: "lo"}) for rank in range(WORLD))
    config = TrainerConfig(("python",), "~/", (TrainerNetwork(SHARED, None),), ranks)
    (tmp_path / "trainer.json").write_text(config.to_json(), encoding="utf-8")
    shared = {
        "PYTHONPATH": str(ROOT / HOOK_FOLDER),
        "PATH": "/usr/bin:/bin",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(WORLD),
        TRAINER_VARIABLE: str(tmp_path / "trainer.json"),
        "HOLMES_METRICS_DIR": str(tmp_path),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, env={**shared, "RANK": str(rank)}, cwd=tmp_path
        )
        for rank in range(WORLD)
    ]
    try:
        seen: list[tuple[int, str] | None] = []  # while others start, these may be missing too

        def waits_for_rank_3() -> bool:
            seen.append(culprit_in(tmp_path))
            rank, why = seen[-1] or (None, "")
            return rank == 3 and ("collective 2 of group replicas" in why or "collective 1 of group default_pg" in why)

        assert eventually(waits_for_rank_3), seen[-1]
        processes[3].communicate(timeout=300)
        assert [process.wait(timeout=300) for process in processes] == [0] * WORLD
    finally:
        for process in processes:
            process.kill()
            process.wait()
