"""Keys of job.yaml from a trainer's command, and a row for each of its options, so that none is lost silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.trainers.command_line import PLACED, CommandOption, TrainerCommand, shown

OptionFate = Literal["taken", "decided", "not counted", "kept", "not understood"]
"""taken: read into job.yaml, and left in the command. decided: removed from the command; `parallel` or Holmes fixes it.
All others stay in the command: the plan ignores their effect, or they have none on plans, or they are not known.
"""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)$")  # names of variables with values that go into no file


class OptionRow(NamedTuple):
    """One option, and how it was read."""

    words: str
    fate: OptionFate
    note: str


class OptionRule(NamedTuple):
    """The reading of an option. `arity`: the most words after it that are its values, where it is taken out."""

    fate: OptionFate
    note: str = ""
    arity: int = 1


@dataclass(frozen=True)
class ImportedJob:
    """Keys of job.yaml by section, a row for each option, and the keys of `parallel` that the command itself sets."""

    data: Mapping[str, Any]
    rows: Sequence[OptionRow]
    set_by_command: Sequence[str] = ()


class OptionReader:
    """The options of a command by name, as `spelled` makes names equal; of a repeated one the last counts."""

    def __init__(self, options: Sequence[CommandOption], spelled: Callable[[str], str] = str) -> None:
        self.options = options
        self.spelled = spelled
        self._last = {spelled(each.name): each for each in options}

    def has(self, name: str) -> bool:
        """Return True if the option is given."""
        return name in self._last

    def text(self, *names: str) -> str | None:
        """Return the value of the first of these options that is given, which must have one."""
        found = next((self._last[name] for name in names if name in self._last), None)
        if found is not None and not found.values:
            raise HolmesError(f"command: {found.name} has no value", "add a value after it")
        return None if found is None else found.values[0]

    def values(self, name: str) -> tuple[str, ...]:
        """Return all values of an option, none if it is not given."""
        return self._last[name].values if name in self._last else ()

    def whole(self, *names: str, least: int = 1) -> int | None:
        """Return the value, which must be a whole number of at least `least`."""
        text = self.text(*names)
        if text is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
            name = next(name for name in names if name in self._last)
            raise HolmesError(f"command: {name} {shown(text)}: not a whole number from {least}", "correct it")
        return int(text)

    def refuse(self, refused: Mapping[str, str], harmless: Mapping[str, str], hint: str) -> None:
        """Raise HolmesError for the first of the options `refused`, unless it has its harmless value."""
        for name, reason in refused.items():
            if name in self._last and " ".join(self._last[name].values) != harmless.get(name):
                raise HolmesError(f"command: {shown(' '.join(self._last[name].words))}: {reason}", hint)

    def sorted_by(self, rule: Callable[[str], OptionRule]) -> tuple[tuple[str, ...], list[OptionRow]]:
        """Return the words that stay in the command, and a row for each option. Words of "decided" ones are gone."""
        kept: list[str] = []
        rows: list[OptionRow] = []
        for option in self.options:
            found = rule(self.spelled(option.name)) if option.name else OptionRule("not understood")
            stay = option.words
            if found.fate == "decided":
                size = 1 if "=" in option.words[0] else 1 + found.arity
                taken_out, stay = stay[:size], stay[size:]
                rows.append(OptionRow(shown(" ".join(taken_out)), "decided", found.note))
                if stay:
                    rows.append(OptionRow(shown(" ".join(stay)), "not understood", f"behind {option.name}"))
            else:
                rows.append(OptionRow(shown(" ".join(stay)), found.fate, found.note))
            kept += stay
        return tuple(kept), rows


def outer_rows(command: TrainerCommand) -> list[OptionRow]:
    """Return the rows of the words before the program: variables, and the starter of ranks."""
    rows = []
    for name, value in command.environment.items():
        if name in PLACED:
            rows.append(OptionRow(shown(f"{name}={value}"), "decided", "the launch sets it"))
        elif _SECRET.search(name):
            rows.append(OptionRow(name, "taken", "launch.environment, with its value from the shell that launches"))
        else:
            rows.append(OptionRow(shown(f"{name}={value}"), "taken", "launch.environment"))
    if command.dropped:
        rows.append(OptionRow(" ".join(command.dropped), "decided", "`holmes launch` starts the ranks"))
    if command.starter:
        words = (word for option in command.start_options for word in option.words)
        rows.append(OptionRow(" ".join((command.starter, *words)), "decided", "`holmes launch` starts the ranks"))
    return rows


def job_sections(
    command: TrainerCommand, engine: str, words: Sequence[str], variables: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the sections `trainer` and `launch` of job.yaml.

    `words`: the program's own that stay. `variables` stand for options of the starter, unless the command sets them.
    """
    named = {name: value for name, value in command.environment.items() if name not in PLACED}
    own = {name: None if _SECRET.search(name) else value for name, value in named.items()}
    environment = {**(variables or {}), **own}
    sections: dict[str, object] = {"trainer": {"engine": engine, "command": [*command.program, *words]}}
    if environment:
        sections["launch"] = {"environment": environment}
    return sections


def with_underscores(name: str) -> str:
    """Return an option's name as Python's argument parsers with underscores have it."""
    return "--" + name[2:].replace("-", "_")


def known(**values: object) -> dict[str, object]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
