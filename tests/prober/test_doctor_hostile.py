"""holmes doctor on broken or hostile logs: an answer or none, bounded, and nothing echoed that is not NCCL's."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.nccl_logs import log_facts, nccl_lines
from prober.nccl_logs.diagnose import diagnose
from prober.nccl_logs.nccl_lines import MAX_SHOWN
from prober.nccl_logs.read_log import read_log
from prober.nccl_logs.run_table import communicator_rows, host_rows
from tests.builders.nccl_logs import diagnosed, facts_of, info, warn

PIECES = st.sampled_from(
    [
        *(
            "n1:1:2 [0] NCCL INFO ",
            "NCCL WARN ",
            "Channel 00/0 : 1[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
            "\n",
            "\x1b[2J",
            "\0",
        ),
        *(
            "NET/IB : Using [0]mlx5_0:1/RoCE",
            "Got completion from peer ::1<1> with status=",
            "9" * 400,
            "comm 0x1 rank ",
            "[0]={",
        ),
        *(
            "nranks ",
            "Mismatched NCCL version detected : rank 1 version ",
            "ibv_modify_qp failed with ",
            "local GID index 3, local GID ",
        ),
        *(
            " - Init START",
            "Bootstrap : Using lo:127.0.0.1<0>",
            "nNodes 2 localRanks 1 localRank 0",
            "é",
            "Last error:\n",
            " -> 3",
        ),
    ]
)


@given(st.lists(PIECES | st.text(max_size=20), max_size=40).map("".join))
def test_no_text_raises(text: str) -> None:
    facts = facts_of(text)
    diagnose(facts)
    host_rows(facts)
    communicator_rows(facts)


@given(st.binary(max_size=500))
def test_no_bytes_raise(data: bytes) -> None:
    diagnose(facts_of(data + b"NCCL" + data + b"\nNCCL INFO " + data))


def test_long_line_is_read_in_part_and_counted() -> None:
    log = info("Using network IB") + "x" * 1_000_000 + "\n" + info("NCCL version 2.27.3+cuda12.9")
    facts = facts_of(log)
    (size,) = facts.files.values()
    assert (size.lines, size.cut) == (2, 1)
    assert list(facts.versions) == ["2.27.3"]


def test_reading_takes_no_more_of_a_line_than_the_limit() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def readline(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert 0 < size <= 1 << 20
            self.given += size
            return (b"NCCL" * size)[:size] if self.given < 1 << 26 else b""

    log, facts = Endless(), log_facts.LogFacts()
    read_log(log, "log", facts)  # type: ignore[arg-type]
    assert log.given >= 1 << 26
    assert (facts.files["log"].lines, facts.files["log"].cut) == (1, 1)


def test_memory_is_bounded_with_the_bytes_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_facts, "MAX_KEPT_BYTES", 1 << 20)

    def lines() -> Iterator[str]:
        for number in range(3_000):
            host = f"host-{number:0100}"
            yield info("NET/IB : Using " + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(60)), host, number)
            yield info("NCCL_X set by environment to " + "\U0001f600" * 250, host, number)
            yield info(f"comm 0x{number} rank {number} nranks 9000 cudaDev 0 commId 0x1 - Init START", host, number)

    log = io.BytesIO("\n".join(lines()).encode())
    facts = log_facts.LogFacts()
    tracemalloc.start()
    read_log(log, "log", facts)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2 * (1 << 20)
    assert facts.left_out > 1_000


def test_what_is_kept_is_bounded() -> None:
    def lines() -> Iterator[str]:
        for number in range(log_facts.MAX_PROCESSES + 50):
            yield info(f"NCCL_X{number} set by environment to 1", f"h{number}", number)
            yield info(f"NCCL_X{number} set by environment to 1")
            yield warn(f"Mismatched NCCL version detected : rank 1 version {20000 + number} rank 0 version 22703")
            yield info(f"comm 0x{number} rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x{number} - Init START")

    facts = facts_of("\n".join(lines()))
    assert len(facts.processes) <= log_facts.MAX_PROCESSES
    assert len(facts.communicators) == log_facts.MAX_COMMUNICATORS
    assert max(len(process.settings) for process in facts.processes.values()) == log_facts.MAX_NAMES
    assert len(facts.signs["version-mismatch"]) == log_facts.MAX_SIGHTINGS
    assert facts.left_out > 0


def test_evidence_is_short_and_free_of_control_characters() -> None:
    found = diagnosed(warn("Mismatched NCCL version detected \x1b]0;owned\x07 \x1b[31m\x9b1m" + "y" * 5000))
    (line,) = found.evidence
    assert len(line.text) <= MAX_SHOWN
    assert line.text.isprintable()
    assert "owned" not in line.text


def test_line_that_only_mentions_nccl_shows_nothing_but_the_message() -> None:
    line = "+ export SECRET_KEY=hunter2 NCCL_DEBUG=INFO ; Mismatched NCCL version detected : rank 1 version 22105"
    (shown,) = diagnosed(line).evidence
    assert "hunter2" not in shown.text


def test_after_too_many_messages_warnings_are_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_lines, "MAX_MESSAGES", 3)
    mismatch = warn("Mismatched NCCL version detected : rank 1 version 22105 rank 0 version 22005")
    facts = facts_of("\n".join([info("Using network IB")] * 10 + [mismatch]))
    (size,) = facts.files.values()
    assert (size.messages, size.skipped) == (4, 7)
    assert diagnose(facts).cause == "version-mismatch"


def test_absurd_numbers_are_no_ranks() -> None:
    facts = facts_of(info(f"comm 0x1 rank 1 nranks {'9' * 200} cudaDev 0 commId 0x1 - Init START"))
    assert facts.communicators == {}


def test_log_that_is_not_read_to_its_end_is_never_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_lines, "MAX_MESSAGES", 3)
    found = diagnose(facts_of("\n".join([info("Using network IB")] * 10)))
    assert found.cause is None
    assert "some hosts" in found.needed
