"""Parse the one-line text form of a sketch into plain values, and record each value's column.

Example: a: 8 x 8 H100, IB 8x400, Ethernet 1x100; b: 8 x 8 A100-80, RoCE 2x200; a-b: 25 at 20 ms; 10 between
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, NoReturn

MAX_CHARACTERS = 4000  # below the 4300 digits that int() accepts, so that every number in the text can be read
FORMS = (
    "`a: 8 x 8 H100, IB 8x400` (a cluster: hosts x GPUs per host, its network as cards x Gbit/s), "
    "`25 between` or `a-b: 25 at 20 ms` (Gbit/s from one host to another cluster)"
)
NUMBER, TIMES = r"[-+]?[0-9]+(?:\.[0-9]+)?", r"[xX×*]"
NAME = r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"  # no dash at the end, or `a1` and `a1-` would share a host `a1-1`
GBPS = r"\s*G(?:b|bit)?(?:/s|ps)?\b"

Location = tuple[int | str, ...]
"""The keys and indices that lead to a value, like the `loc` of a pydantic error."""


class SketchText(NamedTuple):
    """The values of a sketch by key, and the 1-based column of each value."""

    data: dict[str, Any]
    columns: dict[Location, int]

    def where(self, location: Sequence[int | str]) -> str:
        """Return a prefix such as `column 14: ` for a location or its nearest known parent; empty if none is known."""
        for end in range(len(location), 0, -1):
            if tuple(location[:end]) in self.columns:
                return f"column {self.columns[tuple(location[:end])]}: "
        return ""


class MalformedSketch(ValueError):
    """The text is not a sketch. The message gives the 1-based column of the fault."""

    def __init__(self, column: int, fault: str) -> None:
        super().__init__(f"column {column}: {fault}")


def read_text(text: str) -> SketchText:
    """Read the text of a sketch.

    Raises:
        MalformedSketch: The text is too long or not a sketch.
    """
    if len(text) > MAX_CHARACTERS:
        fault = f"the text has {len(text)} characters, more than {MAX_CHARACTERS}: use a YAML file for a larger sketch"
        raise MalformedSketch(MAX_CHARACTERS, fault)
    return _Reader(text).read()


def read_network(text: str) -> dict[str, Any]:
    """Read a text that is only a network, such as `IB 8x400`.

    Raises:
        MalformedSketch: The text is not a network.
    """
    reader = _Reader(text)
    network = reader.network(())
    reader.expect_end("the end")
    return network


class _Reader:
    """A recursive-descent parser with one cursor into the text."""

    def __init__(self, text: str) -> None:
        self._text, self._pos = text, 0
        self._columns: dict[Location, int] = {}

    def read(self) -> SketchText:
        data: dict[str, Any] = {"clusters": [], "wires": []}
        while True:
            if self._is_next(NUMBER):
                self._between(data)
                separator = r"[;,]"
            else:
                separator = r"[;,]" if self._named(data) else ";"
            if self._accept(separator) is None:
                self.expect_end("`;`")
                break
            if self._is_next("$"):  # a trailing separator is allowed
                break
        names = {cluster["name"] for cluster in data["clusters"]}
        for index, wire in enumerate(data["wires"]):
            wire["between"] = self._split_pair(wire["between"], names, self._columns["wires", index])
        return SketchText(data, self._columns)

    def _between(self, data: dict[str, Any]) -> None:
        """Read `25 between`, or `25 at 20 ms between`."""
        if "between" in data:
            raise MalformedSketch(self._next_column(), "only one `between` is allowed; name a pair, as in `a-b: 25`")
        self._mark((), "between")
        self._mark(("between",), "gbps")
        data["between"] = {"gbps": self._number("Gbit/s")} | self._latency(("between",))
        self._expect("between", "`between` after the rate")

    def _named(self, data: dict[str, Any]) -> bool:
        """Read a cluster, or the wire between two; return True for a wire."""
        start = self._next_column()
        name = self._expect(NAME, "a cluster's name (letters from a to z, digits, `.`, `_` and `-`) or a rate")
        self._expect(":", f"`:` after {name!r}")
        column, first = self._next_column(), self._number("the number of hosts, or Gbit/s between two clusters")
        if self._accept(TIMES) is None:
            location: Location = ("wires", len(data["wires"]))
            self._columns |= {location: start, (*location, "gbps"): column}
            data["wires"].append({"between": name, "gbps": first} | self._latency(location))
            return True
        location = ("clusters", len(data["clusters"]))
        self._columns |= {location: start, (*location, "name"): start, (*location, "hosts"): column}
        data["clusters"].append({"name": name, "hosts": first} | self._cluster(location))
        return False

    def _cluster(self, location: Location) -> dict[str, Any]:
        """Read the rest of a cluster, after the number of hosts: `8 H100, IB 8x400, Ethernet 1x100`."""
        self._mark(location, "gpus_per_host")
        cluster: dict[str, Any] = {"gpus_per_host": self._number("the number of GPUs per host")}
        self._mark(location, "gpu")
        cluster["gpu"] = self._expect(r"[^,;]*[^,;\s]", "a GPU's name, such as H100")
        self._expect(",", "`,` followed by the cluster's network, such as `IB 8x400`")
        self._mark(location, "fabric")
        cluster["fabric"] = self.network((*location, "fabric"))
        if self._accept(",") is not None:
            self._mark(location, "ethernet")
            cluster["ethernet"] = self._ethernet((*location, "ethernet"))
        return cluster

    def _split_pair(self, pair: str, names: Collection[str], column: int) -> list[str]:
        """Return both clusters of `a-b`. Names may contain dashes, so every dash is tried as the separator."""
        splits = [[pair[:index], pair[index + 1 :]] for index, letter in enumerate(pair) if letter == "-"]
        known = [split for split in splits if set(split) <= set(names)] or splits
        if len(known) != 1:
            clusters = f"two of the clusters {', '.join(sorted(names))}" if names else "two clusters"
            raise MalformedSketch(column, f"expected {clusters} joined by a dash, not `{pair}`")
        return known[0]

    def _ethernet(self, location: Location) -> dict[str, Any]:
        """Read the general-purpose network, which connects to everything. Its kind must be `Ethernet`, so drop that."""
        column = self._next_column()
        network = self.network(location)
        if (kind := network.pop("kind")).lower() != "ethernet":
            fault = f"a cluster's second network must be `Ethernet`, not `{kind[:20]}`; a new cluster begins after `;`"
            raise MalformedSketch(column, fault)
        return network

    def network(self, location: Location) -> dict[str, Any]:
        """Read `IB 8x400`, `IB 8x2x200` with two ports per card, or `IB 400` with one card per host."""
        self._mark(location, "kind")
        network: dict[str, Any] = {"kind": self._expect(r"[A-Za-z][A-Za-z-]*", "a network, such as `IB 8x400`")}
        columns, numbers = [self._next_column()], [self._number("network cards per host, or Gbit/s")]
        while len(numbers) < 3 and self._accept(TIMES) is not None:
            columns.append(self._next_column())
            expected = "Gbit/s per port" if len(numbers) == 2 else "ports per card, or Gbit/s per port"
            numbers.append(self._number(expected))
        names = [["gbps"], ["cards", "gbps"], ["cards", "ports_per_card", "gbps"]][len(numbers) - 1]
        self._columns |= {(*location, name): column for name, column in zip(names, columns, strict=True)}
        self._accept(GBPS)
        return network | dict(zip(names, numbers, strict=True))

    def _latency(self, location: Location) -> dict[str, Any]:
        """Read the rest of a rate: an optional unit, such as `Gbit/s`, and an optional latency, such as `at 20 ms`."""
        self._accept(GBPS)
        if self._accept(r"at\b") is None:
            return {}
        self._mark(location, "latency_ms")
        latency = self._number("the one-way latency in milliseconds")
        self._expect(r"ms\b", "`ms`")
        return {"latency_ms": latency}

    def _number(self, expected: str) -> int | float:
        text = self._expect(NUMBER, expected)
        return float(text) if "." in text else int(text)

    def expect_end(self, expected: str) -> None:
        if not self._is_next("$"):
            self._fail(expected)

    def _expect(self, pattern: str, expected: str) -> str:
        token = self._accept(pattern)
        return token if token is not None else self._fail(expected)

    def _accept(self, pattern: str) -> str | None:
        match = re.compile(rf"\s*({pattern})").match(self._text, self._pos)
        if match is None:
            return None
        self._pos = match.end()
        return match[1]

    def _is_next(self, pattern: str) -> bool:
        return re.compile(rf"\s*(?:{pattern})").match(self._text, self._pos) is not None

    def _mark(self, location: Location, key: str) -> None:
        """Record the column at the cursor as that of the key's value."""
        self._columns |= {(*location, key): self._next_column()}

    def _next_column(self) -> int:
        return len(self._text) - len(self._text[self._pos :].lstrip()) + 1

    def _fail(self, expected: str) -> NoReturn:
        column = self._next_column()
        rest = self._text[column - 1 :].split()
        seen = f"`{rest[0][:20]}`" if rest else "the end of the text"
        raise MalformedSketch(column, f"expected {expected}, not {seen}")
