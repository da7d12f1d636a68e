"""docs/commands.md, written from the help of the commands: `python -m tests.doc_commands`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer.main
from rich.text import Text
from typer.core import TyperArgument, TyperGroup, TyperOption

from holmes_cli.app import COMMANDS, HIDDEN, TAKES_COMMAND, make_app

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
_INTRODUCTION = """\
# Commands

The output of every `holmes COMMAND --help`, on one page. Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130
interrupted, otherwise the exit code of the rank that failed first. Written from the commands by
`python -m tests.doc_commands`.
"""


def page() -> str:
    """The page's text."""
    return "\n".join([_INTRODUCTION, *(line for name in COMMANDS if name not in HIDDEN for line in _section(name))])


def _section(name: str) -> Iterator[str]:
    group = typer.main.get_command(make_app(name))
    assert isinstance(group, TyperGroup)
    command = group.commands[name]
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if isinstance(each, TyperOption) and not each.hidden]
    words = [f"[{_name_of(each)}]" if not each.required else _name_of(each) for each in arguments]
    yield f"## `holmes {name}`\n\n{_cell(command.help)}\n"
    words += ["[-- COMMAND]"] * (name in TAKES_COMMAND)
    yield f"```\nholmes {' '.join([name, '[OPTION]...', *words])}\n```\n"
    rows = [f"| `{_name_of(each)}` | {_cell(each.help)} |  |" for each in arguments]
    rows += [f"| {_names(each)} | {_cell(each.help)} | {_default(each)} |" for each in options]
    if rows:
        yield "\n".join(["| option | meaning | default |", "|---|---|---|", *rows, ""])


def _name_of(argument: TyperArgument) -> str:
    return (argument.metavar or argument.name or "").upper() + ("" if argument.nargs == 1 else "...")


def _names(option: TyperOption) -> str:
    value = "" if option.is_flag else f" {option.metavar or (option.name or '').upper()}"
    first, *others = sorted(option.opts, key=len, reverse=True)
    return ", ".join(f"`{name}`" for name in (first + value.replace("|", r"\|"), *others))


def _default(option: TyperOption) -> str:
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    default = "" if option.is_flag or shown is None or callable(shown) else f"`{shown}`"
    return ", ".join(filter(None, [default, f"variable `{option.envvar}`" if option.envvar else ""]))


def _cell(text: str | None) -> str:
    paragraphs = Text.from_markup(text or "").plain.replace("|", r"\|").split("\n\n")
    return "<br>".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
