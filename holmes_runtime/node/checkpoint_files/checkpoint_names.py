"""Names from files and peers that become paths: each type refuses text of another form. Free of torch.

All decoders of records with such names use these types, so no name leads out of its folder or to a file of another
kind in it.
"""

from __future__ import annotations

import re
from typing import ClassVar, TypeVar

from holmes_runtime.config.checks import shown

Name = TypeVar("Name", bound="CheckedName")


class CheckedName(str):
    """A text that matches `FORM` entirely. `MEANING` describes the form."""

    __slots__ = ()
    FORM: ClassVar[re.Pattern[str]]
    MEANING: ClassVar[str]

    def __new__(cls: type[Name], text: str) -> Name:
        """Raise ValueError unless `text` has the form."""
        if cls.FORM.fullmatch(text) is None:
            raise ValueError(f"must be {cls.MEANING}, got {shown(text)}")
        return super().__new__(cls, text)


class PieceName(CheckedName):
    """The file name of a piece, in the form of torch's writer: the rank that wrote it, and a number."""

    __slots__ = ()
    FORM = re.compile(r"__[0-9]{1,7}_[0-9]{1,7}\.distcp")
    MEANING = "the name of a piece file, such as __0_0.distcp"

    @property
    def rank(self) -> int:
        """The rank that wrote it."""
        return int(self[2:].partition("_")[0])


class CheckpointName(CheckedName):
    """The folder name of a checkpoint, with the steps after which it was saved. Each number has exactly one name."""

    __slots__ = ()
    FORM = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,14})")
    MEANING = "the name of a checkpoint, such as step-00000100"

    @classmethod
    def after(cls, steps: int) -> CheckpointName:
        """Return the name of the checkpoint after `steps`."""
        return cls(f"step-{steps:08d}")

    @property
    def steps(self) -> int:
        """The steps after which it was saved."""
        return int(self.removeprefix("step-"))


class SaveId(CheckedName):
    """The name of one save, drawn at random: 32 hexadecimal digits."""

    __slots__ = ()
    FORM = re.compile(r"[0-9a-f]{32}")
    MEANING = "the id of a save, 32 hexadecimal digits"
