"""Mutual proof of a secret over a connection, without sending the secret.

The connecting side begins, so a stranger that connects receives nothing. Each proof is an HMAC-SHA256 over the nonces
of both sides, so an overheard proof is useless on another connection. The nonces also make the keys of the frames that
follow.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time

from holmes_runtime.node.admission.keyed_frames import FrameKeys

NONCE_BYTES = 32
DIGEST_BYTES = 32


class NotProven(Exception):
    """The other side does not know the secret, has closed the connection, or took too long."""


def prove(peer: socket.socket, secret: bytes, limit_s: float) -> FrameKeys:
    """Prove the secret from the connecting side, and check the proof of the other side. Raises NotProven."""
    deadline = time.monotonic() + limit_s
    try:
        mine = os.urandom(NONCE_BYTES)
        peer.sendall(mine + _digest(secret, b"asks", mine))
        answer = _read(peer, NONCE_BYTES + DIGEST_BYTES, deadline)
        both = mine + answer[:NONCE_BYTES]
        _check(answer[NONCE_BYTES:], _digest(secret, b"answers", both))
        peer.sendall(_digest(secret, b"agrees", both))
        return FrameKeys(_digest(secret, b"from who asked", both), _digest(secret, b"from who answered", both))
    except OSError as error:
        raise NotProven(str(error)) from error


def demand_proof(peer: socket.socket, secret: bytes, limit_s: float) -> FrameKeys:
    """Check the connecting side's proof, sending nothing before that, then prove the secret too. Raises NotProven."""
    deadline = time.monotonic() + limit_s
    try:
        question = _read(peer, NONCE_BYTES + DIGEST_BYTES, deadline)
        theirs = question[:NONCE_BYTES]
        _check(question[NONCE_BYTES:], _digest(secret, b"asks", theirs))
        mine = os.urandom(NONCE_BYTES)
        both = theirs + mine
        peer.sendall(mine + _digest(secret, b"answers", both))
        _check(_read(peer, DIGEST_BYTES, deadline), _digest(secret, b"agrees", both))
        return FrameKeys(_digest(secret, b"from who answered", both), _digest(secret, b"from who asked", both))
    except OSError as error:
        raise NotProven(str(error)) from error


def _digest(secret: bytes, step: bytes, drawn: bytes) -> bytes:
    return hmac.digest(secret, step + b":" + drawn, hashlib.sha256)


def _check(given: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(given, expected):
        raise NotProven("its proof is wrong")


def _read(peer: socket.socket, size: int, deadline: float) -> bytes:
    """Read exactly `size` bytes. Raises OSError if they do not arrive in time."""
    data = b""
    while len(data) < size:
        peer.settimeout(max(deadline - time.monotonic(), 0.001))
        part = peer.recv(size - len(data))
        if not part:
            raise NotProven("it has closed the connection")
        data += part
    return data
