"""A trainer's own command as job.yaml names it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, get_args

from pydantic import model_validator

from holmes_core.records.access import OneLine
from holmes_core.records.record import Record
from holmes_runtime.config.rooted_path import RootedPath

TrainerName = Literal["megatron", "torchtitan", "deepspeed", "accelerate", "torch"]
PublishedName = Literal["fsdp", "megatron-2020", "megatron-2021", "megatron-deepspeed", "megatron-2024", "sailor"]
WITH_ISLANDS = ("holmes", "torch", "accelerate", "torchtitan")
"""Engines that train islands: the bundled one, and those whose scripts have all weights as tensors or DTensors."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")  # of a setting, in a trainer's command
OF_THE_JOB = {"steps", "seq_length"}  # settings that set nothing that is planned
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_UNHOOKED = "IES"  # isolated, without variables such as PYTHONPATH, without `sitecustomize`
_WITH_VALUE = "WX"  # options of Python with a value, in the same word or the next


def unhooked_python(command: Sequence[str]) -> str | None:
    """Return the reason why Python would not load the hook of process groups in this command; None if it would.

    What a script of a shell starts is not known.
    """
    at = next((position for position, word in enumerate(command) if _PYTHON.fullmatch(word)), None)
    if at is None:
        return None
    replaced = next((word for word in command[:at] if word.startswith("PYTHONPATH=")), None)
    if replaced is not None:
        return f"with {replaced}"
    words = iter(command[at + 1 :])
    for word in words:
        if not re.match("-[a-zA-Z]", word):
            return None
        for position, letter in enumerate(word[1:], 2):
            if letter in _UNHOOKED:
                return f"with -{letter}"
            if letter in "cm":  # the program itself
                return None
            if letter in _WITH_VALUE:
                if position == len(word):
                    next(words, None)
                break
    return None


class TrainerSettings(Record):
    """Software other than the bundled runtime that trains the model, under the plan's placement and networks."""

    engine: TrainerName | PublishedName
    """Software that the plan is for: megatron (Megatron-LM, Megatron-Bridge), torchtitan, deepspeed (ZeRO-1, and its
    pipelines), accelerate (and Hugging Face's Trainer; FSDP), or torch (a script with DDP, or under parallel.zero 3
    with FSDP). Other names are software as published steps were run with it: they are predicted, never launched.
    Example: megatron"""
    command: tuple[OneLine, ...] = ()
    """Command of one rank, word by word; no shell reads it. The plan's settings are appended for the engine, or placed
    where {tp}, {pp}, {dp}, {micro_batch_size}, {layout} and others stand. Without a command the plan is a prediction.
    Example: [python, pretrain_gpt.py, --train-iters, "1000"]"""
    folder: RootedPath = "~/"
    """Folder in which the command runs, at the same path on every host. Words of the command that name a file of
    launch.code become the path of that file on the host. Example: /nfs/team/Megatron-LM"""
    step_pattern: OneLine | None = None
    """Regular expression of the line that the trainer prints for each step, with the group `loss`, and if the line has
    them `step` and `seconds`; not set: the engine's own, or for torch a line with "step NUMBER" and "loss NUMBER".
    Example: 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)' """

    @property
    def placeholders(self) -> set[str]:
        """Return the settings of the plan that the command holds by name."""
        return {name for word in self.command for name in PLACEHOLDER.findall(word)}

    def values(self, option: str) -> tuple[str, ...] | None:
        """Return the command's values for an option, wherever it stands; None if the command lacks it."""
        words = [part for word in self.command for part in (word.split("=", 1) if word.startswith("--") else (word,))]
        places = [at for at, word in enumerate(words) if word == option]
        if not places:
            return None
        return tuple(value for at in places for value in takewhile(lambda word: word[:2] != "--", words[at + 1 :]))

    @property
    def takes_options(self) -> bool:
        """True if the plan's settings are appended: the command places none itself."""
        return self.placeholders <= OF_THE_JOB

    @model_validator(mode="after")
    def _can_be_run(self) -> TrainerSettings:
        if self.command and self.engine not in get_args(TrainerName):
            raise ValueError(f"command with engine {self.engine}, which is predicted and never launched")
        if self.command and not self.command[0]:
            raise ValueError("command begins with an empty word, not a program")
        unhooked = unhooked_python(self.command)
        if unhooked is not None:
            raise ValueError(
                f"command runs Python {unhooked}, and process groups get their networks by a rank's PYTHONPATH: leave "
                "that out, and set a PYTHONPATH of your own in launch.environment"
            )
        if self.step_pattern is not None:
            try:
                groups = re.compile(self.step_pattern).groupindex
            except re.error as error:
                raise ValueError(f"step_pattern {self.step_pattern!r} is not a regular expression: {error}") from None
            if "loss" not in groups:
                raise ValueError(f"step_pattern {self.step_pattern!r} has no group `(?P<loss>...)`")
        return self
