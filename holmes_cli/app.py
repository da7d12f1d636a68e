"""The `holmes` command: what it can be asked, and the module of the one command that is.

`holmes NAME` is the function `NAME_command` of `commands/NAME_command.py`, imported only when it is asked for: a
start costs what that command needs and no more.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import typer

from holmes_core.errors import HolmesError

COMMANDS = {
    "probe": "Ask every host for its GPUs and NICs, find the clusters, and say what is wrong.",
    "plan": "Place every training tasklet on a GPU by integer programming, and predict the step.",
    "launch": "Check the hosts, start the plan on them, watch it, and end it everywhere when it ends anywhere.",
    "control": "Watch a detached run to its end; `holmes launch --detach` starts this in the background.",
    "ps": "List the runs that this user started from this machine.",
    "status": "Say how far a run is: nodes, step, loss, speed against the plan, traffic, and what went wrong.",
    "logs": "Print what the ranks printed.",
    "attach": "Look at a run as it goes on; Ctrl-C stops looking and leaves the run alone.",
    "stop": "End a run everywhere: its ranks, their agents and their files.",
    "trust": "Show the keys that hosts offer, ask, and add them to the known hosts. A changed key is never replaced.",
    "data": "Turn text into a Megatron-compatible token file, which nodes train on without the tokenizer.",
}
HIDDEN = {"control"}
# Objects made until cycles are looked for. Records hold none and stay to the end; by default a fifth of the time of
# planning 4,096 hosts goes into looking.
OBJECTS_A_COLLECTION = 100_000


def main() -> NoReturn:
    """Entry point. Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130 interrupted, else the first rank's."""
    gc.set_threshold(OBJECTS_A_COLLECTION)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").propagate = False
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        make_app(next((word for word in sys.argv[1:] if not word.startswith("-")), None))()
    except HolmesError as error:
        from holmes_cli.screen.terminal import show_error

        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def make_app(asked: str | None) -> typer.Typer:
    """The command line with the command `asked` in full, and of every other its name and its line of help."""
    app = typer.Typer(
        name="holmes",
        help="Train one large model on GPUs in several clusters whose networks do not match: probe, plan, launch.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    for name, line in COMMANDS.items():
        function = _command(name) if name == asked else _not_asked
        app.command(name, help=line, hidden=name in HIDDEN)(function)
    return app


def _command(name: str) -> Callable[..., None]:
    """The function of a command, with its arguments and options."""
    function: Callable[..., None] = getattr(import_module(f"holmes_cli.commands.{name}_command"), f"{name}_command")
    return function


def _not_asked() -> NoReturn:
    """Stands where a command is listed only."""
    raise AssertionError("a command that was not asked for has been called")


def _interrupt(*_: object) -> NoReturn:
    """Being ended or losing the terminal ends a run as Ctrl-C does."""
    raise KeyboardInterrupt
