"""Files below /sys, /proc and /etc, read from `grep -H` lines, `cat` of named files, and links of `ls -l`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from prober.asking.recording import LINK_LAYER_ENDS, Recorded

GREP_LINE = re.compile(
    r"^(/(?:sys|proc|etc|root|home)/[^:]*?(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7][^:]*)?):(.*)$"
)
_WHOLE_VALUE_ENDS = (")", "ACTIVE", "DOWN", "LinkUp", "Polling", "Disabled", *LINK_LAYER_ENDS)


@dataclass
class Tree:
    """The part of a host's file tree that outputs show. `listed` holds the entries of listed folders."""

    values: dict[str, list[str]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def value(self, path: str) -> str | None:
        """Return the first line of a file, or None if it was not read."""
        lines = self.values.get(path)
        return lines[0].strip() if lines else None

    def matching(self, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
        """Yield matches of `pattern` with whole paths, and the first line of each file."""
        compiled = re.compile(pattern)
        for path, lines in self.values.items():
            match = compiled.fullmatch(path)
            if match:
                yield match, lines[0].strip()


def read_tree(outputs: Iterable[Recorded]) -> Tree:
    """Return all files and links in the outputs of grep, cat and ls."""
    tree = Tree()
    for output in outputs:
        if output.tool in ("head", "tail") and "==> /" in output.text:
            _read_headed(tree, output)
        elif output.tool in ("grep", "find", "tail"):
            _read_grep(tree, output)
        elif output.tool in ("cat", "head"):
            _read_cat(tree, output)
        elif output.tool == "ls":
            _read_ls(tree, output)
    return tree


def _read_grep(tree: Tree, output: Recorded) -> None:
    found: dict[str, list[str]] = {}
    for line in output.lines_ending(*_WHOLE_VALUE_ENDS):
        match = GREP_LINE.match(line)
        if match and not match.group(2).startswith(" No such file"):
            found.setdefault(match.group(1), []).append(match.group(2))
    tree.values.update(found)


def _read_headed(tree: Tree, output: Recorded) -> None:
    """Read `head` and `tail` of several files, with a line `==> /sys/... <==` above each."""
    lines: list[str] = []
    for line in output.whole_lines:
        if match := re.match(r"==> (/.+) <==$", line):
            lines = tree.values.setdefault(match.group(1), [])
        elif line:
            lines.append(line)
    tree.values = {path: lines for path, lines in tree.values.items() if lines}


def _read_cat(tree: Tree, output: Recorded) -> None:
    """Read `cat`. One named file has all lines. Several have one line each if there are as many lines."""
    if output.exit_code not in (0, None):
        return
    paths = [path for word in output.words[1:] if word.startswith("/") and "*" not in word for path in _braced(word)]
    lines = output.plain.rstrip("\n").split("\n")
    if len(paths) == 1 and lines != [""]:
        tree.values[paths[0]] = lines
    elif len(paths) == len(lines):
        tree.values.update({path: [line] for path, line in zip(paths, lines, strict=True)})


def _braced(word: str) -> list[str]:
    """Return the words that a shell expands `/sys/class/net/eth0/{mtu,speed}` to."""
    match = re.fullmatch(r"([^{}]*)\{([^{}]*,[^{}]*)\}([^{}]*)", word)
    return [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [word]


def _read_ls(tree: Tree, output: Recorded) -> None:
    paths = [word for word in output.words[1:] if word.startswith("/")]
    folder = paths[0] if len(paths) == 1 else ""
    *whole, last = output.lines
    for line in whole if " -> " in last else [*whole, last]:  # a link may be cut inside its target
        if match := re.match(
            r"ls: (?:cannot (?:access|open directory) )?'?(/[^':]+(?::[0-9a-f.:]+)?)'?: No such file", line
        ):
            tree.absent.add(match.group(1).rstrip("/"))
        elif match := re.match(r"(/\S+):$", line):
            folder = match.group(1)
            tree.listed.setdefault(folder.rstrip("/"), [])
        elif match := re.match(r"(?:.*\s)?(\S+) -> (.*)", line):
            path = _below(folder, match.group(1))
            tree.links[path] = _resolved(path, match.group(2).strip())
            _list(tree, path)
        elif line.strip() and " -> " not in line and not line.startswith(("total ", "ls:")):
            _list(tree, _below(folder, line.split()[-1]))


def _below(folder: str, name: str) -> str:
    return name if name.startswith("/") else f"{folder.rstrip('/')}/{name}"


def _list(tree: Tree, path: str) -> None:
    parent, _, name = path.rpartition("/")
    tree.listed.setdefault(parent, []).append(name)


def _resolved(path: str, target: str) -> str:
    """Return the absolute path of a link's target."""
    parts: list[str] = [] if target.startswith("/") else list(PurePosixPath(path).parts[1:-1])
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts = parts[:-1]
        elif part not in ("/", "."):
            parts.append(part)
    return "/" + "/".join(parts)
