"""Every command and every option says what it is for, and listing the commands needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from holmes_cli.app import COMMANDS, HIDDEN, PACKAGES, make_app

SHOWN = sorted(set(COMMANDS) - HIDDEN)
RUN_COMMANDS = {"launch", "ps", "status", "logs", "attach", "stop", "trust"}


def parameters(name: str) -> list[Any]:
    """The arguments and options of a command, without `--help`."""
    group = typer.main.get_command(make_app(name))
    assert isinstance(group, TyperGroup)
    return [parameter for parameter in group.commands[name].params if parameter.name != "help"]


def test_commands_of_a_run_are_there() -> None:
    assert set(SHOWN) >= RUN_COMMANDS | {"probe", "plan"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_says_what_it_does_in_one_sentence(name: str) -> None:
    assert COMMANDS[name][:1].isupper()
    assert COMMANDS[name].endswith(".")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_is_listed_with_the_docstring_of_its_function(name: str) -> None:
    package = PACKAGES.get(name, "holmes_cli.commands")
    function = getattr(import_module(f"{package}.{name}_command"), f"{name}_command")
    assert function.__doc__ == COMMANDS[name]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_and_argument_says_what_it_is(name: str) -> None:
    for parameter in parameters(name):
        text = str(getattr(parameter, "help", "") or "")
        assert text.rstrip().endswith("."), f"{name} {parameter.name}: {text!r}"


def test_launch_names_every_choice_of_on_loss() -> None:
    (option,) = [parameter for parameter in parameters("launch") if parameter.name == "on_loss"]
    assert all(word in str(getattr(option, "help", "")) for word in ("replan", "wait", "stop"))
