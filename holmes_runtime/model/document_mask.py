"""Attention that stays inside documents, several of which may share a sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def document_mask(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention's scores, (batch, 1, seq, seq): 0 for the token itself and those before it in its
    document, else minus infinity.

    positions: int64 (batch, seq), each token's position in its document. In the type of the scores, since a mask of
    booleans would be made into one again, and kept, by each layer.
    """
    document = (positions == 0).cumsum(1)
    inside = (document.unsqueeze(2) == document.unsqueeze(1)).tril()  # (batch, seq, seq)
    mask = torch.zeros(inside.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(~inside, -math.inf).unsqueeze(1)
