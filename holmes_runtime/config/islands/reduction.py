"""The choice between two exchanges for an outer sync: all-to-all, or reduced in chunks. Free of torch.

All-to-all: each island sends its packed pseudo-gradient to every other island, n - 1 times its bytes. In chunks: each
member sums one of n chunks and sends the mean to all others, as a reduce-scatter and an all-gather. That sends
2 (n-1)/n times its bytes, like a ring, but in two messages after one another instead of 2 (n-1).
Source: Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

# Cost of a byte in chunks relative to all-to-all: it waits for an earlier message, and codecs round the mean once more.
CHUNKED_COST = 1.5


def is_chunked(num_members: int) -> bool:
    """Return True if this many members reduce in chunks: from four on, where that at least halves the bytes."""
    return CHUNKED_COST * 2 / num_members < 1


def share_to_each(num_members: int) -> float:
    """Return the bytes that a member sends to each other member, as a share of its packed pseudo-gradient."""
    return 2 / num_members if is_chunked(num_members) else 1.0
