"""Permutations of 0..n-1, computed number by number and never held in memory. Free of torch.

A Feistel network over two digits: each digit in turn is shifted by a hash of the other. This can be undone, so a round
is a permutation whatever the hash. The bases of the digits are about the square root of n. The few results from n on
are fed in again until one is below n, which is again a permutation.
Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, methods 2 (cycle walking) and 3.
"""

from __future__ import annotations

import hashlib
import math

ROUNDS = 4  # of both digits; for large n two suffice (Luby and Rackoff, 1988), but small n have small digits


def permuted(number: int, size: int, key: str) -> int:
    """Return the image of `number`, one of 0..size-1, in the permutation named by `key`. Each key has its own."""
    assert 0 <= number < size, f"{number} is not in 0..{size - 1}"
    high_base = math.isqrt(size - 1) + 1
    low_base = -(-size // high_base)  # high_base * low_base is less than size + high_base
    secret = hashlib.sha256(key.encode()).digest()
    while True:
        high, low = divmod(number, low_base)
        for turn in range(ROUNDS):
            high = (high + _hash(secret, 2 * turn, low)) % high_base
            low = (low + _hash(secret, 2 * turn + 1, high)) % low_base
        number = high * low_base + low
        if number < size:
            return number


def _hash(secret: bytes, turn: int, digit: int) -> int:
    """Return a 64-bit hash of (secret, turn, digit)."""
    message = secret + digit.to_bytes(8, "little") + bytes([turn])
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")
