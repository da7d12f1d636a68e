"""Addresses, GUIDs and identifiers replaced by others of the same kind, the same ones by the same.

IP addresses that share a prefix of n bits share one of n bits afterwards, so networks stay networks (Xu, Fan, Ammar and
Moon, 2002). MAC addresses and GUIDs keep their maker's part and their last byte, so a GID that is made of a MAC address
is made of its replacement.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import blake2b

_KEPT_BITS = (  # the first bits of these networks give an address its purpose; of others none stay
    *(("10.0.0.0/8", 8), ("172.16.0.0/12", 12), ("192.168.0.0/16", 16), ("100.64.0.0/10", 10)),
    *((f"{network}", 32) for network in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "224.0.0.0/3")),
)
_KEPT = tuple((ipaddress.IPv4Network(network), bits) for network, bits in _KEPT_BITS)
_LOCAL_BIT = 0x020000  # of a maker's number: an EUI-64 has it flipped
_TAIL = 0xFFFFFF
MAX_CACHED = 65536


def _kept_bits(address: int) -> int:
    return next((bits for network, bits in _KEPT if ipaddress.IPv4Address(address) in network), 0)


class AnonymousAddresses:
    """The replacements under one key. Without the key they cannot be undone."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._tails: dict[tuple[int, int], int] = {}
        self._taken: set[tuple[int, int]] = set()
        self.ipv4 = lru_cache(MAX_CACHED)(self._ipv4)
        self.ipv6 = lru_cache(MAX_CACHED)(self._ipv6)

    def digits(self, text: str) -> str:
        """Return the identifier with other hexadecimal digits; zeros alone stay."""
        if not text.strip("0-_"):
            return text
        drawn = iter(self._digest(text.casefold(), 64).hex() * (len(text) // 128 + 1))
        return "".join(next(drawn) if letter.isalnum() else letter for letter in text)

    def mac(self, value: int) -> int:
        """Return the replacement of 48 bits."""
        maker, tail = value >> 24, value & _TAIL
        return maker << 24 | self._tail(maker, tail)

    def guid(self, value: int) -> int:
        """Return the replacement of 64 bits, the GUID of a card or the interface in an IPv6 address."""
        maker, middle, tail = value >> 40, value >> 24 & 0xFFFF, value & _TAIL
        return value if value < 1 << 24 else maker << 40 | middle << 24 | self._tail(maker, tail)

    def _ipv4(self, value: int) -> int:
        kept = _kept_bits(value)
        if kept:
            return self._flipped(value, 32, kept)
        network = value >> 16
        while True:  # a public network becomes a public one
            network = self._flipped(network, 16, 0)
            if not _kept_bits(network << 16):
                return network << 16 | self._flipped(value, 32, 16) & 0xFFFF

    def _ipv6(self, value: int) -> int:
        high, low = value >> 64, value & (1 << 64) - 1
        if high == 0 and low >> 32 == 0xFFFF:
            return 0xFFFF << 32 | self.ipv4(low & 0xFFFFFFFF)
        if high == 0 or high >> 56 == 0xFF:
            return value
        if high >> 54 not in (0xFE80 >> 6, 0xFEC0 >> 6):
            high = self._flipped(high, 64, 8 if high >> 57 == 0xFC >> 1 else 3)
        return high << 64 | (self.guid(low) if low >> 16 else low)

    def _tail(self, maker: int, tail: int) -> int:
        """Return the replacement of the three bytes that a maker gives; the last byte stays."""
        maker, upper = maker & ~_LOCAL_BIT, tail >> 8
        if tail == _TAIL or (tail == 0 and maker == 0):
            return tail
        found = self._tails.get((maker, upper))
        count = 0
        while found is None:
            drawn = int.from_bytes(self._digest(f"tail {maker} {upper} {count}", 2), "big")
            count += 1
            if drawn not in (0, upper, 0xFFFF) and (maker, drawn) not in self._taken:
                found = self._tails[maker, upper] = drawn
                self._taken.add((maker, drawn))
        return found << 8 | tail & 0xFF

    def _flipped(self, value: int, width: int, kept: int) -> int:
        """Return the value; the bits before each say if it is flipped. The `kept` ones never are, the next always."""
        result = value >> (width - kept)
        for bit in range(kept, width):
            before = value >> (width - bit)
            flip = bit == kept or self._digest(f"{width} {bit} {before}", 1)[0] & 1
            result = result << 1 | (value >> (width - bit - 1) & 1) ^ int(flip)
        return result

    def _digest(self, text: str, size: int) -> bytes:
        return blake2b(text.encode(), key=self._key, digest_size=size).digest()
