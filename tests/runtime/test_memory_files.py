"""What of a checkpoint is kept in memory, for how long, and what keeps it from that."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.config.node_config import MEMORY_VARIABLE, SHM_BYTES_PER_RANK
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.node.checkpoint_files import memory_files
from holmes_runtime.node.checkpoint_files.checkpoint_names import PieceName, SaveId
from holmes_runtime.node.checkpoint_files.description import Counters
from holmes_runtime.node.checkpoint_files.memory_files import COMING, MemoryFiles
from holmes_runtime.rank_notices import RankNotices

from .forked_ranks import with_torch
from .killed_saves import config, shards

ONE, TWO = SaveId("1" * 32), SaveId("2" * 32)
PIECES = [PieceName(f"__{rank}_0.distcp") for rank in range(3)]
RANKS = [Rank(0, "a", "one", 0, 0, 0), Rank(1, "a", "one", 0, 1, 0), Rank(2, "b", "two", 0, 2, 0)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step-00000001.partial"
    folder.mkdir()
    for rank in range(3):
        (folder / f"__{rank}_0.distcp").write_text(f"of rank {rank}")
    return folder


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def of(rank: int, memory: Path | str, ranks: list[Rank] = RANKS) -> MemoryFiles:
    return MemoryFiles(ranks[rank], ranks, {MEMORY_VARIABLE: str(memory)})


def test_ranks_of_a_host_find_what_any_of_them_keeps_until_the_next_save(memory: Path, checkpoint: Path) -> None:
    first, second = of(0, memory), of(1, memory)
    first.keep(ONE, checkpoint, [PIECES[0], PIECES[2]])
    second.keep(ONE, checkpoint, [PIECES[1]])

    found = of(1, memory).of_save(ONE)
    assert {name: (folder / name).read_text() for name, folder in found.items()} == {
        f"__{rank}_0.distcp": f"of rank {rank}" for rank in range(3)
    }
    first.keep(TWO, checkpoint, [PIECES[0]])
    assert set(second.of_save(ONE)) == {"__1_0.distcp"}
    assert set(second.of_save(TWO)) == {"__0_0.distcp"}


def test_a_save_takes_the_memory_of_the_one_before_and_leaves_nothing_of_it(memory: Path, checkpoint: Path) -> None:
    long, short, new = PIECES
    (checkpoint / long).write_bytes(bytes(1 << 20))
    of(0, memory).keep(ONE, checkpoint, [long, short])
    before = memory / "0" / ONE / long
    held = before.stat().st_ino
    (checkpoint / long).write_text("less")

    of(0, memory).keep(TWO, checkpoint, [long, new])

    kept = memory / "0" / TWO
    assert {path.name: path.read_text() for path in kept.iterdir()} == {long: "less", new: "of rank 2"}
    assert (kept / long).stat().st_ino == held
    assert [path.name for path in (memory / "0").iterdir()] == [TWO]


def test_what_a_kill_left_half_kept_is_no_save_and_is_written_over(memory: Path, checkpoint: Path) -> None:
    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])
    (memory / "0" / ONE).rename(memory / "0" / COMING)
    assert of(0, memory).of_save(ONE) == {}

    of(0, memory).keep(TWO, checkpoint, [PIECES[0]])

    assert set(of(0, memory).of_save(TWO)) == {"__0_0.distcp"}
    assert [path.name for path in (memory / "0").iterdir()] == [TWO]


def test_nobody_else_may_enter_and_the_first_rank_of_a_host_removes_all(memory: Path, checkpoint: Path) -> None:
    of(1, memory).keep(ONE, checkpoint, [PIECES[1]])
    assert memory.stat().st_mode & 0o777 == 0o700

    of(1, memory).remove()
    assert memory.exists()
    of(0, memory).remove()
    assert not memory.exists()


def test_parts_of_ranks_that_a_host_has_no_more_go_with_the_next_save(memory: Path, checkpoint: Path) -> None:
    of(1, memory).keep(ONE, checkpoint, [PIECES[1]])

    of(0, memory, RANKS[:1]).keep(TWO, checkpoint, [PIECES[0]])

    assert [path.name for path in memory.iterdir()] == ["0"]


@pytest.mark.parametrize("kind", ["others may enter", "a link"])
def test_a_folder_that_is_not_one_s_own_is_neither_written_nor_read_nor_removed(
    memory: Path, checkpoint: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real = memory if kind == "others may enter" else memory.with_name("elsewhere")
    real.mkdir(mode=0o755)
    (real / "0" / ONE).mkdir(parents=True)
    (real / "0" / ONE / "__0_0.distcp").touch()
    if kind == "a link":
        memory.symlink_to(real)

    files = of(1, memory)
    files.keep(TWO, checkpoint, [PIECES[1]])
    files.keep(TWO, checkpoint, [PIECES[1]])
    of(0, memory).remove()

    assert files.of_save(ONE) == {}
    assert sorted(path.name for path in real.rglob("*.distcp")) == ["__0_0.distcp"]
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"host a: the newest checkpoint is not kept in memory: {memory} is another user's, or others may enter it"
    ]


def test_where_memory_is_short_it_is_left_to_others_and_told(
    memory: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:          10 kB\n")
    monkeypatch.setattr(memory_files, "MEMORY", tmp_path / "meminfo")
    (checkpoint / "__0_0.distcp").write_bytes(bytes(2561))  # of two ranks more than half of it

    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])

    assert of(0, memory).of_save(ONE) == {}
    assert "host a: the newest checkpoint is not kept in memory: 2 ranks want 0.0 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("group", "limit_file", "stat"),
    [
        ("0::/job/step", "memory.max", "anon 3000\nfile 900000\nshmem 1000\n"),
        ("4:cpu,memory:/job/step", "memory.limit_in_bytes", "rss 1\ntotal_rss 3000\ntotal_shmem 1000\n"),
    ],
)
@pytest.mark.parametrize(("size_bytes", "is_kept"), [(1500, True), (1501, False)])
def test_what_a_job_may_take_limits_what_is_kept_and_cached_files_do_not(
    memory: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    limit_file: str,
    stat: str,
    size_bytes: int,
    is_kept: bool,
) -> None:
    monkeypatch.setattr(memory_files, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory_files, "GROUPS", tmp_path / "groups")
    (tmp_path / "own").write_text(f"12:cpuset:/\n{group}\n")
    job = tmp_path / "groups" / ("memory" if "memory" in group else "") / "job"  # its step has no limit of its own
    (job / "step").mkdir(parents=True)
    (job / "step" / limit_file).write_text("max\n")
    (job / limit_file).write_text("10000\n")
    (job / "memory.stat").write_text(stat)
    (checkpoint / "__0_0.distcp").write_bytes(bytes(size_bytes))  # of two ranks half of 6000

    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])

    assert bool(of(0, memory).of_save(ONE)) == is_kept


@pytest.mark.parametrize(("size_bytes", "is_kept"), [(1500, True), (1501, False)])
def test_the_next_start_finds_the_room_that_nccl_needs(
    memory: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, is_kept: bool
) -> None:
    free = shutil.disk_usage(memory.parent)._replace(free=2 * SHM_BYTES_PER_RANK + 6000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    (checkpoint / "__0_0.distcp").write_bytes(bytes(size_bytes))

    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])

    assert bool(of(0, memory).of_save(ONE)) == is_kept


def test_what_ranks_keep_already_is_theirs_to_take_again(
    memory: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "MEMORY", tmp_path / "meminfo")
    (checkpoint / "__0_0.distcp").write_bytes(bytes(2048))
    (checkpoint / "__1_0.distcp").write_bytes(bytes(2048))
    (tmp_path / "meminfo").write_text("MemAvailable: 8 kB\n")
    of(1, memory).keep(ONE, checkpoint, [PIECES[1]])
    (tmp_path / "meminfo").write_text("MemAvailable: 6 kB\n")  # what the other rank keeps is gone from it

    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])

    assert set(of(0, memory).of_save(ONE)) == {"__0_0.distcp", "__1_0.distcp"}


def test_what_cannot_be_kept_leaves_nothing_of_an_older_save(memory: Path, checkpoint: Path) -> None:
    of(0, memory).keep(ONE, checkpoint, [PIECES[0]])
    (checkpoint / "__0_0.distcp").unlink()

    of(0, memory).keep(TWO, checkpoint, [PIECES[0]])

    assert of(0, memory).of_save(ONE) == of(0, memory).of_save(TWO) == {}


def test_without_an_agent_that_removes_it_nothing_is_kept(checkpoint: Path) -> None:
    files = MemoryFiles(RANKS[0], RANKS, {})
    files.keep(ONE, checkpoint, [PIECES[0]])
    assert files.of_save(ONE) == {}
    files.remove()


def save_together(rank: int, folder: Path, answers: Any) -> None:
    """Two ranks of one host save once; the second is slow to read what it has written."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    os.environ[MEMORY_VARIABLE] = str(folder / "memory")
    if rank == 1:
        keep = MemoryFiles.keep

        def keep_later(*arguments: Any) -> None:
            time.sleep(1)
            keep(*arguments)

        pytest.MonkeyPatch().setattr(MemoryFiles, "keep", keep_later)
    settings = config(folder, False, "shared", rank)
    settings = replace(settings, ranks=tuple(replace(each, host="a") for each in settings.ranks))
    checkpoints = Checkpoints(settings, settings.grid.rank(rank), "digest", RankNotices(folder, rank))
    checkpoints.save(shards(rank, 2), Counters(1, 1, 1.0, 0, 1))
    checkpoints.finish()
    answers.put(sorted(path.name for path in (folder / "memory" / str(rank)).glob("*/*")))


@pytest.mark.torch
def test_nobody_publishes_what_a_rank_beside_has_not_kept_yet(tmp_path: Path) -> None:
    forked = with_torch()
    answers = forked.Queue()
    ranks = [forked.Process(target=save_together, args=(rank, tmp_path, answers), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    kept = [answers.get(timeout=600) for _ in ranks]
    for process in ranks:
        process.join(60)

    assert sorted(kept) == [["__0_0.distcp"], ["__1_0.distcp"]]
