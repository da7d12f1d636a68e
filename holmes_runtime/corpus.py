"""The training text as bytes, and samples of it that depend on (seed, step, slot) only, so nothing needs saving."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.run_config import Corpus


@dataclass(frozen=True)
class CorpusDigest:
    """What one host read."""

    host: str
    length_bytes: int
    sha256: str


def load_corpus(corpus: Corpus, host: str, seq_length: int) -> Tensor:
    """The corpus, uint8 (length,).

    Raises FileNotFoundError if there is nothing to read and ValueError if it holds no whole sample, both naming host
    and path.
    """
    content = bytearray()
    for path in _corpus_files(corpus, host):
        content += path.read_bytes()
    if len(content) <= seq_length:
        raise ValueError(
            f"host {host}: corpus {corpus.path} has {len(content)} bytes, a sample needs {seq_length + 1} "
            "(seq_length + 1)"
        )
    return torch.frombuffer(content, dtype=torch.uint8)


def _corpus_files(corpus: Corpus, host: str) -> list[Path]:
    path = Path(corpus.path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"host {host}: corpus {path} does not exist (seen from {Path.cwd()})")
    files = sorted((found for found in path.glob(corpus.pattern) if found.is_file()), key=lambda found: found.name)
    if not files:
        raise FileNotFoundError(f"host {host}: corpus folder {path} has no file matching {corpus.pattern!r}")
    return files


def sample(corpus: Tensor, seed: int, step: int, slot: int, seq_length: int) -> Tensor:
    """Sample `slot` of the global batch of `step`: int64 tokens (seq_length + 1,) from corpus, uint8 (length,)."""
    digest = hashlib.sha256(f"{seed}/{step}/{slot}".encode()).digest()
    start = int.from_bytes(digest[:8], "big") % (corpus.numel() - seq_length)
    return corpus[start : start + seq_length + 1].to(torch.int64)


def batch(corpus: Tensor, seed: int, step: int, slots: range, seq_length: int) -> Tensor:
    """The samples of `slots`: int64 tokens (len(slots), seq_length + 1)."""
    return torch.stack([sample(corpus, seed, step, slot, seq_length) for slot in slots])


def check_same_corpus(corpus: Tensor, host: str) -> None:
    """Compares the corpus over all ranks of the default group. Raises RuntimeError naming the hosts that differ."""
    mine = CorpusDigest(host, corpus.numel(), hashlib.sha256(corpus.numpy().data).hexdigest())
    gathered: list[CorpusDigest] = [mine] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    difference = describe_difference(gathered)
    if difference is not None:
        raise RuntimeError(difference)


def describe_difference(digests: Iterable[CorpusDigest]) -> str | None:
    """Which hosts read which corpus, as a sentence, or None if all read the same."""
    hosts: dict[tuple[int, str], set[str]] = {}
    for digest in digests:
        hosts.setdefault((digest.length_bytes, digest.sha256), set()).add(digest.host)
    if len(hosts) == 1:
        return None
    parts = [
        f"{', '.join(sorted(names))}: {length} bytes, sha256 {sha256[:12]}" for (length, sha256), names in hosts.items()
    ]
    return "the corpus is not the same on every host: " + "; ".join(parts)
