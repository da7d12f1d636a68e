"""Docstrings and comments in plain English, as the style guide asks; docs/glossary.md has the terms."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import ROOT, statements, tree

PACKAGES = ("holmes_train", "holmes_core", "holmes_runtime", "prober", "planner", "launcher", "holmes_cli")
OLD_BOUND = re.compile(r"\b_?(MOST|LEAST)(_[A-Z0-9]|\b)")
OPENING = re.compile(r"(What|Whether|How|Which|Who|Whose|Whom|Where|Of)\b")
PHRASES = re.compile(
    r"\b(told of|tells|is said|nobody|somebody|besides?|of which|those of|what is|what it|as far as)\b"
    r"|\b(bears?|heed|amiss)\b",
    re.IGNORECASE,
)


@functools.cache
def docstrings(file: Path) -> tuple[tuple[int, str], ...]:
    return tuple(_docstrings(file))


def _docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of the module, its classes and functions, and the texts below constants, with their lines."""
    for node in statements(tree(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield statement.lineno, str(statement.value.value).strip()


def comments(file: Path) -> Iterator[tuple[int, str]]:
    """Comments with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def files(package: str) -> list[Path]:
    """The package's files."""
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_like_a_question(package: str) -> None:
    assert [
        f"{file.relative_to(ROOT)}:{line}: {text[:60]}"
        for file in files(package)
        for line, text in docstrings(file)
        if OPENING.match(text)
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_or_comment_holds_a_phrase_that_reads_as_translated(package: str) -> None:
    assert [
        f"{file.relative_to(ROOT)}:{line}: {found[0]}"
        for file in files(package)
        if PHRASES.search(file.read_text(encoding="utf-8"))  # a file's comments take long to find
        for line, text in (*docstrings(file), *comments(file))
        if (found := PHRASES.search(text))
    ] == []


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = {}
    for file in (path for package in PACKAGES for path in files(package)):
        for node in statements(tree(file)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_bounds_are_named_max_and_min() -> None:
    assert [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in (*PACKAGES, "tests", "benchmarks")
        for file in files(package)
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if OLD_BOUND.search(line)
    ] == []
