"""What of a checkpoint is kept in memory, for how long, and what keeps it from that."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_runtime.checkpoint import memory_files
from holmes_runtime.checkpoint.memory_files import MemoryFiles
from holmes_runtime.config.node_config import MEMORY_VARIABLE
from holmes_runtime.config.rank_grid import Rank

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
    first.keep("one", checkpoint, ["__0_0.distcp", "__2_0.distcp"])
    second.keep("one", checkpoint, ["__1_0.distcp"])

    found = of(1, memory).of_save("one")
    assert {name: (folder / name).read_text() for name, folder in found.items()} == {
        f"__{rank}_0.distcp": f"of rank {rank}" for rank in range(3)
    }
    first.keep("two", checkpoint, ["__0_0.distcp"])
    assert set(second.of_save("one")) == {"__1_0.distcp"}
    assert set(second.of_save("two")) == {"__0_0.distcp"}
    assert second.of_save("") == {}


def test_nobody_else_may_enter_and_the_first_rank_of_a_host_removes_all(memory: Path, checkpoint: Path) -> None:
    of(1, memory).keep("one", checkpoint, ["__1_0.distcp"])
    assert memory.stat().st_mode & 0o777 == 0o700

    of(1, memory).remove()
    assert memory.exists()
    of(0, memory).remove()
    assert not memory.exists()


def test_parts_of_ranks_that_a_host_has_no_more_go_with_the_next_save(memory: Path, checkpoint: Path) -> None:
    of(1, memory).keep("one", checkpoint, ["__1_0.distcp"])

    of(0, memory, RANKS[:1]).keep("two", checkpoint, ["__0_0.distcp"])

    assert [path.name for path in memory.iterdir()] == ["0"]


@pytest.mark.parametrize("kind", ["others may enter", "a link"])
def test_a_folder_that_is_not_one_s_own_is_neither_written_nor_read_nor_removed(
    memory: Path, checkpoint: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real = memory if kind == "others may enter" else memory.with_name("elsewhere")
    real.mkdir(mode=0o755)
    (real / "0" / "one").mkdir(parents=True)
    (real / "0" / "one" / "__0_0.distcp").touch()
    if kind == "a link":
        memory.symlink_to(real)

    files = of(1, memory)
    files.keep("two", checkpoint, ["__1_0.distcp"])
    files.keep("two", checkpoint, ["__1_0.distcp"])
    of(0, memory).remove()

    assert files.of_save("one") == {}
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

    of(0, memory).keep("one", checkpoint, ["__0_0.distcp"])

    assert of(0, memory).of_save("one") == {}
    assert "host a: the newest checkpoint is not kept in memory: 2 ranks want 0.0 GB" in capsys.readouterr().out


def test_without_an_agent_that_removes_it_nothing_is_kept(checkpoint: Path) -> None:
    files = MemoryFiles(RANKS[0], RANKS, {})
    files.keep("one", checkpoint, ["__0_0.distcp"])
    assert files.of_save("one") == {}
    files.remove()
