"""The choice between two exchanges of an outer sync, by its members: to everyone, or reduced in chunks. Free of torch.

To everyone: each island sends each other one its packed pseudo-gradient, n - 1 times its bytes. In chunks: each member
sums one of n chunks and sends all others the mean, a reduce-scatter and an all-gather: 2 (n-1)/n times its bytes, as
around a ring, in two messages one after the other instead of 2 (n-1).
Source: Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

# A byte in chunks counts as so many to everyone: it waits for a message before, and codecs round the mean once more.
CHUNKED_COST = 1.5


def is_chunked(num_members: int) -> bool:
    """Return True if so many members reduce in chunks: from four on, where that halves the bytes at least."""
    return CHUNKED_COST * 2 / num_members < 1


def share_to_each(num_members: int) -> float:
    """Return the bytes that a member sends each other one, as a share of its packed pseudo-gradient."""
    return 2 / num_members if is_chunked(num_members) else 1.0
