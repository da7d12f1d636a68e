"""The only error users see: the faulty host, file or key, and the remedy."""

from __future__ import annotations

from typing import Literal

HostErrorKind = Literal[
    "unreachable",
    "key unknown",
    "key changed",
    "refused login",
    "refused session",
    "no answer",
    "timed out",
    "too much",
    "files",
]

ANSWER_IS_NO = 1
WRONG_USAGE = 2


class HolmesError(Exception):
    """Something the user can act on.

    `what` names the host, file, key or rank and the value seen; `hint` says what to do. `exit_code` is
    `WRONG_USAGE` for bad input and `ANSWER_IS_NO` where the input was fine but the world is not.
    """

    def __init__(self, what: str, hint: str, exit_code: int = WRONG_USAGE) -> None:
        super().__init__(f"{what}\nhint: {hint}")
        self.what = what
        self.hint = hint
        self.exit_code = exit_code


class HostError(HolmesError):
    """A host that could not be reached, entered or used. `evidence` is the failure without the host's name."""

    def __init__(self, host: str, kind: HostErrorKind, what: str, hint: str) -> None:
        super().__init__(f"host {host}: {what}", hint, ANSWER_IS_NO)
        self.host = host
        self.kind = kind
        self.evidence = what
