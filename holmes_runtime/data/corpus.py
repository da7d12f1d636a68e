"""Token files in memory maps, and samples of them that depend on (seed, step, number) only, so nothing needs saving."""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.config.run_settings import BYTE_VALUES, Data
from holmes_runtime.data.text import open_tokenizer, source_files, tokenized
from holmes_runtime.data.token_file import read_index

TORCH_TYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint16": torch.uint16,
}
# How much is read to tell whether all hosts have the same tokens: everything up to 16 MiB, then evenly spaced blocks.
DIGEST_BLOCK_BYTES = 4096
DIGEST_BLOCKS = 4096


@dataclass(frozen=True)
class Tokens:
    """Tokens of several files, one after the other; `parts[i]`: integers (tokens of file i,), of any integer type."""

    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return sum(part.numel() for part in self.parts)

    def read(self, start: int, stop: int) -> Tensor:
        """Tokens [start, stop): int64 (stop - start,)."""
        sections = self.section(start, stop).parts
        return torch.cat([part.to(torch.int64) for part in sections])

    def section(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop) as a view."""
        ends = list(accumulate(part.numel() for part in self.parts))
        cut = []
        for part, end in zip(self.parts, ends, strict=True):
            begin = end - part.numel()
            if begin < stop and start < end:
                cut.append(part[max(start - begin, 0) : stop - begin])
        return Tokens(tuple(cut))


@dataclass(frozen=True)
class Corpus:
    """What a run trains on: `digest` is equal where the tokens are. `validation` is the end of the text."""

    training: Tokens
    validation: Tokens
    digest: str

    @property
    def num_tokens(self) -> int:
        """Of both parts."""
        return len(self.training) + len(self.validation)


@dataclass(frozen=True)
class Samples:
    """Random samples of `tokens`, as many as are asked for; another `key`, other samples."""

    tokens: Tokens
    key: str
    seq_length: int
    vocab_size: int

    def batch(self, step: int, numbers: Iterable[int]) -> Tensor:
        """The samples of these numbers in the global batch of `step`: int64 tokens (len(numbers), seq_length + 1).

        A sample depends on (key, step, number) only: whoever trains it, it is the same. Raises ValueError for a token
        the vocabulary does not have.
        """
        batch = torch.stack([self._sample(f"{self.key}/{step}/{number}") for number in numbers])
        least, most = (int(bound) for bound in torch.aminmax(batch))
        if least < 0 or most >= self.vocab_size:
            raise ValueError(f"the data has token {least if least < 0 else most}, vocab_size is {self.vocab_size}")
        return batch

    def _sample(self, name: str) -> Tensor:
        """int64 tokens (seq_length + 1,) from a start that the sample's name decides."""
        digest = hashlib.sha256(name.encode()).digest()
        start = int.from_bytes(digest[:8], "big") % (len(self.tokens) - self.seq_length)
        return self.tokens.read(start, start + self.seq_length + 1)


def load_corpus(data: Data, host: str, seq_length: int, vocab_size: int) -> Corpus:
    """The tokens of `data`, files mapped into memory, cut into training and validation.

    Raises OSError or ValueError, naming host and path, if there is nothing to read, what is there cannot be read, or
    a part holds no whole sample.
    """
    try:
        return _load(data, seq_length, vocab_size)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise type(error)(f"host {host}: {error}") from None


def _load(data: Data, seq_length: int, vocab_size: int) -> Corpus:
    files = source_files(Path(data.path), data.pattern)
    kinds = {file.suffix == ".bin" for file in files}
    if len(kinds) > 1:
        raise ValueError(f"{data.path} with pattern {data.pattern!r} mixes token files (.bin) and text")
    loaded = [_load_file(file, data.tokenizer, vocab_size) for file in files]
    tokens = Tokens(tuple(tensor for _, tensor in loaded))
    boundary = len(tokens) - int(len(tokens) * data.validation_fraction)
    corpus = Corpus(
        tokens.section(0, boundary), tokens.section(boundary, len(tokens)), _digest([buffer for buffer, _ in loaded])
    )
    parts = {"training": corpus.training}
    if data.validation_fraction > 0:
        parts["validation"] = corpus.validation
    for name, part in parts.items():
        if len(part) <= seq_length:
            raise ValueError(
                f"{data.path} has {len(part)} tokens for {name}, a sample needs {seq_length + 1} (seq_length + 1)"
            )
    return corpus


