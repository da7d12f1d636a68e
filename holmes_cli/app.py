"""The `holmes` command and its three steps."""

from __future__ import annotations

import logging
import signal
import sys
from typing import NoReturn

import typer

from holmes_cli.attach_command import attach_command
from holmes_cli.data_command import data_command
from holmes_cli.launch_command import control_command, launch_command
from holmes_cli.logs_command import logs_command
from holmes_cli.plan_command import plan_command
from holmes_cli.probe_command import probe_command
from holmes_cli.ps_command import ps_command
from holmes_cli.status_command import status_command
from holmes_cli.stop_command import stop_command
from holmes_cli.terminal import show_error
from holmes_cli.trust_command import trust_command
from holmes_core.errors import HolmesError

app = typer.Typer(
    name="holmes",
    help="Train one large model on GPUs in several clusters whose networks do not match: probe, plan, launch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("probe")(probe_command)
app.command("plan")(plan_command)
app.command("launch")(launch_command)
app.command("control", hidden=True)(control_command)
app.command("ps")(ps_command)
app.command("status")(status_command)
app.command("logs")(logs_command)
app.command("attach")(attach_command)
app.command("stop")(stop_command)
app.command("trust")(trust_command)
app.command("data")(data_command)


def main() -> NoReturn:
    """Entry point. Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130 interrupted, else the first rank's."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").propagate = False
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        app()
    except HolmesError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _interrupt(*_: object) -> NoReturn:
    """Being ended or losing the terminal ends a run as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
