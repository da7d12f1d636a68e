"""Plain data in JSON and YAML files from any writer: bounded in size, in values, in depth, in length of numbers.

YAML's aliases and merge keys count as often as they are expanded, so that a short file stays small when read.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from holmes_core.errors import HolmesError
from holmes_core.records.regular_file import MIB, read_regular

MAX_JSON_BYTES = 64 * MIB
MAX_YAML_BYTES = 2 * MIB  # 20,000 hosts of 100 characters
MAX_VALUES = 300_000
MAX_FOREIGN_VALUES = 4_000_000  # `kubectl get nodes -o json` has some 800 a node
MAX_YAML_MARKS = 150_000  # between its values; 12,500 hosts with addresses have 75,000
MAX_LEVELS = 60
MAX_WHOLE_NUMBER = 2**63
MAX_SHOWN = 60  # characters of a value, in an error
MAX_NUMBER_LENGTH = 64  # characters of a number in YAML: base-60 numbers take time
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_plain(path: Path, make: str = "", inside: Path | None = None) -> object:
    """Read the data in a JSON or YAML file; `make` is added to the hint when the file cannot be read.

    Raises:
        HolmesError: The file is malformed, or leads out of the folder `inside`. It names the file.
    """
    is_json = path.suffix in (".json", ".jsonl")
    text = read_text(path, MAX_JSON_BYTES if is_json else MAX_YAML_BYTES, make, inside)
    return _explained(json_values if is_json else _yaml_values, text, str(path))


def parse_yaml(text: str, source: str) -> object:
    """Parse YAML from `source`, which errors name. Raises HolmesError as `read_plain` does."""
    return _explained(_yaml_values, text, source)


def parse_foreign_json(text: str, source: str, is_line: bool = False) -> object:
    """Parse JSON of another program, with no key twice; `is_line`: `source` names the line. Raises HolmesError."""
    return _explained(lambda text: json_values(text, MAX_FOREIGN_VALUES, _object), text, source, is_line)


def _explained(read: Callable[[str], object], text: str, source: str, is_line: bool = False) -> object:
    """Return `read(text)`. Raises HolmesError naming `source` and the fault."""
    try:
        return read(text)
    except json.JSONDecodeError as error:
        where = "" if is_line else f": line {error.lineno}"
        what = f"{source}{where}, column {error.colno}: not JSON: {error.msg}"
        raise HolmesError(what, "correct that line, or make the file again") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        what = f"{source}: {where}not YAML: {problem}"
        raise HolmesError(what, "correct that line (indentation, colons, quotes)") from None
    except RecursionError:
        raise HolmesError(f"{source}: {_too_deep()}", "make the file again") from None
    except (ValueError, OverflowError) as error:
        raise HolmesError(f"{source}: {error}", "correct that value, or make the file again") from None


def read_text(path: Path, most_bytes: int, make: str = "", inside: Path | None = None) -> str:
    """Read the text of a file. Raises HolmesError as `read_plain` does."""
    try:
        return read_regular(path, most_bytes, inside).decode("utf-8")
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error}"
        raise HolmesError(what, f"check the path and its permissions{make}") from None
    except UnicodeDecodeError as error:
        raise HolmesError(f"{path}: not text: byte {error.start} is not UTF-8", "save the file as UTF-8") from None


def json_values(
    text: str, most: int = MAX_VALUES, make_object: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON. Raises only ValueError (JSONDecodeError), before much memory is spent."""
    if sum(map(text.count, (",", "[", "{"))) > most:
        raise ValueError(_too_many(most))
    try:
        data = json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    _check(data, most)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys. Raises ValueError for a key listed twice: JSON itself would take the last."""
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice[:MAX_SHOWN]!r} is listed twice")
    return data


def _yaml_values(text: str) -> object:
    if sum(map(text.count, (",", "[", "{", "\n", ":", "- ", "? "))) > MAX_YAML_MARKS:
        raise ValueError(f"holds more than {MAX_YAML_MARKS} commas, colons, lines and brackets")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _check(node)
        data = None if node is None else loader.construct_document(node)
        _check(data)
        return data
    finally:
        loader.dispose()


def _check(data: object, most: int = MAX_VALUES) -> None:
    """Raise ValueError where plain data, or its YAML nodes, are too many, too deep or too long."""
    waiting, count = [iter((data,))], 0
    while waiting:
        value = next(waiting[-1], waiting)
        if value is waiting:
            waiting.pop()
            continue
        count += 1
        if count > most:
            raise ValueError(_too_many(most))
        _check_number(value)
        _check_text(value)
        _check_keys(value)
        inside = _inside(value)
        if inside is not None:
            waiting.append(inside)
            if len(waiting) > MAX_LEVELS + 1:
                raise ValueError(_too_deep())


def _inside(value: object) -> Iterator[object] | None:
    """Return the values inside `value`, None where it is no container."""
    if isinstance(value, dict):
        return chain.from_iterable(value.items())
    if isinstance(value, yaml.MappingNode):
        return chain.from_iterable(value.value)
    whole = value.value if isinstance(value, yaml.SequenceNode) else value
    return iter(whole) if isinstance(whole, list | tuple | set) else None


def _check_number(value: object) -> None:
    if isinstance(value, int) and not -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER:
        raise ValueError(f"a whole number of {value.bit_length()} bits; Holmes takes 63")
    if isinstance(value, yaml.ScalarNode) and value.tag in _NUMBERS and len(value.value) > MAX_NUMBER_LENGTH:
        raise ValueError(f"line {value.start_mark.line + 1}: a number of {len(value.value)} characters")


def _check_text(value: object) -> None:
    """Raise ValueError for text with half of a surrogate pair, which no file or digest takes."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"text with half of a surrogate pair: {value[:MAX_SHOWN]!r}") from None


def _check_keys(node: object) -> None:
    """Raise YAMLError where a mapping has a key twice; YAML itself would silently take the last one."""
    keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    seen: set[str] = set()
    for key in keys:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is listed twice", problem_mark=key.start_mark)
            seen.add(key.value)


def _too_many(most: int) -> str:
    return f"holds more than {most} values"


def _too_deep() -> str:
    return f"nested more than {MAX_LEVELS} levels deep"


class YamlLines:
    """Line numbers in a file for `read_plain`. The file is read when first asked, since few files are at fault."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def where(self, location: Sequence[int | str]) -> str:
        """Return `line 9: ` for `location` (keys, indices of lists) or its nearest parent; nothing outside YAML."""
        inner: yaml.Node | None = self._root
        if inner is None:
            return ""
        line = 0
        for part in location:
            line, inner = _step(inner, part, line)
        return f"line {line + 1}: "

    @cached_property
    def _root(self) -> yaml.Node | None:
        if self._path.suffix in (".json", ".jsonl"):
            return None
        with contextlib.suppress(yaml.YAMLError):  # the file may be half written
            return yaml.compose(read_text(self._path, MAX_YAML_BYTES), yaml.SafeLoader)
        return None


def _step(node: yaml.Node | None, part: int | str, line: int) -> tuple[int, yaml.Node | None]:
    """Return the line (from 0) and the node of a part; the line before and None where there is no such part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line, node.value[part]
    return line, None
