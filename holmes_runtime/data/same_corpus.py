"""The comparison, before the first step, of the tokens that the hosts read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holmes_runtime.comm.record_exchange import all_gather_records
from holmes_runtime.node.data_files.stored_bytes import StoredBytes

# The digest reads everything up to 16 MiB, then evenly spaced blocks.
BLOCK_BYTES = 4096
BLOCKS = 4096


@dataclass(frozen=True)
class HostCorpus:
    """The corpus that one host read."""

    host: str
    num_tokens: int
    digest: str


def digest_of(files: Sequence[StoredBytes]) -> str:
    """Return a digest of the sizes of `files` and of evenly spaced blocks of them."""
    step = max(BLOCK_BYTES, sum(file.size for file in files) // BLOCKS)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.size.to_bytes(8, "little"))
        for offset in range(0, file.size, step):
            digest.update(file.read(offset, min(offset + BLOCK_BYTES, file.size)))
    return digest.hexdigest()


def check_same_corpus(mine: HostCorpus) -> None:
    """Compare the corpora of all ranks of the default group. Raise RuntimeError naming the hosts that differ."""
    difference = describe_difference(all_gather_records(mine))
    if difference is not None:
        raise RuntimeError(difference)


def describe_difference(read: Iterable[HostCorpus]) -> str | None:
    """Return a sentence on the corpus of each host, or None if all read the same."""
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
