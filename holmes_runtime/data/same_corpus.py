"""Compare, before the first step, the tokens that the hosts read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holmes_runtime.comm.record_exchange import all_gather_records


@dataclass(frozen=True)
class HostCorpus:
    """The corpus that one host read."""

    host: str
    num_tokens: int
    digest: str


def check_same_corpus(mine: HostCorpus) -> None:
    """Compare the corpora of all ranks in the default group. Raises RuntimeError naming the hosts that differ."""
    difference = describe_difference(all_gather_records(mine))
    if difference is not None:
        raise RuntimeError(difference)


def describe_difference(read: Iterable[HostCorpus]) -> str | None:
    """Return a sentence about the corpus of each host, or None if all read the same."""
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
