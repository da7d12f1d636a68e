"""Attention that stays inside documents; a sample may hold several."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def document_mask(positions: Tensor, dtype: torch.dtype, queries: range | None = None) -> Tensor:
    """Return the term added to attention's scores, (batch, 1, seq, seq).

    Of some `queries`, neighbours in the sequence, only their rows and the keys up to their end.

    It is 0 for the token itself and the tokens before it in its document, else minus infinity.

    positions: int64 (batch, seq), each token's position in its document. The mask has the type of the scores: each
    layer would convert a mask of booleans, and keep the result.
    """
    document = (positions == 0).cumsum(1)
    rows = range(positions.shape[1]) if queries is None else queries
    own, seen = document[:, rows.start : rows.stop], document[:, : rows.stop]
    inside = (own.unsqueeze(2) == seen.unsqueeze(1)).tril(rows.start)  # (batch, queries, keys)
    mask = torch.zeros(inside.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(~inside, -math.inf).unsqueeze(1)


def causal_mask(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """Return the same, on the CPU, for the last `queries` of so many `keys` of one document: (1, 1, queries, keys)."""
    mask = torch.full((1, 1, queries, keys), -math.inf, dtype=dtype)
    return mask.triu_(keys - queries + 1)
