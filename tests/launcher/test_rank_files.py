"""Files of ranks travel in parts, and lie in the run's folder as they were."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_runtime.config.messages import RankFile
from holmes_runtime.config.rank_metrics import RankTrace, rank_file
from holmes_runtime.node.tail import PART_BYTES, LeftFiles
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

    with pytest.raises(HolmesError, match=r"ranks/trace-rank0\.json\.gz: cannot be read"):
        list(read_traces(tmp_path))


def trace(**other: object) -> dict[str, object]:
    """A trace of two spans, as it is written, with other values."""
    spans = {"track": [0, 0], "name": [0, 0], "start_ns": [1, 5], "duration_ns": [2, 3]}
    return {"rank": 0, "tracks": ["host thread 0"], "names": ["step 0"], **spans, **other}


def read_back(folder: Path, text: bytes) -> list[RankTrace]:
    write_part(folder, FilePart("trace-rank0.json.gz", 0, gzip.compress(text, 1)))
    return list(read_traces(folder))


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_back(tmp_path, json.dumps(trace()).encode())[0].start_ns == (1, 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" + b"[]," * (1 << 21) + b"[]]", "more than 2000000 values"),
        (b" " * (33 << 20), "more than 32 MiB unpacked"),
        (json.dumps(trace(names="x" * (1 << 20))).encode(), "names: expected a list, got 'xxx"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff" * 10, "ascii"),
        (json.dumps(trace(track=[0])).encode(), "columns of 1, 2, 2, 2 spans"),
        (json.dumps(trace(name=[0, 1])).encode(), "numbers from 0 to 1, not from 0 to 0"),
        (json.dumps(trace(track=[0, -1])).encode(), "numbers from -1 to 0, not from 0 to 0"),
        (json.dumps(trace(rank=-1)).encode(), "numbers from -1 to -1"),
        (json.dumps(trace(start_ns=[0, 10**25])).encode(), "not from 0 to"),
        (json.dumps(trace(start_ns=[0, 10**400])).encode(), "a number of at most 100 bits"),
    ],
    ids=["many values", "long", "long value", "deep", "not text", "columns", "name", "track", "rank", "time", "digits"],
)
def test_a_trace_beyond_its_bounds_is_refused_in_a_short_sentence(tmp_path: Path, text: bytes, reason: str) -> None:
    with pytest.raises(HolmesError, match=r"cannot be read") as caught:
        read_back(tmp_path, text)
    assert reason in caught.value.what
    assert len(caught.value.what) < len(str(tmp_path)) + 400


def test_a_trace_is_unpacked_into_no_more_memory_than_one_may_take(tmp_path: Path) -> None:
    packed = gzip.compress(b"[" + b"[]," * (40 << 20), 1)
    write_part(tmp_path, FilePart("trace-rank0.json.gz", 0, packed))
    tracemalloc.start()
    with pytest.raises(HolmesError):
        list(read_traces(tmp_path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20
