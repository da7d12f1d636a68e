"""Attention that stays inside documents; a sample may hold several."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def document_mask(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the term added to attention's scores, (batch, 1, seq, seq).

    It is 0 for the token itself and the tokens before it in its document, else minus infinity.

    positions: int64 (batch, seq), each token's position in its document. The mask has the type of the scores: each
    layer would convert a mask of booleans, and keep the result.
    """
    document = (positions == 0).cumsum(1)
    inside = (document.unsqueeze(2) == document.unsqueeze(1)).tril()  # (batch, seq, seq)
    mask = torch.zeros(inside.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(~inside, -math.inf).unsqueeze(1)
