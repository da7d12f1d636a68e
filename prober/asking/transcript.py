"""A terminal session pasted as one output, cut at its prompts into the outputs of the commands that were typed."""

from __future__ import annotations

import re

from prober.asking.command_words import PROMPT, command_words

_TYPED = re.compile(rf"^(?:{PROMPT})[ \t]*[#$] +(\S.*)\n", re.MULTILINE | re.ASCII)


def typed_commands(command: str, text: str) -> tuple[tuple[str, str], ...]:
    """(command, output) of `command` itself, what stands above the first prompt, and of each call at a prompt below.

    The output stays in one where no prompt shows another tool.
    """
    before, *parts = _TYPED.split(text.replace("\r\n", "\n"))
    calls = list(zip(parts[::2], parts[1::2], strict=True))
    if all(command_words(called).words[0] == command_words(command).words[0] for called, _ in calls):
        return ((command, text),)
    return ((command, before), *calls) if before.strip() else tuple(calls)
