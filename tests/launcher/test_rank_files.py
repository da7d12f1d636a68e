"""Files of ranks travel in parts, and lie in the run's folder as they were."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import rank_file
from holmes_runtime.node.left_files import PART_BYTES, LeftFiles
from launcher.journal.rank_files import FilePart, file_part, misfit_of_part, read_traces, write_part
from launcher.supervise.attempt_state import AttemptState
from tests.launcher.test_attempt_state import PLAN, UNIX_S, say

CONTENT = bytes(range(256)) * 500


def sent(folder: Path, rank: int = 2) -> list[RankFile]:
    """What the agent reports of a trace that appears in its folder."""
    (folder / rank_file("trace", rank)).write_bytes(CONTENT)
    return list(LeftFiles(folder).new())


def test_a_file_arrives_as_it_was_though_parts_come_twice(tmp_path: Path) -> None:
    parts = sent(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    for part in (*parts, parts[1]):
        write_part(run, file_part(part))

    assert len(parts) == -(-len(CONTENT) // PART_BYTES)
    assert (run / "ranks" / "trace-rank2.json.gz").read_bytes() == CONTENT


def test_a_later_attempt_s_file_replaces_an_earlier_longer_one(tmp_path: Path) -> None:
    for content in (b"long and old", b"new"):
        write_part(tmp_path, FilePart("trace-rank0.json.gz", 0, content))

    assert (tmp_path / "ranks" / "trace-rank0.json.gz").read_bytes() == b"new"


def test_each_file_is_reported_once_and_no_other_is(tmp_path: Path) -> None:
    files = LeftFiles(tmp_path)
    assert list(files.new()) == []
    for name in ("memory-rank0.json", "memory-rank0.partial", "trace-rankx.json.gz", "metrics-rank0.jsonl"):
        (tmp_path / name).write_bytes(b"{}")

    assert [(part.file, part.rank) for part in files.new()] == [("memory", 0)]
    assert list(files.new()) == []


def test_a_part_of_a_rank_of_that_host_is_written() -> None:
    state = AttemptState(PLAN, False, 0.0, UNIX_S)
    part = RankFile(1, "memory", 0, base64.b64encode(b"{}").decode())

    assert say(state, 1, part) == [FilePart("memory-rank1.json", 0, b"{}")]
    assert say(state, 2, part) == []
    assert "RankFile of a rank that is not on this host" in state.failures[0].message


@pytest.mark.parametrize(("offset", "data"), [(-1, ""), (1 << 40, ""), (0, "not base64!")])
def test_what_is_no_part_is_a_fault_of_its_host(offset: int, data: str) -> None:
    state = AttemptState(PLAN, False, 0.0, UNIX_S)
    part = RankFile(0, "trace", offset, data)

    assert say(state, 0, part) == []
    reason = misfit_of_part(part)
    assert reason is not None
    assert reason in state.failures[0].message


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_part(tmp_path, FilePart("trace-rank0.json.gz", 0, b"no gzip"))

    with pytest.raises(HolmesError, match=r"ranks/trace-rank0\.json\.gz: no trace of a rank"):
        list(read_traces(tmp_path))
