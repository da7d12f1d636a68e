"""The agent's pipe and file: commands come whole or are refused, and a log's last line comes once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holmes_runtime.config.messages import Alive, Go, Refused, Save, Stop, decode_message, encode
from holmes_runtime.node.mailbox import SPARE_BYTES, CommandPipe, MessageFile
from holmes_runtime.node.tail import Tail


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "commands"
    os.mkfifo(path)
    return path


def send(pipe: Path, data: bytes) -> None:
    """As the relay does."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, data)
    os.close(writer)


def test_command_in_two_parts_is_one(pipe: Path) -> None:
    commands, line = CommandPipe(pipe), encode(Go(29500, "5ec2e7"))
    send(pipe, encode(Save()) + line[:10])
    assert [type(command) for command in commands.take(1.0)] == [Save]
    send(pipe, line[10:])
    assert commands.take(1.0) == [Go(29500, "5ec2e7")]


def test_sign_of_life_is_no_command(pipe: Path) -> None:
    commands = CommandPipe(pipe)
    send(pipe, b"\n")
    assert commands.take(1.0) == []


@pytest.mark.parametrize("line", [b'{"do": "stop"}', b'{"kind": "Alive"}', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_command_is_refused_and_the_next_one_is_taken(pipe: Path, line: bytes) -> None:
    commands = CommandPipe(pipe)
    send(pipe, line + b"\n" + encode(Stop()))
    refused, stop = commands.take(1.0)
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("a command of the controller cannot be read: ")
    assert isinstance(stop, Stop)


def test_message_is_appended_whole(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    path.touch()
    MessageFile(path).report(Alive())
    assert isinstance(decode_message(path.read_text(encoding="utf-8")), Alive)


def test_a_spare_file_makes_room_for_last_words_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    path.symlink_to("/dev/full")  # takes no byte
    messages = MessageFile(path)
    assert (tmp_path / "spare").stat().st_size == SPARE_BYTES
    messages.report(Alive())
    assert messages.disk_was_full
    assert not (tmp_path / "spare").exists()


def test_line_without_an_end_is_kept_until_the_rest_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_text("one\ntwo\nthr", encoding="utf-8")
    assert list(tail.lines()) == ["one", "two"]
    assert list(tail.rest()) == ["thr"]
    assert list(tail.rest()) == []
