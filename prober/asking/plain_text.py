"""Output as the tool printed it, without additions by terminals, mails and prompts."""

from __future__ import annotations

import re
import textwrap

from prober.asking.command_words import PROMPT, command_words, without_prompt

_NO_DIGIT = "\ufffd"

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_BARE_PROMPT = re.compile(rf"(?:{PROMPT})\s*[#$]\s*", re.ASCII)


def plain_text(text: str, tool: str) -> str:
    """Return the text without byte order mark, terminal escapes, carriage returns, NUL bytes, quote marks and prompts.

    A common indentation is removed. U+FFFD replaces digits of other scripts, which no tool prints.
    """
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").removeprefix("\ufeff")
    if not text.isascii():
        text = _OTHER_DIGIT.sub(_NO_DIGIT, text)
    if text[:1] == ">":
        text = _unquoted(text)
    if text[:1] in (" ", "\t"):
        text = textwrap.dedent(text)
    return _without_prompts(text, tool) if "#" in text or "$" in text else text


def lines_with_other_digits(text: str) -> list[str]:
    """Return the lines with digits of a script other than 0 to 9."""
    return [] if text.isascii() else [line.strip() for line in text.splitlines() if _OTHER_DIGIT.search(line)]


def _unquoted(text: str) -> str:
    """Return the text without the mark that mails put before quoted lines, if every line has it."""
    lines = text.split("\n")
    if all(line.startswith(">") or not line.strip() for line in lines):
        return "\n".join(re.sub(r"^> ?", "", line) for line in lines)
    return text


def _without_prompts(text: str, tool: str) -> str:
    """Return the text without lines that call the tool, and without prompts that wait for a command."""
    lines = text.split("\n")
    kept = [line for line in lines if not (("#" in line or "$" in line) and _is_prompt(line, tool))]
    return text if len(kept) == len(lines) else "\n".join(kept)


def _is_prompt(line: str, tool: str) -> bool:
    typed = without_prompt(line)
    return bool(_BARE_PROMPT.fullmatch(line)) or (typed != line and command_words(typed).words[0] == tool)
