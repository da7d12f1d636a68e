"""Who may import whom: the house of docs/architecture.md, held by reading every import."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("holmes_train", "holmes_cli", "holmes_core", "prober", "planner", "launcher", "holmes_runtime", "templates")
ALLOWED: dict[str, set[str]] = {
    "holmes_train": {
        "holmes_cli.api",
        "holmes_cli.app",
        "holmes_cli.other_command",
        "holmes_core",
        "launcher.journal",
        "launcher.nodes.preflight",
    },
    "holmes_core": {"holmes_core", "holmes_runtime.config"},
    "holmes_runtime": {"holmes_runtime"},
    "templates": set(),
    "prober": {"prober", "holmes_core", "holmes_runtime.config", "holmes_runtime.node.admission"},
    "planner": {"planner", "holmes_core", "holmes_runtime.config"},
    "launcher": {"launcher", "holmes_core", "templates", "holmes_runtime.config"},
    "holmes_cli": {
        *("holmes_cli", "holmes_core", "prober", "planner", "launcher", "templates"),
        *("holmes_runtime.config", "holmes_runtime.node"),
        *("holmes_runtime.export", "holmes_runtime.teacher_logits"),  # of torch, where an export or a teacher is asked
    },
}
ROOMS: dict[str, tuple[str, ...]] = {
    "holmes_core": ("errors", "records", "hosts", "remote", "trainers"),
    "holmes_runtime": (
        "config",
        "node",
        "comm",
        "model",
        "parallel",
        "checkpoint",
        "published",
        "data",
        "health",
        "hook",
        "outer",
        "trainer",
        "train",
    ),
    "prober": (
        "rule_text",
        "asking",
        "facts",
        "rails",
        "fabrics",
        "rules",
        "links",
        "findings",
        "nccl_logs",
        "anonymize",
        "probe",
        "running",
    ),
    "planner": (
        "cost",
        "sketch",
        "problem",
        "search",
        "schedule",
        "layout",
        "make_plan",
        "experts",
        "islands",
        "advice",
    ),
    "launcher": ("prepare", "emit", "journal", "nodes", "supervise", "islands", "launch", "launch_islands"),
    "holmes_cli": (
        *(
            "screen",
            "pages",
            "launchable",
            "replan",
            "own_process",
            "watch_in_background",
            "man_page",
            "gpu_holders",
            "api",
        ),
        *("tuning", "islands", "control_command", "demo", "commands", "app"),
    ),
}
"""Of each package its rooms: folders or modules that import only those before them."""


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    """Every module and name that a file imports."""
    return tuple(_imports(file))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and every statement in it, definitions and imports among them, without walking expressions."""
    yield node
    for blocks in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, blocks, ()):
            yield from statements(below)


def _imports(file: Path) -> Iterator[str]:
    for node in statements(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_allowed(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") or entry.startswith(f"{name}.") for entry in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_the_house_allows(package: str) -> None:
    broken = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for name in imports(file)
        if name.split(".")[0] in (*PACKAGES, "tests", "benchmarks") and not is_allowed(name, ALLOWED[package])
    ]
    assert broken == []


@pytest.mark.parametrize(("package", "room"), [(package, room) for package, rooms in ROOMS.items() for room in rooms])
def test_room_imports_only_the_rooms_before_it(package: str, room: str) -> None:
    rooms = ROOMS[package]
    later = {f"{package}.{each}" for each in rooms[rooms.index(room) + 1 :]}
    place = ROOT / package / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    broken = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if ".".join(name.split(".")[:2]) in later
    ]
    assert files
    assert broken == []


def test_facts_of_one_subject_are_read_without_those_of_another() -> None:
    facts = ROOT / "prober" / "facts"
    broken = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted(facts.rglob("*.py"))
        for name in imports(file)
        if name.startswith("prober.facts.") and name.split(".")[2] != file.parent.name
    ]
    assert broken == []


def test_every_folder_of_a_package_with_rooms_is_one() -> None:
    for package, rooms in ROOMS.items():
        assert {folder.parent.name for folder in (ROOT / package).glob("*/__init__.py")} <= set(rooms)


def test_runtime_imports_torch_and_the_standard_library_only() -> None:
    import sys

    known = {*sys.stdlib_module_names, "torch", "holmes_runtime"}
    files = sorted((ROOT / "holmes_runtime").rglob("*.py"))
    foreign = [f"{file.name}: {name}" for file in files for name in imports(file) if name.split(".")[0] not in known]
    assert foreign == []


@pytest.mark.parametrize("package", ["config", "node"])
def test_packages_of_controller_and_node_agent_import_no_torch(package: str) -> None:
    files = sorted((ROOT / "holmes_runtime" / package).rglob("*.py"))
    assert files
    assert [file.name for file in files for name in imports(file) if name.split(".")[0] == "torch"] == []


def test_only_integer_programs_and_their_solver_import_pulp() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    users = {file.name for file in files for name in imports(file) if name.split(".")[0] == "pulp"}
    assert users == {"program.py", "replica_program.py", "expert_program.py", "solve.py"}


def test_file_names_are_unique_and_none_is_a_catch_all() -> None:
    """`holmes_train` names again what is inside."""
    files = [
        file for package in PACKAGES[1:] for file in (ROOT / package).rglob("*.py") if not file.name.startswith("__")
    ]
    names = sorted(file.name for file in files)
    assert [name for name in names if names.count(name) > 1] == []
    assert not {"utils.py", "common.py", "helpers.py"} & set(names)
