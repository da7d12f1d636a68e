"""The manual page, holmes(1), from the help texts of the commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import typer
import typer.main
from rich.text import Text
from typer.core import TyperGroup

from holmes_cli import VERSION

_ENDS = "0 done, 1 the answer is no, 2 wrong usage, 130 interrupted, else the exit code of the rank that failed first."


def man_page(summary: str, commands: Mapping[str, typer.Typer]) -> str:
    """Return the page in the language of man(7). `commands`: by name an app that has that command in full."""
    lines = [
        f'.TH HOLMES 1 "" "holmes {VERSION}"',
        *(".SH NAME", rf"holmes \- {_plain(summary)}"),
        *(".SH SYNOPSIS", ".B holmes", r"\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]..."),
        ".SH COMMANDS",
    ]
    for name, app in commands.items():
        group = typer.main.get_command(app)
        assert isinstance(group, TyperGroup)
        command = group.commands[name]
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        words = " ".join(rf"\fI{_plain(each.name or '').upper()}\fR" for each in arguments)
        lines += [f".SS holmes {name} {words}".rstrip(), _plain(command.help or ""), *_parameters(command.params)]
    return "\n".join([*lines, ".SH EXIT STATUS", _plain(_ENDS), ""])


def _parameters(parameters: Iterable[object]) -> Iterator[str]:
    """Yield a paragraph for each argument and option, with its default and its environment variable."""
    for each in parameters:
        names = [*getattr(each, "opts", ()), *getattr(each, "secondary_opts", ())]
        is_option = getattr(each, "param_type_name", "") == "option"
        variable = getattr(each, "envvar", None)
        text = getattr(each, "help", None) or ""
        yield ".TP"
        yield ", ".join(rf"\fB{_plain(name)}\fR" for name in names) if is_option else rf"\fI{names[0].upper()}\fR"
        yield _plain(f"{text} Variable: {variable}." if variable else text)


def _plain(text: str) -> str:
    """Return `text` without Rich's markup, and with the characters escaped that man(7) would interpret."""
    written = Text.from_markup(text).plain.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{written}" if written.startswith((".", "'")) else written
