"""A command starts without what it does not need: modules seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parent.parent.parent
SLOW = {"paramiko", "pulp", "highspy", "numpy", "torch", "jinja2", "pydantic", "yaml"}


def imported(statement: str) -> set[str]:
    """Names of the modules that are there after `statement`."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_listing_the_commands_imports_none_of_them() -> None:
    modules = imported("from holmes_cli.app import make_app\nmake_app(None)")
    assert modules & SLOW == set()
    assert [name for name in modules if name.endswith("_command")] == []


def test_the_installed_command_reads_no_packages_metadata_to_start() -> None:
    assert imported("import holmes_train.__main__") & {*SLOW, "importlib.metadata"} == set()


def test_plan_imports_the_solver_but_no_ssh_no_page_and_no_launcher() -> None:
    modules = imported("import holmes_cli.commands.plan_command")
    assert modules & SLOW == {"pulp", "highspy", "numpy", "pydantic", "yaml"}
    assert modules & {"prober", "launcher", "templates"} == set()


def test_the_python_api_imports_no_stage_and_no_terminal_before_it_is_called() -> None:
    modules = imported("import holmes_cli.api")
    assert modules & SLOW == {"pydantic"}
    assert modules & {"prober", "planner", "launcher", "typer", "rich"} == set()


@pytest.mark.parametrize("name", ["ps", "status", "logs", "attach"])
def test_looking_at_a_run_imports_neither_ssh_nor_planner(name: str) -> None:
    modules = imported(f"import holmes_cli.commands.launched.{name}_command")
    assert modules & SLOW == {"pydantic", "yaml"}
    assert modules & {"prober", "planner", "templates"} == set()
