"""Every command and every option says what it is for."""

from __future__ import annotations

import pytest
import typer.main
from typer.core import TyperGroup

from holmes_cli.app import app

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, TyperGroup)
COMMANDS = {name: command for name, command in GROUP.commands.items() if not command.hidden}
RUN_COMMANDS = {"launch", "ps", "status", "logs", "attach", "stop", "trust"}


def test_commands_of_a_run_are_there() -> None:
    assert set(COMMANDS) >= RUN_COMMANDS | {"probe", "plan"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_says_what_it_does_in_one_sentence(name: str) -> None:
    text = COMMANDS[name].help or ""
    assert text[:1].isupper()
    assert text.rstrip().endswith(".")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_and_argument_says_what_it_is(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            text = str(getattr(parameter, "help", "") or "")
            assert text.rstrip().endswith("."), f"{name} {parameter.name}: {text!r}"


def test_launch_names_every_choice_of_on_loss() -> None:
    (option,) = [parameter for parameter in COMMANDS["launch"].params if parameter.name == "on_loss"]
    assert all(word in str(getattr(option, "help", "")) for word in ("replan", "wait", "stop"))
