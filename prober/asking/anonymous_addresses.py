"""Consistent replacements for addresses, GUIDs and identifiers, each of the same kind as the original.

IP addresses with n leading bits in common have n in common afterwards, so networks stay networks (Xu, Fan, Ammar and
Moon, 2002). MAC addresses and GUIDs keep the vendor's part and the last byte, so a GID derived from a MAC address is
derived from its replacement afterwards.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import blake2b

_KEPT_BITS = (  # leading bits of these networks show the purpose of an address; other networks keep none
    *(("10.0.0.0/8", 8), ("172.16.0.0/12", 12), ("192.168.0.0/16", 16), ("100.64.0.0/10", 10)),
    *((f"{network}", 32) for network in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "224.0.0.0/3")),
)
_KEPT = tuple((ipaddress.IPv4Network(network), bits) for network, bits in _KEPT_BITS)
_LOCAL_BIT = 0x020000  # of the vendor's part; an EUI-64 has it flipped
_TAIL = 0xFFFFFF
MAX_CACHED = 65536


def _kept_bits(address: int) -> int:
    return next((bits for network, bits in _KEPT if ipaddress.IPv4Address(address) in network), 0)


class AnonymousAddresses:
    """Replacements under one key. Without the key they cannot be reversed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._tails: dict[tuple[int, int], int] = {}
        self._taken: set[tuple[int, int]] = set()
        self.ipv4 = lru_cache(MAX_CACHED)(self._ipv4)
        self.ipv6 = lru_cache(MAX_CACHED)(self._ipv6)

    def digits(self, text: str) -> str:
        """Return the identifier with other hexadecimal digits. One of zeros alone is kept."""
        if not text.strip("0-_"):
            return text
        drawn = iter(self._digest(text.casefold(), 64).hex() * (len(text) // 128 + 1))
        return "".join(next(drawn) if letter.isalnum() else letter for letter in text)

    def mac(self, value: int) -> int:
        """Return the replacement of a MAC address of 48 bits."""
        vendor, tail = value >> 24, value & _TAIL
        return vendor << 24 | self._tail(vendor, tail)

    def guid(self, value: int) -> int:
        """Return the replacement of a card's GUID, or of the interface part of an IPv6 address, of 64 bits."""
        vendor, middle, tail = value >> 40, value >> 24 & 0xFFFF, value & _TAIL
        return value if value < 1 << 24 else vendor << 40 | middle << 24 | self._tail(vendor, tail)

    def _ipv4(self, value: int) -> int:
        kept = _kept_bits(value)
        if kept:
            return self._flipped(value, 32, kept)
        network = value >> 16
        while True:  # until a public network has become another public one
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

    def _tail(self, vendor: int, tail: int) -> int:
        """Return the replacement of the three bytes that the vendor assigns. The last byte is kept."""
        vendor, upper = vendor & ~_LOCAL_BIT, tail >> 8
        if tail == _TAIL or (tail == 0 and vendor == 0):
            return tail
        found = self._tails.get((vendor, upper))
        count = 0
        while found is None:
            drawn = int.from_bytes(self._digest(f"tail {vendor} {upper} {count}", 2), "big")
            count += 1
            if drawn not in (0, upper, 0xFFFF) and (vendor, drawn) not in self._taken:
                found = self._tails[vendor, upper] = drawn
                self._taken.add((vendor, drawn))
        return found << 8 | tail & 0xFF

    def _flipped(self, value: int, width: int, kept: int) -> int:
        """Return `value` with the first `kept` bits, the next one flipped, and others by a digest of those before."""
        result = value >> (width - kept)
        for bit in range(kept, width):
            before = value >> (width - bit)
            flip = bit == kept or self._digest(f"{width} {bit} {before}", 1)[0] & 1
            result = result << 1 | (value >> (width - bit - 1) & 1) ^ int(flip)
        return result

    def _digest(self, text: str, size: int) -> bytes:
        return blake2b(text.encode(), key=self._key, digest_size=size).digest()
