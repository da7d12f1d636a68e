"""Attention inside documents, for samples that hold several.

A mask marks the documents' borders. On GPUs in bf16 a kernel takes the documents' ends instead, and computes no scores
between two documents.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor


def document_mask(positions: Tensor, dtype: torch.dtype, queries: range | None = None) -> Tensor:
    """Return the term to add to the scores of attention, (batch, 1, seq, seq), or the part for `queries`.

    It is 0 for the token itself and the tokens before it in its document, else minus infinity. The part for `queries`
    has their rows, and the keys up to their end.

    positions: int64 (batch, seq), each token's position in its document. The mask has the type of the scores, because
    each layer would convert a mask of booleans and keep the result.
    """
    document = (positions == 0).cumsum(1)
    rows = range(positions.shape[1]) if queries is None else queries
    own, seen = document[:, rows.start : rows.stop], document[:, : rows.stop]
    inside = (own.unsqueeze(2) == seen.unsqueeze(1)).tril(rows.start)  # (batch, queries, keys)
    mask = torch.zeros(inside.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(~inside, -math.inf).unsqueeze(1)


def causal_mask(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """Return such a mask on the CPU for the last `queries` of `keys` tokens in one document: (1, 1, queries, keys)."""
    mask = torch.full((1, 1, queries, keys), -math.inf, dtype=dtype)
    return mask.triu_(keys - queries + 1)


def document_ends(positions: Tensor, max_documents: int) -> Tensor:
    """Return 0 and the ends of a micro-batch's documents, counted over all samples: int32 (n + 1,).

    n is `max_documents` rounded up to a power of two, and the last end fills the rest. So the host need not wait for
    the device to learn the number of documents, and compiled code meets few lengths.
    positions: int64 (batch, seq), each token's position in its document.
    """
    number = (positions == 0).flatten().cumsum(0)  # of each token's document, from 1
    lengths = number.new_zeros((1 << max(0, max_documents - 1).bit_length()) + 1)
    return lengths.scatter_add_(0, number, torch.ones_like(number)).cumsum(0).int()


def attend_documents(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
    """Return the attention inside documents: (batch, seq, heads, head_size).

    query: (batch, seq, heads, head_size), bf16; key, value: (batch, seq, kv heads, head_size); ends: `document_ends`.
    """
    from torch.nn.attention.varlen import varlen_attn  # imports the compiler, so only where it is used

    # From torch 2.12 on groups of heads have to be enabled. The kernel supports them in every version.
    grouped = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    attend = partial(cast(Callable[..., Tensor], varlen_attn), window_size=(-1, 0), **grouped)
    seq_length = query.shape[1]
    query, key, value = (each.flatten(0, 1) for each in (query, key, value))
    mixed = attend(query, key, value, ends, ends, seq_length, seq_length)
    return mixed.view(-1, seq_length, *mixed.shape[1:])
