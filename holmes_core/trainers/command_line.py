"""A trainer's command in parts: variables, the starter of ranks, the program, its options.

No shell reads the text. Words that only a shell could expand are refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.trainer_settings import PLACEHOLDER

MAX_CHARACTERS = 131_072  # of one word that Linux passes to a program
MAX_SHOWN = 80
MAX_NAMED = 8  # variables of a shell, in an error
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PROGRAM = re.compile(r"(.*/)?(torchrun|deepspeed|accelerate|env|python[0-9.]*)$|.*\.py$")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*$")
_PIECES = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\]+""", re.DOTALL)
_VARIABLE = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?|\$\w+|`[^`]*`?")
_OPERATOR = re.compile(r"[|&;<>()\n]+|(?<!\S)#")
_BRACES = re.compile(r"\{[^{}\s]*\}")
_FOLLOWED = ("nohup", "exec", "time", "env")  # words that the command itself follows at once
_SPREADS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "numactl", "taskset", "timeout", "stdbuf")
ACCELERATE = "accelerate launch"
_STARTS = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": "deepspeed",
}
# Variables that the launch sets for each rank, or that would override the plan's networks.
PLACED = {
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_WORLD_SIZE"),
    *("CUDA_VISIBLE_DEVICES", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_COMM_ID", "GLOO_SOCKET_IFNAME"),
}


class CommandOption(NamedTuple):
    """An option and the words up to the next one; words before the first option have the name ""."""

    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class TrainerCommand:
    """The parts of a command. `starter` is torchrun, deepspeed, accelerate launch, or "" for none.

    `dropped`: words of schedulers and the like, which `holmes launch` replaces. `start_options` are the starter's.
    """

    environment: Mapping[str, str]
    dropped: tuple[str, ...]
    starter: str
    start_options: tuple[CommandOption, ...]
    program: tuple[str, ...]
    options: tuple[CommandOption, ...]

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks in the starter's own options; None if it is not there."""
        given = {each.name.replace("_", "-"): each.values for each in self.start_options}
        hosts = _number(given, "--nnodes", "--num-nodes", "--num-machines")
        each = _number(given, "--nproc-per-node", "--num-gpus")
        total = _number(given, "--num-processes")
        return total if total is not None else None if each is None else each * (hosts or 1)


def _number(given: Mapping[str, tuple[str, ...]], *names: str) -> int | None:
    texts = [given[name][0] for name in names if given.get(name)]
    return int(texts[-1]) if texts and re.fullmatch(r"[1-9][0-9]{0,5}", texts[-1]) else None


def read_command(text: str) -> TrainerCommand:
    """Return the parts of the command `text`.

    Raises:
        HolmesError: The command needs a shell, or starts no Python program.
    """
    if len(text) > MAX_CHARACTERS:
        raise HolmesError(f"command of {len(text)} characters; at most {MAX_CHARACTERS} are read", "shorten it")
    text = re.sub(r"\\\r?\n", " ", text).strip()
    _refuse_shell_syntax(text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise HolmesError(f"command: {error}", "close the quote, and quote the whole command once more") from None
    for word in words:
        if any(character in word for character in "\n\r\0"):
            raise HolmesError(f"command: {shown(word)} has several lines", "put that value into a file")
        if PLACEHOLDER.search(word):
            hint = "in job.yaml {NAME} stands for a setting of the plan; pass that value another way"
            raise HolmesError(f"command: {shown(word)} would be a placeholder", hint)
    environment, dropped, words = _outer(words)
    starter, words = _starter(words)
    before, program, after = _program(starter, words)
    return TrainerCommand(environment, dropped, starter, split_options(before), program, split_options(after))


def split_options(words: Sequence[str]) -> tuple[CommandOption, ...]:
    """Return the options of `words`, each with the values up to the next; every word is in one of them."""
    found: list[list[str]] = []
    for word in words:
        if (word.startswith("--") and len(word) > len("--")) or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return tuple(_option(tuple(each)) for each in found)


def _option(words: tuple[str, ...]) -> CommandOption:
    if not words[0].startswith("--") or words[0] == "--":
        return CommandOption("", words, words)
    name, equals, value = words[0].partition("=")
    return CommandOption(name, (value, *words[1:]) if equals else words[1:], words)


def _refuse_shell_syntax(text: str) -> None:
    """Raise HolmesError for operators and patterns outside of quotes, and for variables not in single quotes."""
    pieces = _PIECES.findall(text)
    expanded = "".join(re.sub(r"\\.", "", piece) for piece in pieces if piece[0] not in "'\\")
    if variables := _VARIABLE.findall(expanded):
        names = ", ".join(dict.fromkeys(map(shown, variables[:MAX_NAMED])))
        hint = "put `echo` before the command in its script, and import the line that this prints"
        raise HolmesError(f"command: {names}: a shell puts a value there, and none reads this text", hint)
    bare = "".join("_" if piece[0] in "'\"\\" else piece for piece in pieces)
    if found := _OPERATOR.search(bare):
        hint = "give only the trainer's command, without pipes, redirections or other commands; quote a value"
        sign = shown(found[0].strip()) or "line break"
        raise HolmesError(f"command: {sign!r} is for a shell, and none reads this text", hint)
    for word in bare.split():
        if word.startswith("~") or "*" in word or "?" in word or any("," in each for each in _BRACES.findall(word)):
            hint = "write the actual value, or quote it if the trainer itself expands it"
            raise HolmesError(f"command: {shown(word)}: a shell replaces that, and none reads this text", hint)


def _outer(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...], list[str]]:
    """Return the variables before the command, the words that spread it over hosts, and the other words."""
    environment: dict[str, str] = {}
    dropped: list[str] = []
    rest = list(words)
    while rest:
        name = PurePosixPath(rest[0]).name
        if found := _ASSIGNMENT.fullmatch(rest[0]):
            environment[found[1]] = found[2]
            rest.pop(0)
        elif name in _FOLLOWED:
            dropped.append(rest.pop(0))
            if rest and rest[0].startswith("-"):
                raise HolmesError(f"command: {name} {shown(rest[0])}: not known", f"leave {name} out")
        elif name in _SPREADS:
            stop = next((at for at, word in enumerate(rest) if at and _starts_command(word)), 0)
            if not stop:
                break
            dropped += rest[:stop]
            rest = rest[stop:]
        else:
            break
    return environment, tuple(dropped), rest


def _starts_command(word: str) -> bool:
    return bool(_PROGRAM.fullmatch(word) or _ASSIGNMENT.fullmatch(word)) and not word.startswith("-")


def _starter(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the starter of ranks, "" for none, and the words after it."""
    name = PurePosixPath(words[0]).name if words else ""
    if name == "accelerate":
        if words[1:2] != ["launch"]:
            raise HolmesError(f"command: {shown(' '.join(words[:2]))}: starts no training", "`accelerate launch ...`")
        return ACCELERATE, words[2:]
    if name in ("torchrun", "deepspeed"):
        return name, words[1:]
    if _PYTHON.fullmatch(name):
        at = next((at for at, word in enumerate(words) if at and not word.startswith("-")), len(words))
        if words[at - 1] == "-m" and words[at : at + 1] and words[at] in _STARTS:
            return _STARTS[words[at]], words[at + 1 :]
    return "", words


def _program(starter: str, words: list[str]) -> tuple[list[str], tuple[str, ...], list[str]]:
    """Return a starter's options, the program in the words of one rank, and the words after it."""
    at = next((at for at, word in enumerate(words) if _is_program(word)), None)
    is_python = bool(words) and _PYTHON.fullmatch(words[0]) is not None
    if at is not None and not starter and not is_python and at > 0:
        at = None
    stop = 0 if at is None else at + 2 if words[at] in ("-m", "--module") else at + 1
    if at is None or stop > len(words) or words[stop - 1].startswith("-"):
        seen = shown(" ".join(words)) if words else "nothing"
        hint = "begin with torchrun, deepspeed, accelerate launch or python, then name a .py file or `-m MODULE`"
        raise HolmesError(f"command: {seen}: starts no Python program that can be seen", hint)
    named = tuple(words[at:stop])
    named = ("-m", named[1]) if len(named) > 1 else named
    if starter:
        return words[:at], ("python", *named), words[stop:]
    interpreter = tuple(words[:at]) if is_python else ()
    return [], (*interpreter, *named), words[stop:]


def _is_program(word: str) -> bool:
    return word in ("-m", "--module") or (word.endswith(".py") and not word.startswith("-"))


def shown(text: str) -> str:
    """Return `text`, cut where it is long."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
