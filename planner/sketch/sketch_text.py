"""The text form of a sketch, read into plain values, each with its column.

a: 8 x 8 H100, IB 8x400, Ethernet 1x100; b: 8 x 8 A100-80, RoCE 2x200; a-b: 25 at 20 ms; 10 between
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, NoReturn

MAX_CHARACTERS = 4000  # Python reads numbers of as many digits
FORMS = (
    "`a: 8 x 8 H100, IB 8x400` (a cluster: hosts x GPUs of each, its network as cards x Gbit/s), "
    "`25 between` or `a-b: 25 at 20 ms` (Gbit/s of a host to another cluster)"
)
NUMBER, TIMES = r"[-+]?[0-9]+(?:\.[0-9]+)?", r"[xX×*]"
NAME = r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"  # ends in a letter or digit: else `a1` and `a1-` share host `a1-1`
GBPS = r"\s*G(?:b|bit)?(?:/s|ps)?\b"

Location = tuple[int | str, ...]
"""Keys and indices that lead to a value, in pydantic's form."""


class SketchText(NamedTuple):
    """The keys of a sketch, and the column of each value, from 1."""

    data: dict[str, Any]
    columns: dict[Location, int]

    def where(self, location: Sequence[int | str]) -> str:
        """Return `column 14: ` for a location, or for its nearest parent."""
        for end in range(len(location), 0, -1):
            if tuple(location[:end]) in self.columns:
                return f"column {self.columns[tuple(location[:end])]}: "
        return ""


class MalformedSketch(ValueError):
    """Text that is not a sketch: the column, from 1, and the words expected there."""

    def __init__(self, column: int, expected: str, seen: str) -> None:
        super().__init__(f"column {column}: expected {expected}, not {seen}")


def read_text(text: str) -> SketchText:
    """Read the text of a sketch.

    Raises:
        MalformedSketch: The text is too long or not a sketch.
    """
    if len(text) > MAX_CHARACTERS:
        raise MalformedSketch(
            MAX_CHARACTERS, "the end of the text (a YAML file can be longer)", f"{len(text)} characters"
        )
    return _Reader(text).read()


def read_network(text: str) -> dict[str, Any]:
    """Read only a network, `IB 8x400`.

    Raises:
        MalformedSketch: The text is not a network.
    """
    reader = _Reader(text)
    network = reader.network(())
    reader.expect_end("the end")
    return network


