"""A run's steps as an event file that TensorBoard shows: scalars only, written without any of its packages.

Such a file is a sequence of records, each a length, its checksum, the bytes of an `Event` as protocol buffer, and their
checksum. Sources: tensorflow/core/lib/io/record_writer.h; tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto, whose field numbers these are; RFC 3720, appendix B.4, for the checksum.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from holmes_core.errors import HolmesError
from launcher.journal.step_file import WrittenStep
from launcher.journal.step_metrics import StepMetrics

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # how a field is encoded
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5  # of Event
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2  # of Summary; of Summary.Value


def write_event_file(folder: Path, run_id: str, steps: Iterable[WrittenStep]) -> Path:
    """Write the event file in `folder`, creating it; replace one of the same run. Raises HolmesError on failure."""
    path = folder / f"events.out.tfevents.{run_id}.holmes"
    temporary = folder / f".{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.writelines(event_records(steps))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HolmesError(f"{path}: cannot be written: {error.strerror}", "choose another folder") from None
    return path


def event_records(steps: Iterable[WrittenStep]) -> Iterator[bytes]:
    """Yield the records of such a file: its version, then the scalars of each step, counted from 1, at its end time."""
    yield _record(_double(_WALL_TIME, 0.0) + _bytes(_FILE_VERSION, b"brain.Event:2"))
    for time_s, step in steps:
        values = b"".join(
            _bytes(_VALUE, _bytes(_TAG, tag.encode()) + _key(_SIMPLE_VALUE, _FIXED_32) + _float(value))
            for tag, value in _scalars(step)
        )
        number = _key(_STEP, _VARINT) + _varint(step.step + 1)
        yield _record(_double(_WALL_TIME, time_s) + number + _bytes(_SUMMARY, values))


def _scalars(step: StepMetrics) -> Iterator[tuple[str, float]]:
    yield "loss/training", step.loss
    if step.eval_loss is not None:
        yield "loss/validation", step.eval_loss
    if step.grad_norm is not None:
        yield "optimizer/gradient norm", step.grad_norm
    yield "optimizer/learning rate", step.learning_rate
    yield "speed/tokens per second", step.tokens_per_s
    yield "speed/seconds a step", step.step_s
    yield "speed/seconds of compute, busiest rank", step.compute_s
    yield "speed/seconds waited for the network, slowest rank", step.exposed_s
    if step.mfu:
        yield "speed/MFU", step.mfu
    yield "memory/GiB of the fullest rank", step.memory_bytes / 2**30


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = _TABLE[(remainder ^ byte) & 0xFF] ^ remainder >> 8
    return remainder ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ _POLYNOMIAL * (byte & 1)
    return byte


_TABLE = tuple(map(_table_entry, range(256)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_checksum(length) + data + _masked_checksum(data)


def _masked_checksum(data: bytes) -> bytes:
    checksum = crc32c(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _key(field: int, encoding: int) -> bytes:
    return _varint(field << 3 | encoding)


def _varint(number: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the top bit says that more follow."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _float(value: float) -> bytes:
    """Encode a float in four bytes; a value beyond their range becomes infinite, as in rounding."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _double(field: int, value: float) -> bytes:
    return _key(field, _FIXED_64) + struct.pack("<d", value)
