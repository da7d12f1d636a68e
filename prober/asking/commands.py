"""Make the shell script that runs commands on a host, and cut its answer into their outputs."""

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
    """A read-only POSIX shell command on one line. Its first word is the tool.

    each: A glob of paths. The command runs once per path, until one run hangs; `$d` is the path and `$n` its last part.
    skip: Patterns of names that `each` leaves out.
    only: A shell test that a path of `each` must pass.
    when: A shell test that must pass for the command to run. `$code` is the last exit code and `$uid` the user's id.
        `has GLOB` tests for a path without starting a process.
    limited: True for a simple command that may hang. It is killed after TOOL_LIMIT_S.
    after_s: The earliest start, in seconds after the start of the script.
    shown: The command's name in the recording, if not the shell text.
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
    """Return the first word of a script's markers, which no output can contain."""
    return f"@@{secrets.token_hex(8)}"


def in_root(command: str) -> str:
    """Return `command` as a simple command that runs in `/`: Python imports from its working directory first."""
    return f"sh -c {shlex.quote(f'cd / && exec {command}')}"


def script(commands: Iterable[Command], token: str) -> str:
    """Return a POSIX shell script that runs every command, even if others fail, between markers with `token`.

    `token` is new for every probe, so that no output can look like a marker. The output is sent in large pieces: each
    small one would be an SSH packet, and checking packets is most of the work per host. The script's first line is
    empty, for login scripts that read a line.
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
        skips = f"case $n in {command.skip.replace(' ', '|')}) continue;; esac\n" if command.skip else ""
        skips += f"{command.only} || continue\n" if command.only else ""
        # A tool that hangs on one device is not run on the next.
        hangs = "case $code in 124|137) break;; esac"
        text = f'for d in {command.each}; do [ -e "$d" ] || continue; n=${{d##*/}}\n{skips}{text}\n{hangs}\ndone'
    if command.after_s is not None:
        # Bounded, because the clock may have been set meanwhile.
        wait = f"left=$((began + {command.after_s} - $(date +%s)))"
        text = f'{wait}\nif [ "$left" -gt 0 ] && [ "$left" -le {command.after_s} ]; then sleep "$left"; fi\n{text}'
    return f"if {command.when}; then\n{text}\nfi" if command.when else text


def cut(answer: str, token: str, last_words: str = "") -> tuple[Recorded, ...]:
    """Return the outputs in order of their commands. An output without its end marker has exit code CUT_OFF.

    If the script did not reach its end, the last output is the shell's own, with `last_words` as its text.
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
        outputs.append(Recorded("sh -s", last_words, CUT_OFF))
    return tuple(outputs)
