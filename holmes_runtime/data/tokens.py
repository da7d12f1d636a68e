"""Tokens of files in sequence, and the starts of their documents."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from holmes_runtime.model.distilled_loss import SoftTargets
from holmes_runtime.node.data_files.stored_bytes import StoredBytes
from holmes_runtime.node.data_files.teacher_file import TeacherRows
from holmes_runtime.node.data_files.token_file import TYPE_BYTES

TORCH_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TYPE_BYTES}


@dataclass(frozen=True)
class TokenPart:
    """The tokens of one file. `documents` are the first token of each, ascending, if the file has documents.

    `packed_length` is as in TokenFile: tokens that are only read are then below zero, see `as_read`.
    """

    name: str
    stored: StoredBytes
    token_type: str
    documents: Sequence[int] = ()
    largest_token: int | None = None  # None if not all tokens have been checked
    packed_length: int | None = None
    teacher: TeacherRows | None = None

    def __len__(self) -> int:
        return self.stored.size // TYPE_BYTES[self.token_type]

    def read(self, start: int, stop: int) -> Tensor:
        """Return tokens [start, stop): int64 (stop - start,). Raises OSError naming the file if they are missing."""
        width = TYPE_BYTES[self.token_type]
        found = self.stored.read(start * width, stop * width)
        return torch.frombuffer(found, dtype=TORCH_TYPES[self.token_type]).to(torch.int64)

    def soft_targets(self, start: int, stop: int) -> SoftTargets:
        """Return the teacher's tokens for targets [start, stop). The first target is token `start` + 1."""
        assert self.teacher is not None, self.name
        file = self.teacher.file
        rows = torch.frombuffer(self.teacher.read(start, stop), dtype=torch.uint8).view(stop - start, file.row_bytes)
        tokens, logarithms = rows.tensor_split([file.tokens_bytes], 1)
        return SoftTargets(
            tokens.contiguous().view(TORCH_TYPES[file.token_type]).to(torch.int32),
            logarithms.contiguous().view(torch.float16).float(),
        )

    def documents_in(self, start: int, stop: int) -> Iterator[int]:
        """Yield the `documents` in [start, stop)."""
        for number in range(bisect_left(self.documents, start), len(self.documents)):
            first = self.documents[number]
            if first >= stop:
                return
            yield first


class Tokens:
    """Tokens [start, stop) of several files, one after another. Positions below count from `start`."""

    def __init__(self, parts: Sequence[TokenPart], start: int = 0, stop: int | None = None) -> None:
        self._parts, self._start = parts, start
        self._ends = list(accumulate(map(len, parts)))
        self._stop = stop if stop is not None else self._ends[-1] if parts else 0

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def packed_length(self) -> int | None:
        """The number of tokens in a sequence of packed examples; None if they are not packed."""
        return self._parts[0].packed_length if self._parts else None

    def section(self, start: int, stop: int) -> Tokens:
        """Return tokens [start, stop) of these as a separate object."""
        return Tokens(self._parts, self._start + start, self._start + stop)

    def read(self, start: int, stop: int) -> Tensor:
        """Return tokens [start, stop): int64 (stop - start,). Raises OSError naming the file if they are missing."""
        return torch.cat([part.read(first, last) for part, first, last in self._pieces(start, stop)])

    def soft_targets(self, start: int, stop: int) -> SoftTargets:
        """Return the teacher's tokens for targets [start, stop) of one file. The first target is token `start` + 1."""
        ((part, first, last),) = self._pieces(start, stop)
        return part.soft_targets(first, last)

    def positions(self, start: int, stop: int) -> Tensor:
        """Return each token's position in its document, counted from `start` at the earliest: int64 (stop - start,).

        A document ends with its file, whatever the file says.
        """
        begins, place = torch.zeros(stop - start, dtype=torch.int64), 0
        for part, first, last in self._pieces(start, stop):
            for document in (first, *part.documents_in(first, last)):
                begins[place + document - first] = place + document - first
            place += last - first
        return torch.arange(stop - start) - begins.cummax(0).values

    def place_of(self, number: int) -> tuple[str, int]:
        """Return the file of token `number`, and its position there, in tokens."""
        ((part, first, _),) = self._pieces(number, number + 1)
        return part.name, first

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[TokenPart, int, int]]:
        """Yield the files that hold tokens [start, stop), each with the range [first, last) of its tokens."""
        start, stop = self._start + start, self._start + stop
        index = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - len(self._parts[index])
            last = min(stop, self._ends[index])
            if start < last:
                yield self._parts[index], start - begin, last - begin
            start, index = last, index + 1
