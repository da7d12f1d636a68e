"""Outputs with the names, addresses, identifiers and paths of a site replaced. Facts about machines are kept."""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Callable, Iterable

from prober.asking.anonymous_addresses import AnonymousAddresses
from prober.asking.command_words import PROMPT
from prober.asking.sysfs_tree import GREP_LINE

_SYSTEM = (
    "sys|proc|dev|etc|usr|opt|lib|lib64|bin|sbin|var|run|boot|kubepods|docker|libpod|lxc|slurm|[a-z]+\\.(?:slice|scope)"
)
_HEX = "[0-9A-Fa-f]"
_LENGTH = r"(?:/[0-9]{1,3})?"
_PATTERNS = {
    "uuid": rf"(?<!{_HEX})(?<!{_HEX}-){_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}(?!{_HEX})",
    "groups": rf"(?<![\w:.-])(?:{_HEX}{{0,4}}:){{2,19}}{_HEX}{{0,4}}{_LENGTH}(?![\w:]|\.[0-9])",
    "dashes": rf"(?<![\w-]){_HEX}{{2}}(?:-{_HEX}{{2}}){{5,7}}(?![\w-])",
    "guid": rf"\b0x{_HEX}{{13,16}}\b",
    "enx": r"\benx[0-9a-f]{12}\b",
    # After a `-`, as in ranges and versions, only private addresses.
    "ipv4": r"(?<![\w.])(?:(?<!-)|(?=10\.|172\.|192\.168\.))[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
    rf"{_LENGTH}(?!\w|\.[0-9])",
    "id": rf"(?<!\w)(?:{_HEX}{{32,}}|[0-9a-f]{{16}}|[0-9a-f]{{12}})(?!\w)",
    "path": rf"(?<![\w/.~@-])(?:\.\.\.|~?/(?!(?:{_SYSTEM})\b)[A-Za-z_])[\w.+@-]*(?:/[\w.+@~-]*)+|"
    rf"(?<![\w/.~@-])/(?!(?:{_SYSTEM})\b)[A-Za-z_][\w.+@-]+",
}
_PATTERN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()), re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][\w-]*(?:\.[\w-]+)*", re.ASCII)
_KEPT_NAMES = re.compile(r"\.?nccl\.conf|python[0-9.]*|.+\.so(?:\.[0-9.]+)?")  # files that the probe looks for
_SERIAL = re.compile(r"\bserial[ _]?(?:number|no\.?)?[\"']?\s*[:=]\s*[\"']?([\w.-]+)", re.IGNORECASE)
_TYPED = re.compile(
    rf"^(?=(?:{PROMPT})[ \t]*[#$])[ \t]*\[?(?P<user>[\w.+-]+)@(?P<host>[\w.-]+)", re.MULTILINE | re.ASCII
)
_HOME = re.compile(r"/(?:home|Users)/([\w.+-]+)")
_USUAL_WORDS = frozenset(
    (
        *("root", "host", "hosts", "node", "local", "localhost", "linux", "gpu", "cpu"),
        *("link", "net", "eth", "data", "test", "nvidia", "tesla", "geforce", "mellanox"),
        *("mlx5", "infiniband", "ethernet", "rdma", "inet", "state", "rate", "port", "active"),
        *("a10", "a100", "h100", "h200", "h800", "b200", "b300", "gb200", "l40s"),
        *("v100",),
    )
)
MAX_ROW = 1 << 16  # characters
MIN_SERIAL, MIN_NAME = 5, 3  # characters; shorter texts occur inside other words


