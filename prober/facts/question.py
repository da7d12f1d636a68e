"""One question to a host: the commands of all facts in one shell script, and its answer cut apart again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TOOL_MISSING = 127


@dataclass(frozen=True)
class Command:
    """A read-only shell command and the name its output goes by."""

    name: str
    shell: str


@dataclass(frozen=True)
class Output:
    """What a command printed (standard error included) and its exit code; None if the answer ended before it did."""

    text: str
    exit_code: int | None

    @property
    def tool_missing(self) -> bool:
        return self.exit_code == TOOL_MISSING


NOTHING = Output("", TOOL_MISSING)


def script(commands: Iterable[Command], token: str) -> str:
    """A POSIX shell script that runs every command, whatever the others do, between markers with `token`.

    `token` is fresh for every probe, so that no output can look like a marker.
    """
    parts = ["export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin"]
    for command in commands:
        parts.append(f"printf '%s\\n' '{token} begin {command.name}'")
        parts.append(f"( {command.shell} ) </dev/null 2>&1")
        parts.append(f"printf '\\n%s\\n' \"{token} end {command.name} $?\"")
    return "\n".join(parts) + "\n"


def cut(answer: str, token: str) -> Mapping[str, Output]:
    """Each command's output by name. A command whose end is missing keeps what came, with exit code None."""
    outputs = {}
    for block in answer.split(f"{token} begin ")[1:]:
        name, _, rest = block.partition("\n")
        end = re.search(rf"\n{re.escape(token)} end {re.escape(name)} (\d+)\n", rest)
        if end:
            outputs[name] = Output(rest[: end.start()], int(end.group(1)))
        else:
            outputs[name] = Output(rest, None)
    return outputs
