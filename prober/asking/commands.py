"""One question to a host: the commands of all facts in one shell script, and its answer cut apart again."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from prober.asking.recording import CUT_OFF, Recorded

TOOL_LIMIT_S = 20
PIECE_BYTES = 65536
_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin:/opt/amazon/efa/bin:/opt/rocm/bin:/usr/bin:/bin"  # searched last


@dataclass(frozen=True)
class Command:
    """A read-only POSIX shell command on one line; its first word is the tool.

    `each`: a glob of paths; the command runs once for each until one hangs, with `$d` the path and `$n` its last part,
    leaving out the names that match a pattern of `skip` and those for which the shell test `only` fails. `when`: a
    shell test without which it is not run; `$code` is the exit code before, `$uid` the user's number, and `has GLOB`
    says whether a path is there without a process of its own. `limited`: a simple command that may hang,
    ended after TOOL_LIMIT_S. `after_s`: it runs no sooner than so many seconds after the script began. `shown`: what
    the recording calls the command where the shell text is no name.
    """

    shell: str
    each: str | None = None
    skip: str | None = None
    only: str | None = None
    when: str | None = None
    limited: bool = False
    after_s: int | None = None
    shown: str | None = None


def fresh_token() -> str:
    """Return the first word of a script's markers, as no output has it."""
    return f"@@{secrets.token_hex(8)}"


def in_root(command: str) -> str:
    """`command` as a simple one that runs in `/`: a Python imports from the folder it is started in before its own."""
    return f"sh -c {shlex.quote(f'cd / && exec {command}')}"


def script(commands: Iterable[Command], token: str) -> str:
    """Return a POSIX shell script that runs every command, even if others fail, between markers with `token`.

    `token` is fresh for every probe, so that no output can look like a marker. The output leaves in large pieces:
    each small one would be an SSH packet, and checking packets is most of the asking side's work for a host.
    Its first line is empty, for a login script that reads one.
    """
    parts = [
        f"\nexport LC_ALL=C PATH=$PATH:{_FOLDERS}",
        "{ echo",
        f"limit=; command -v timeout >/dev/null 2>&1 && limit='timeout -k 2 {TOOL_LIMIT_S}'",
        'has() { [ -e "$1" ]; }',
        "began=$(date +%s) uid=$(id -u)",
    ]
    for command in commands:
        parts.append(_guarded(command, _marked(command, token)))
    parts.append(f"echo '{token} done'")
    parts.append(f"}} | {{ dd obs={PIECE_BYTES} 2>/dev/null || cat; }}")
    return "\n".join(parts) + "\n"


def _marked(command: Command, token: str) -> str:
    shown = (command.shown or command.shell).replace("'", "'\\''")
    if command.each:
        shown = re.sub(r'"?\$n"?', "'\"$n\"'", shown)
    run = f"$limit {command.shell}" if command.limited else command.shell
    return (
        f"printf '%s\\n' '{token} begin ''{shown}'\n( {run} ) </dev/null 2>&1\ncode=$?\n"
        f"printf '\\n%s\\n' \"{token} end $code\""
    )


def _guarded(command: Command, text: str) -> str:
    if command.each:
        leave = f"case $n in {command.skip.replace(' ', '|')}) continue;; esac\n" if command.skip else ""
        leave += f"{command.only} || continue\n" if command.only else ""
        # Where the tool hangs at one device, it is not asked about the next.
        hangs = "case $code in 124|137) break;; esac"
        text = f'for d in {command.each}; do [ -e "$d" ] || continue; n=${{d##*/}}\n{leave}{text}\n{hangs}\ndone'
    if command.after_s is not None:
        # A clock that was set meanwhile must not make it wait for ever.
        rest = f"left=$((began + {command.after_s} - $(date +%s)))"
        text = f'{rest}\nif [ "$left" -gt 0 ] && [ "$left" -le {command.after_s} ]; then sleep "$left"; fi\n{text}'
    return f"if {command.when}; then\n{text}\nfi" if command.when else text


def cut(answer: str, token: str, said: str = "") -> tuple[Recorded, ...]:
    """Return the outputs in order of asking. One whose end is missing keeps what came, with exit code CUT_OFF.

    Where the script did not come to its end, the last output is the shell's own, with its last words `said`.
    """
    outputs = []
    _, *blocks = re.split(rf"^{token} begin ", answer, flags=re.MULTILINE)
    for block in blocks:
        command, _, rest = block.partition("\n")
        text, _, code = rest.partition(f"\n{token} end ")
        ended = re.match(r"[0-9]{1,3}$", code, flags=re.MULTILINE)
        outputs.append(Recorded(command, text, int(ended.group()) if ended else CUT_OFF))
    done = re.search(rf"^{token} done$", answer, flags=re.MULTILINE)
    if outputs and outputs[-1].exit_code != CUT_OFF and not done:
        outputs.append(Recorded("sh -s", said, CUT_OFF))
    return tuple(outputs)