class AnonymousText:
    """The replacements in one recording. `learn` all of its texts before calling `text` for any."""

    def __init__(self, key: bytes) -> None:
        self._addresses = AnonymousAddresses(key)
        self._names: dict[str, str] = {}
        self._owners: dict[str, str] = {}  # the whole names of first labels
        self._identifiers: set[str] = set()  # GUIDs and MAC addresses as digits, for outputs that print them bare
        self._serials: dict[str, str] = {}
        self._paths: dict[str, str] = {}

    def name(self, name: str, kind: str) -> str:
        """Return the replacement for a name of that kind. The first label alone gets the same replacement."""
        label = name if _is_address(name) else name.partition(".")[0]
        owner = self._owners.setdefault(label, name)
        if name not in self._names and label in self._names and owner in (name, label):
            self._names[name], self._owners[label] = self._names[label], name
        elif name not in self._names and not (name == label and label in self._names):
            new = f"{kind}-{sum(each.startswith(kind) for each in set(self._names.values())) + 1:04}"
            self._names[name] = new
            self._names.setdefault(label, new)
        return self._names[name]

    def alias(self, alias: str, name: str) -> None:
        """Replace `alias` as `name` is replaced."""
        self._names.setdefault(alias, self._names[name])

    def learn(self, text: str) -> None:
        """Remember the names, serial numbers and identifiers that the text shows as such."""
        for match in _TYPED.finditer(text):
            self.name(match["user"], "user")
            self.name(match["host"], "host")
        for user in _HOME.findall(text):
            self.name(user, "user")
        for serial in (*_SERIAL.findall(text), *_serials_of_table(text)):
            if len(serial) >= MIN_SERIAL and re.search("[0-9]", serial):
                self._serials.setdefault(serial, f"serial{len(self._serials) + 1:04}")
        for found in re.findall(rf"{_PATTERNS['guid']}|{_PATTERNS['groups']}", text):
            self._identifiers.add(re.sub("0x|:", "", found).casefold())

    def text(self, text: str) -> str:
        """Return the text with all names, addresses, identifiers and paths replaced."""
        text = _TYPED.sub(lambda match: self.names_alone(match.group()), text)
        text = _WORD.sub(lambda match: self._word(match.group()), text)
        return "".join(map(self._line, text.splitlines(keepends=True)))

    def names_alone(self, text: str) -> str:
        """Return the text with every known name replaced, even names that are common words in other outputs."""
        return re.sub(r"[\w.-]+", lambda word: self._names.get(word.group(), word.group()), text)

    def _word(self, word: str) -> str:
        """Replace a serial number or a name. A name may be followed by its domain or the name of an interface."""
        if word in self._serials:
            return self._serials[word]
        for end in (len(word), *reversed([match.start() for match in re.finditer("[-_.]", word)])):
            if (new := self._names.get(word[:end])) is not None and _is_distinct(word[:end]):
                return new if re.match(r"\.[A-Za-z]", word[end:]) else new + word[end:]
        return word

    def _line(self, line: str) -> str:
        match = GREP_LINE.match(line.rstrip("\r\n"))
        if match is None:
            return _PATTERN.sub(self._replaced, line)
        path, value = (_PATTERN.sub(self._replaced, part) for part in match.groups())
        return f"{path}:{value}{line[match.end() :]}"

    def _replaced(self, match: re.Match[str]) -> str:
        by_kind: dict[str, Callable[[str], str]] = {
            "uuid": self._addresses.digits,
            "groups": self._of_groups,
            "dashes": lambda text: self._of_pairs(text, "-"),
            "guid": lambda text: self._of_guid(text[2:], "0x"),
            "enx": lambda text: f"enx{self._addresses.mac(int(text[3:], 16)):012x}",
            "ipv4": self._of_ipv4,
            "id": self._of_id,
            "path": self._of_path,
        }
        assert match.lastgroup is not None
        return by_kind[match.lastgroup](match.group())

    def _of_guid(self, digits: str, before: str = "") -> str:
        return f"{before}{self._addresses.guid(int(digits, 16)):0{len(digits)}x}"

    def _of_id(self, text: str) -> str:
        if len(text) >= 32:
            return self._addresses.digits(text)
        if text not in self._identifiers:
            return text
        return self._of_guid(text) if len(text) == 16 else f"{self._addresses.mac(int(text, 16)):012x}"

    def _of_groups(self, text: str) -> str:
        """Replace a MAC address, a GUID, an IPv6 address or the address of an IPoIB interface, but no time of day."""
        groups = text.split(":")
        if all(len(group) == 2 for group in groups):
            return self._of_pairs(text, ":")
        damaged = "" in groups and groups[0][:1].casefold() not in ("2", "3", "f")  # a pasted GUID, not IPv6
        if [len(group) for group in groups if group] == [4, 4, 4, 4] and (len(groups) == 4 or damaged):
            if groups[0][:3].casefold() in ("fe8", "fec"):  # a subnet prefix
                return text
            digits = iter(self._of_guid("".join(groups)))
            return "".join(next(digits) if letter != ":" else letter for letter in text)
        address, _, length = text.partition("/")
        try:
            value = ipaddress.IPv6Address(address)
        except ValueError:
            return text
        new = _in_network(self._addresses.ipv6(int(value)), int(value), length, 128)
        if new is None:
            return text
        shown = ipaddress.IPv6Address(new)
        as_text = shown.exploded if address.casefold() == value.exploded else shown.compressed
        return f"{as_text}/{length}" if length else as_text

    def _of_pairs(self, text: str, mark: str) -> str:
        pairs = text.split(mark)
        digits = "".join(pairs)
        if len(pairs) == 6:
            new = f"{self._addresses.mac(int(digits, 16)):012x}"
        elif len(pairs) in (8, 20):
            new = digits[:-16] + self._of_guid(digits[-16:])
        else:
            return text
        return mark.join(new[at : at + 2] for at in range(0, len(new), 2))

    def _of_ipv4(self, text: str) -> str:
        address, _, length = text.partition("/")
        try:
            value = int(ipaddress.IPv4Address(address))
        except ValueError:
            return text
        new = _in_network(self._addresses.ipv4(value), value, length, 32)
        if new is None:
            return text
        return f"{ipaddress.IPv4Address(new)}/{length}" if length else str(ipaddress.IPv4Address(new))

    def _of_path(self, text: str) -> str:
        folder, _, file = text.rpartition("/")
        whole = folder if _KEPT_NAMES.fullmatch(file) else text
        new = self._paths.setdefault(whole, f"/home/path-{len(self._paths) + 1:04}")
        return f"{new}/{file}" if whole != text else new


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_distinct(name: str) -> bool:
    """Return True unless the name is a common word in outputs, or an address, which has its own pattern."""
    if _is_address(name) or name.casefold() in _USUAL_WORDS or not any(letter.isalpha() for letter in name):
        return False
    return len(name) >= MIN_NAME or bool(re.fullmatch("[a-uwyz][0-9]", name))  # x8 is a width, v2 a version


def _in_network(new: int, old: int, length: str, width: int) -> int | None:
    """Return the replacement of an address with a prefix length, or None for an impossible length.

    The address of a network stays one: its host bits are 0.
    """
    if not length:
        return new
    host_bits = width - int(length)
    if host_bits < 0:
        return None
    return new if old & (1 << host_bits) - 1 else new >> host_bits << host_bits


def _serials_of_table(text: str) -> Iterable[str]:
    """Yield the serial numbers in comma-separated answers of nvidia-smi."""
    heading: list[str] = []
    for line in text.splitlines():
        if "," not in line:
            continue
        cells = [cell.strip() for cell in next(csv.reader([line[:MAX_ROW]], skipinitialspace=True))]
        if any("serial" in cell for cell in cells):
            heading = cells
        elif heading and len(cells) == len(heading):
            yield from (cell for name, cell in zip(heading, cells, strict=True) if "serial" in name)
