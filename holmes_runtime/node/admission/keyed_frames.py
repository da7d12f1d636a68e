"""Frames of bytes between two gates, with tags that let the receiver detect any change in transit.

A frame is a length, its tag, the bytes, and their tag. A tag is HMAC-SHA256, cut to 16 bytes. It also covers the
number of the frame in its direction, so a dropped, repeated or swapped frame is detected too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

TAG_BYTES = 16
MAX_FRAME_BYTES = 1 << 18
_LENGTH = struct.Struct(">I")
_HEAD_BYTES = _LENGTH.size + TAG_BYTES
_PLACE = struct.Struct(">Q?")  # number of the frame; False for its length, True for its bytes


class FrameAltered(RuntimeError):
    """A frame is not the next frame that the other end sent."""


class FrameKeys(NamedTuple):
    """The keys of one connection, one per direction, as seen by one end."""

    sent: bytes
    received: bytes


def rank_key(secret: bytes) -> bytes:
    """Return the key that an attempt's ranks share. It does not reveal the secret."""
    return hmac.digest(secret, b"key of the ranks", hashlib.sha256)


def tag_of(key: bytes, *parts: bytes | memoryview) -> bytes:
    """Return the tag of the parts. Both ends must know the lengths of all but the last."""
    hashed = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        hashed.update(part)
    return hashed.digest()[:TAG_BYTES]


class FrameWriter:
    """Makes the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def frame(self, data: bytes) -> bytes:
        """Return the next frame, of at most MAX_FRAME_BYTES of `data`."""
        assert 0 < len(data) <= MAX_FRAME_BYTES
        length = _LENGTH.pack(len(data))
        of_length = tag_of(self._key, _PLACE.pack(self._number, False), length)
        of_data = tag_of(self._key, _PLACE.pack(self._number, True), data)
        self._number += 1
        return b"".join((length, of_length, data, of_data))


class FrameReader:
    """Reads the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0
        self._came = bytearray()
        self._length: int | None = None

    def take(self, came: bytes) -> bytes:
        """Return the bytes of all complete frames. Raises FrameAltered before returning any byte of a changed frame."""
        self._came += came
        whole = bytearray()
        while len(self._came) >= (_HEAD_BYTES if self._length is None else self._length + TAG_BYTES):
            if self._length is None:
                self._length = self._read_length()
            else:
                whole += self._read_data(self._length)
                self._length, self._number = None, self._number + 1
        return bytes(whole)

    def _read_length(self) -> int:
        head = self._pop(_HEAD_BYTES)
        self._check(False, head[: _LENGTH.size], head[_LENGTH.size :])
        (length,) = _LENGTH.unpack_from(head)
        if not 0 < length <= MAX_FRAME_BYTES:
            raise FrameAltered(f"a frame of {length} bytes")
        return int(length)

    def _read_data(self, length: int) -> bytes:
        data = self._pop(length + TAG_BYTES)
        self._check(True, data[:length], data[length:])
        return data[:length]

    def _pop(self, size: int) -> bytes:
        data = bytes(self._came[:size])
        del self._came[:size]
        return data

    def _check(self, is_data: bool, content: bytes, tag: bytes) -> None:
        if not hmac.compare_digest(tag_of(self._key, _PLACE.pack(self._number, is_data), content), tag):
            raise FrameAltered(f"frame {self._number}")