class _Reader:
    """A reader of tokens from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._columns: dict[Location, int] = {}

    def read(self) -> SketchText:
        data: dict[str, Any] = {"clusters": [], "wires": []}
        while True:
            if self._is_next(NUMBER):
                self._between(data)
                ends = r"[;,]"
            else:
                ends = r"[;,]" if self._named(data) else ";"
            if self._taken(ends) is None:
                self.expect_end("`;`")
                break
            if self._is_next("$"):  # also after the last item
                break
        names = {each["name"] for each in data["clusters"]}
        for number, wire in enumerate(data["wires"]):
            wire["between"] = self._ends(wire["between"], names, self._columns["wires", number])
        return SketchText(data, self._columns)

    def _between(self, data: dict[str, Any]) -> None:
        """Read `25 between`, or `25 at 20 ms between`."""
        if "between" in data:
            self._fail("one `between`")
        self._mark((), "between")
        self._mark(("between",), "gbps")
        data["between"] = {"gbps": self._number("Gbit/s")} | self._latency(("between",))
        self._take("between", "`between` after a rate")

    def _named(self, data: dict[str, Any]) -> bool:
        """Read a cluster, or the wire between two; return True for a wire."""
        start, name = self._next_column(), self._take(NAME, "a cluster's name, of letters from a to z, or a rate")
        self._take(":", f"`:` after {name!r}")
        column, first = self._next_column(), self._number("the number of hosts, or Gbit/s between two clusters")
        if self._taken(TIMES) is None:
            at: Location = ("wires", len(data["wires"]))
            self._columns |= {at: start, (*at, "gbps"): column}
            data["wires"].append({"between": name, "gbps": first} | self._latency(at))
            return True
        at = ("clusters", len(data["clusters"]))
        self._columns |= {at: start, (*at, "name"): start, (*at, "hosts"): column}
        data["clusters"].append({"name": name, "hosts": first} | self._cluster(at))
        return False

    def _cluster(self, at: Location) -> dict[str, Any]:
        """Read the rest of a cluster, after the number of hosts: `8 H100, IB 8x400, Ethernet 1x100`."""
        self._mark(at, "gpus_per_host")
        cluster: dict[str, Any] = {"gpus_per_host": self._number("the number of GPUs of a host")}
        self._mark(at, "gpu")
        cluster["gpu"] = self._take(r"[^,;]*[^,;\s]", "a GPU's name, such as H100")
        self._take(",", "`,` and the network of the cluster, such as `IB 8x400`")
        self._mark(at, "fabric")
        cluster["fabric"] = self.network((*at, "fabric"))
        if self._taken(",") is not None:
            self._mark(at, "ethernet")
            cluster["ethernet"] = self._ethernet((*at, "ethernet"))
        return cluster

    def _ends(self, pair: str, names: Collection[str], column: int) -> list[str]:
        """Return both clusters of `a-b`. Names may contain dashes, so every dash is tried as the separator."""
        cuts = [[pair[:at], pair[at + 1 :]] for at, sign in enumerate(pair) if sign == "-"]
        found = [cut for cut in cuts if set(cut) <= set(names)] or cuts
        if len(found) != 1:
            raise MalformedSketch(
                column, f"two of the clusters {', '.join(sorted(names))} with a dash between", f"`{pair}`"
            )
        return found[0]

    def _ethernet(self, at: Location) -> dict[str, Any]:
        """Read the network to everywhere, whose kind is always the same."""
        column = self._next_column()
        network = self.network(at)
        if network.pop("kind").lower() != "ethernet":
            self._at = column - 1
            self._fail("`Ethernet`, the network to everywhere; a new cluster begins after `;`")
        return network

    def network(self, at: Location) -> dict[str, Any]:
        """Read `IB 8x400`, or with ports of each card `IB 8x2x200`."""
        self._mark(at, "kind")
        network: dict[str, Any] = {"kind": self._take(r"[A-Za-z][A-Za-z-]*", "a network, such as `IB 8x400`")}
        columns, numbers = [self._next_column()], [self._number("the number of cards of a host")]
        while len(numbers) < 3 and self._taken(TIMES) is not None:
            columns.append(self._next_column())
            numbers.append(self._number("Gbit/s of a card's port"))
        names = [["gbps"], ["cards", "gbps"], ["cards", "ports_per_card", "gbps"]][len(numbers) - 1]
        self._columns |= {(*at, name): column for name, column in zip(names, columns, strict=True)}
        self._taken(GBPS)
        return network | dict(zip(names, numbers, strict=True))

    def _latency(self, at: Location) -> dict[str, Any]:
        """Read ` at 20 ms`, if it follows."""
        self._taken(GBPS)
        if self._taken(r"at\b") is None:
            return {}
        self._mark(at, "latency_ms")
        latency = self._number("milliseconds one way")
        self._take(r"ms\b", "`ms`")
        return {"latency_ms": latency}

    def _number(self, expected: str) -> int | float:
        text = self._take(NUMBER, expected)
        return float(text) if "." in text else int(text)

    def expect_end(self, expected: str) -> None:
        if not self._is_next("$"):
            self._fail(expected)

    def _take(self, pattern: str, expected: str) -> str:
        found = self._taken(pattern)
        return found if found is not None else self._fail(expected)

    def _taken(self, pattern: str) -> str | None:
        found = re.compile(rf"\s*({pattern})").match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[1]

    def _is_next(self, pattern: str) -> bool:
        return re.compile(rf"\s*(?:{pattern})").match(self._text, self._at) is not None

    def _mark(self, at: Location, key: str) -> None:
        """Record that the value of a key is next."""
        location: Location = (*at, key)
        self._columns[location] = self._next_column()

    def _next_column(self) -> int:
        return len(self._text) - len(self._text[self._at :].lstrip()) + 1

    def _fail(self, expected: str) -> NoReturn:
        column = self._next_column()
        rest = self._text[column - 1 :].split()
        raise MalformedSketch(column, expected, f"`{rest[0][:20]}`" if rest else "the end of the text")