def _load_file(path: Path, tokenizer: str | None, vocab_size: int) -> tuple[Any, Tensor]:
    """The buffer and the tokens (length,) of one file."""
    if path.suffix == ".bin":
        token_type = TORCH_TYPES[read_index(path).token_type]
        return _mapped(path, token_type)
    if tokenizer is None and vocab_size < BYTE_VALUES:
        raise ValueError(f"{path} is read as bytes, which takes a vocab_size of {BYTE_VALUES}, not {vocab_size}")
    if tokenizer is None and path.suffix != ".jsonl":
        return _mapped(path, torch.uint8)
    return _tokenized(path, tokenizer)


def _mapped(path: Path, token_type: torch.dtype) -> tuple[Any, Tensor]:
    """A file as tokens of `token_type`, in a map that nobody shares: torch asks for memory it could write to."""
    with open(path, "rb") as file:
        if path.stat().st_size == 0:
            return b"", torch.empty(0, dtype=token_type)
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return buffer, torch.frombuffer(buffer, dtype=token_type)


def _tokenized(path: Path, tokenizer: str | None) -> tuple[Any, Tensor]:
    """JSONL, or text for a tokenizer: read in full, and tokenized into memory."""
    try:
        opened = open_tokenizer(path, tokenizer)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: install it, or tokenize once where it is, `holmes data {path} --tokenizer {tokenizer} "
            "-o TOKENS.bin`, and train on TOKENS.bin"
        ) from None
    tokens = array("i")
    for piece, found in tokenized(path, opened):
        tokens.extend(found)
        if piece.ends_document and opened.end_of_document is not None:
            tokens.append(opened.end_of_document)
    return tokens, torch.frombuffer(tokens, dtype=torch.int32) if tokens else torch.empty(0, dtype=torch.int32)


def _digest(buffers: list[Any]) -> str:
    """A digest of the sizes of `buffers` and of evenly spaced blocks of them."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    step = max(DIGEST_BLOCK_BYTES, sum(view.nbytes for view in views) // DIGEST_BLOCKS)
    digest = hashlib.sha256()
    for view in views:
        digest.update(view.nbytes.to_bytes(8, "little"))
        for offset in range(0, view.nbytes, step):
            digest.update(view[offset : offset + DIGEST_BLOCK_BYTES])
    return digest.hexdigest()


@dataclass(frozen=True)
class HostCorpus:
    """What one host read."""

    host: str
    num_tokens: int
    digest: str


def check_same_corpus(corpus: Corpus, host: str) -> None:
    """Compares the corpus over all ranks of the default group. Raises RuntimeError naming the hosts that differ."""
    mine = HostCorpus(host, corpus.num_tokens, corpus.digest)
    gathered: list[HostCorpus] = [mine] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    difference = describe_difference(gathered)
    if difference is not None:
        raise RuntimeError(difference)


def describe_difference(read: Iterable[HostCorpus]) -> str | None:
    """Which hosts read which corpus, as a sentence, or None if all read the same."""
    hosts: dict[tuple[int, str], set[str]] = {}
    for one in read:
        hosts.setdefault((one.num_tokens, one.digest), set()).add(one.host)
    if len(hosts) == 1:
        return None
    parts = [
        f"{', '.join(sorted(names))}: {num_tokens} tokens, digest {digest[:12]}"
        for (num_tokens, digest), names in hosts.items()
    ]
    return "the data is not the same on every host: " + "; ".join(parts)
