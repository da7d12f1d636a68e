"""What a host says is bounded: a line, an answer and what is kept of standard error, whatever is said beside them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from holmes_core.errors import HostError
from holmes_core.remote.local_shell import LocalConnection
from holmes_core.remote.transport import (
    CHUNK_BYTES,
    KEPT_STDERR_BYTES,
    MAX_ANSWER_BYTES,
    MAX_LINE_BYTES,
    BackgroundReader,
    read_lines,
)

MIB = 1 << 20
END_S = 60.0  # for a command that is to end; it takes tenths of a second
ENDLESS = "exec cat /dev/zero"


def reading(chunks: Iterator[bytes]) -> Callable[[], bytes]:
    return lambda: next(chunks, b"")


def times(chunk: bytes, count: int) -> Iterator[bytes]:
    return (chunk for _ in range(count))


@pytest.mark.parametrize("size", [1, 2, 3, 7, CHUNK_BYTES])
def test_lines_are_the_same_however_they_are_cut(size: int) -> None:
    text = "one\n\nthr\u00e9e\nlast".encode()
    chunks = iter([text[at : at + size] for at in range(0, len(text), size)])
    assert list(read_lines("b1", reading(chunks))) == ["one", "", "thr\u00e9e", "last"]


def test_line_without_an_end_is_refused_by_its_host_and_takes_the_memory_of_a_line() -> None:
    tracemalloc.start()
    with pytest.raises(HostError, match="host b1: it sent more than 16 MiB without a line break") as caught:
        list(read_lines("b1", reading(times(b"x" * CHUNK_BYTES, 1 << 16))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.kind == "too much"
    assert peak < 3 * MAX_LINE_BYTES


def test_line_as_long_as_one_may_be_is_read() -> None:
    chunks = iter([*times(b"x" * CHUNK_BYTES, MAX_LINE_BYTES // CHUNK_BYTES), b"\nnext\n"])
    assert [len(line) for line in read_lines("b1", reading(chunks))] == [MAX_LINE_BYTES, 4]


def test_of_an_endless_standard_error_the_end_is_kept() -> None:
    tracemalloc.start()
    reader = BackgroundReader(reading(iter([*times(b"x" * CHUNK_BYTES, 1 << 12), b"the reason\n"])))
    text = reader.text()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text.endswith("the reason\n")
    assert len(text) == KEPT_STDERR_BYTES
    assert peak < 8 * MIB


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("read of closed file")], ids=repr)
def test_standard_error_that_breaks_off_keeps_what_came(error: Exception) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"so far"
        raise error

    assert BackgroundReader(reading(chunks())).text() == "so far"


def test_answer_without_an_end_is_refused_by_its_host_and_its_command_is_ended() -> None:
    begun = time.monotonic()
    with pytest.raises(HostError, match="host b1: its answer is longer than 64 MiB") as caught:
        LocalConnection("b1").run(ENDLESS, b"", 10 * END_S)
    assert caught.value.kind == "too much"
    assert time.monotonic() - begun < 5 * END_S


def test_answer_as_long_as_one_may_be_is_whole() -> None:
    done = LocalConnection("b1").run(f"head -c {MAX_ANSWER_BYTES} /dev/zero", b"", END_S)
    assert (done.exit_code, len(done.stdout)) == (0, MAX_ANSWER_BYTES)


def test_input_that_is_not_read_holds_up_nothing() -> None:
    done = LocalConnection("b1").run("echo out; echo err >&2; exit 3", b"x" * MIB, END_S)
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_input_and_output_larger_than_a_pipe_pass_each_other() -> None:
    data = bytes(range(256)) * (16 * MIB // 256)
    assert LocalConnection("b1").run("cat", data, END_S).stdout == data


def test_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(HostError, match=r"no answer within 0\.1 s"):
        LocalConnection("b1").run("echo begun; sleep 1000", b"", 0.1)


def test_streaming_command_that_sends_no_line_is_ended() -> None:
    stream = LocalConnection("b1").open(ENDLESS)
    with pytest.raises(HostError, match="host b1: it sent more than"):
        list(stream.lines())
    assert stream.wait()[0] < 0  # by the signal of a broken pipe
