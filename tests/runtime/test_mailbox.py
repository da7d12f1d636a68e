"""The agent's pipe and file: commands come whole or are refused, and a log's last line comes once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holmes_runtime.config.messages import (
    Alive,
    Go,
    Message,
    NotKept,
    RankPrinted,
    Refused,
    Save,
    Stop,
    decode_message,
    encode,
)
from holmes_runtime.node.mailbox import PART_NAME, SPARE_BYTES, CommandPipe, MessageFile, MessageReader
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
    MessageFile(tmp_path).report(Alive())
    assert isinstance(decode_message(MessageReader(tmp_path, 0).read(1000).decode()), Alive)


def messages_of(reader: MessageReader, most_bytes: int = 100) -> list[Message]:
    """All that has come for that reader, in parts as small as a slow link takes them."""
    data = b"".join(iter(lambda: reader.read(most_bytes), b""))
    return [decode_message(line) for line in data.decode().splitlines()]


def test_messages_take_bounded_room_and_one_who_keeps_up_gets_all_of_them(tmp_path: Path) -> None:
    messages, reader, heard = MessageFile(tmp_path, part_bytes=2000), MessageReader(tmp_path, 0), []
    for number in range(1000):
        messages.report(RankPrinted(0, f"line {number}"))
        if number % 30 == 0:  # some parts hold 40 messages
            heard += messages_of(reader)
    heard += messages_of(reader)
    assert heard == [RankPrinted(0, f"line {number}") for number in range(1000)]
    assert sum(part.stat().st_size for part in tmp_path.glob("messages-*")) < 4200


@pytest.mark.parametrize("seen", [0, 1, 499, 970, 991, 992, 999, 1000])
def test_who_comes_back_goes_on_behind_what_was_seen_and_is_told_how_much_is_gone(tmp_path: Path, seen: int) -> None:
    messages = MessageFile(tmp_path, part_bytes=2000)
    for number in range(1000):
        messages.report(RankPrinted(0, f"line {number}"))
    heard = messages_of(MessageReader(tmp_path, seen))
    gone = heard[0].messages if heard and isinstance(heard[0], NotKept) else 0
    heard = heard[1:] if gone else heard
    assert heard == [RankPrinted(0, f"line {number}") for number in range(seen + gone, 1000)]
    assert (gone > 0) == (seen < 900)  # 960 messages are in parts that are gone


def test_who_falls_behind_by_more_than_is_kept_hears_how_much_between_whole_messages(tmp_path: Path) -> None:
    messages, reader = MessageFile(tmp_path, part_bytes=2000), MessageReader(tmp_path, 0)
    for number in range(10):
        messages.report(RankPrinted(0, f"line {number}"))
    start = reader.read(30)  # half a message
    for number in range(10, 1000):
        messages.report(RankPrinted(0, f"line {number}"))
    data = start + b"".join(iter(lambda: reader.read(30), b""))
    heard, number = [decode_message(line) for line in data.decode().splitlines()], 0
    for message in heard:
        if isinstance(message, NotKept):
            number += message.messages
        else:
            assert message == RankPrinted(0, f"line {number}")
            number += 1
    assert number == 1000
    assert [type(message) for message in heard].count(NotKept) == 1


def test_a_spare_file_makes_room_for_last_words_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / PART_NAME.format(before=0)).symlink_to("/dev/full")  # takes no byte
    messages = MessageFile(tmp_path)
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


def test_what_was_read_of_a_log_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    path, count = tmp_path / "stdout.log", 0
    tail = Tail(path, most_kept_bytes=1 << 20)
    with open(path, "w", encoding="utf-8") as log:  # as torchrun opens it
        for _ in range(16):
            log.write(f"{'x' * 1023}\n" * 1024)
            log.flush()
            count += sum(len(line) == 1023 for line in tail.lines())
    assert count == 16 * 1024
    assert path.stat().st_size == 16 << 20
    if _punches_holes(tmp_path):
        assert path.stat().st_blocks * 512 < 3 << 20


def _punches_holes(folder: Path) -> bool:
    return subprocess.run(["fallocate", "-p", "-l", "1", folder / "stdout.log"], check=False).returncode == 0
