"""The `holmes` command: all commands by name, and the module of the requested one.

`holmes NAME` is the function `NAME_command` of `commands/NAME_command.py`, or of the module `ELSEWHERE` names, imported
only when it is requested: a start costs no more than that command needs.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from holmes_cli import VERSION
from holmes_core.errors import HolmesError

SUMMARY = "Train one large model on GPUs in several clusters with different networks: probe, plan, launch."
COMMANDS = {
    "demo": "Probe, plan, launch and train a small GPT here; four processes stand in for the hosts of two clusters.",
    "init": "Write a first hosts.yaml and job.yaml, never over an existing one.",
    "import": "Write job.yaml from the command of Megatron-LM or another trainer, or from a model's config.json.",
    "hosts": "Write hosts.yaml from the lists of Slurm, Kubernetes or topograph; or Slurm's topology.conf.",
    "probe": "Ask every host for its GPUs and NICs, find the clusters, and report faults.",
    "sketch": "Write an inventory of machines you do not have yet from a line of text, for `holmes plan`.",
    "plan": "Place every training tasklet on a GPU by integer programming, and predict the step.",
    "doctor": "Explain why a run that Holmes did not start is slow or fails, while it runs or from NCCL's logs.",
    "calibrate": "Measure what a step costs on a host, and print the `compute:` section of job.yaml.",
    "launch": "Check the hosts, start the plan on them, watch the run, and end it everywhere when it ends anywhere.",
    "emit": "Write a plan as files for another launcher: torchrun, Slurm, MPI, Kubernetes, or plain files to read.",
    "control": "Watch a detached run to its end; `holmes launch --detach` starts this in the background.",
    "ps": "List the runs that this user started from this machine.",
    "status": "Show a run's progress: nodes, step, loss, speed against the plan, traffic, and what went wrong.",
    "logs": "Print the output of the ranks.",
    "attach": "Follow a run; Ctrl-C stops following and leaves the run alone.",
    "stop": "End a run everywhere: its ranks, their agents and their files.",
    "trust": "Show the keys that hosts offer, ask, and add them to the known hosts. A changed key is never replaced.",
    "model": "Print the lines of job.yaml for a published model: its shape, and its weights to start from.",
    "job": "Print the keys of job.yaml, or explain one: its type, default, meaning and an example.",
    "data": "Turn text, or examples to fine-tune on, into a token file, so that nodes need no tokenizer.",
    "checkpoint": "Show, check, gather or export a run's checkpoints, on one disk or on the disks of several hosts.",
}
HIDDEN = {"control"}
TAKES_COMMAND = {"doctor"}
ELSEWHERE = {
    **{name: f"commands.launched.{name}_command" for name in ("attach", "logs", "ps", "status", "stop")},
    "checkpoint": "commands.checkpoint.checkpoint_command",
    "control": "control_command",
    "demo": "demo.demo_command",
}
# Objects made until cycles are looked for. Records hold none and stay to the end; by default a fifth of the time of
# planning 4,096 hosts goes into looking.
OBJECTS_A_COLLECTION = 100_000
CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EPIPE}
SECOND_NAME = "holmes-train"
COMPLETES = ("_HOLMES_COMPLETE", "_HOLMES_TRAIN_COMPLETE")
"""Variables that the scripts of `--install-completion`, which Typer writes, set; one for each name of the command."""


def main() -> NoReturn:
    """Entry point. Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130 interrupted, else the first rank's."""
    gc.set_threshold(OBJECTS_A_COLLECTION)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for other characters
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").propagate = False
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup has it ignored
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        name = SECOND_NAME if Path(sys.argv[0]).name == SECOND_NAME else "holmes"
        make_app(asked_command(sys.argv, os.environ))(prog_name=name)
    except HolmesError as error:
        from holmes_cli.screen.terminal import show_error

        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in CANNOT_WRITE or error.filename is not None:
            raise
        _say_cannot_write(error)
    finally:
        # A second Ctrl-C that comes as Python ends would stand for the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(0)


def _say_cannot_write(error: OSError) -> NoReturn:
    """Exit without writing more to standard output, which is closed or full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:  # a reader such as `head` has stopped reading on purpose
        hint = "make room where standard output and the run's folder are"
        print(f"error: cannot write: {error.strerror}\nhint: {hint}", file=sys.stderr)
    sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holmes {VERSION}")
        raise typer.Exit


def _show_man(wanted: bool) -> None:
    if wanted:
        from holmes_cli.man_page import man_page

        shown = [name for name in COMMANDS if name not in HIDDEN]
        typer.echo(man_page(SUMMARY, {name: make_app(name) for name in shown}), nl=False)
        raise typer.Exit


def asked_command(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the command of a command line, or of one that a shell completes; None before there is one."""
    if any(name in environ for name in COMPLETES):
        words = (environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    return next((word for word in words[1:] if not word.startswith("-")), None)


def make_app(asked: str | None) -> typer.Typer:
    """Return the command line with the command `asked` in full, and the name and line of help of every other."""
    app = typer.Typer(
        name="holmes",
        help=SUMMARY,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_of_all_commands)
    for name, line in COMMANDS.items():
        function = _command(name) if name == asked else _not_asked
        kind = _WithCommand if name in TAKES_COMMAND else None
        app.command(name, cls=kind, help=line, hidden=name in HIDDEN)(function)
    return app


class _WithCommand(TyperCommand):
    """A command that gets the words after the first `--`, a command of the user's own, as `ctx.obj`; None without."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else None
        ctx.obj = None if at is None else args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND]"]


def _of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    man: Annotated[
        bool, typer.Option("--man", help="Print the manual page, holmes(1).", is_eager=True, callback=_show_man)
    ] = False,
) -> None:
    """The options before a command."""


def _command(name: str) -> Callable[..., None]:
    """Return the function of a command, with its arguments and options."""
    module = ELSEWHERE.get(name, f"commands.{name}_command")
    function: Callable[..., None] = getattr(import_module(f"{__package__}.{module}"), f"{name}_command")
    return function


def _not_asked() -> NoReturn:
    """Stands for a command that is only listed."""
    raise AssertionError("a command that was not asked for has been called")


def _interrupt(*_: object) -> NoReturn:
    """End a run as Ctrl-C does, when the process is terminated or loses its terminal."""
    raise KeyboardInterrupt
