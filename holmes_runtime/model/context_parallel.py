"""Sequences split over the ranks of a context group: each rank computes an early and a late chunk of every sequence.

A sequence is cut into 2 cp chunks. Part i has chunks i and 2 cp - 1 - i, so the same number of keys precedes the
queries of each part. Every part gathers all keys and values, and each of its chunks attends to the keys up to its own
end. Gradients of keys and values are summed over the parts that attended to them.
Sources: Megatron-Core's context parallelism for the pairs of chunks; Grattafiori et al., The Llama 3 Herd of Models,
2024, section 3.3.2, for gathered keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup
from torch.nn import functional

from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.model.document_mask import causal_mask, document_mask
from holmes_runtime.model.tensor_parallel import timed_group


class Masks(NamedTuple):
    """Terms to add to the scores of the early and the late chunk, (batch or 1, 1, chunk, keys up to its end) each."""

    early: Tensor
    late: Tensor
    show_documents: bool


@dataclass(frozen=True)
class ContextParallel:
    """This rank's part of every sequence. Without a `group`, one rank has whole sequences.

    `parts` are the parts of the group's ranks, in the group's order. The group's collectives block computation, like
    a tensor group's, so both count as lap "tp" of `stopwatch`.
    """

    group: ProcessGroup | None = None
    part: int = 0
    parts: tuple[int, ...] = (0,)
    stopwatch: Stopwatch | None = None

    @property
    def size(self) -> int:
        """Number of parts of a sequence."""
        return len(self.parts)

    def take(self, values: Tensor, dim: int = 1) -> Tensor:
        """Return this part of `values`, which have a whole sequence along `dim`; unchanged if there is one part."""
        if self.size == 1:
            return values
        chunks = values.chunk(2 * self.size, dim)
        return torch.cat([chunks[chunk] for chunk in _chunks_of(self.part, self.size)], dim)

    def ends(self, chunk: int) -> tuple[int, int]:
        """Return the numbers of keys up to the ends of the early and the late chunk, each `chunk` tokens long."""
        early, late = _chunks_of(self.part, self.size)
        return (early + 1) * chunk, (late + 1) * chunk

    def causal_masks(self, seq_length: int, dtype: torch.dtype, device: torch.device | None) -> Masks | None:
        """Return the masks of joined documents; None on a GPU, whose kernels need none."""
        if self.size == 1 or (device is not None and device.type == "cuda"):
            return None
        chunk = seq_length // (2 * self.size)
        early, late = (causal_mask(chunk, end, dtype) for end in self.ends(chunk))
        return Masks(early, late, False)

    def document_masks(self, positions: Tensor, dtype: torch.dtype) -> Masks:
        """Return the masks of separate documents; positions: see `document_mask`."""
        chunk = positions.shape[1] // (2 * self.size)
        early, late = (document_mask(positions, dtype, range(end - chunk, end)) for end in self.ends(chunk))
        return Masks(early, late, True)

    # Outside of compiled code, as in tensor_parallel.py.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, masks: Masks | None, regathers: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of the early and the late chunk: (batch, seq / 2 cp, heads * head_size) each.

        query: (batch, seq / cp, heads, head_size), key and value: (.., kv heads, head_size). With `regathers`, gathered
        keys and values are not kept but gathered again in the backward.
        """
        # On GPUs the fused kernel that takes masks does not support groups of heads.
        repeats = query.shape[2] // key.shape[2] if masks is not None and masks.show_documents else 1
        whole = _GatherKeys.apply(key, value, self, repeats)  # type: ignore[no-untyped-call]
        if not regathers:
            query = query.contiguous()  # a GPT's query is a view of a tensor with keys and values, which would be kept
        chunks = query.transpose(1, 2).chunk(2, 2)
        early, late = (None, None) if masks is None else masks[:2]
        with _regather_in_backward(whole[0], key, value, self, repeats) if regathers else nullcontext():
            first = attend_up_to_end(chunks[0], whole[0], whole[1], early)
            return first, attend_up_to_end(chunks[1], whole[2], whole[3], late)


WHOLE = ContextParallel()


def _chunks_of(part: int, parts: int) -> tuple[int, int]:
    """Return the numbers of the early and the late chunk of `part`."""
    return part, 2 * parts - 1 - part


def attend_up_to_end(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention to keys and values up to the end of the queries: (batch, chunk, heads * head_size).

    query: (batch, heads, chunk, head_size); key, value: (batch, keys, kv heads, head_size).
    """
    key, value, seen = key.transpose(1, 2), value.transpose(1, 2), mask
    if seen is None:
        from torch.nn.attention.bias import causal_lower_right  # imports the compiler, so only where it is used

        seen = causal_lower_right(query.shape[2], key.shape[2])
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, enable_gqa=query.shape[1] > key.shape[1]
    )
    return mixed.transpose(1, 2).flatten(2)


def _gather_whole(key: Tensor, value: Tensor, cp: ContextParallel, repeats: int) -> Tensor:
    """Return the keys and values of all parts in sequence order: (2, batch, seq, kv heads * repeats, head_size).

    key, value: this part's (batch, seq / cp, kv heads, head_size).
    """
    me, chunk = cp.parts.index(cp.part), key.shape[1] // 2
    parts = key.new_empty(cp.size, 2, *key.shape)
    parts[me, 0], parts[me, 1] = key, value
    with timed_group(cp) as group:
        start_all_gather(parts.view(-1), group)()
    batch, seq, heads, size = key.shape
    whole = key.new_empty(2, batch, seq * cp.size, heads, repeats, size)
    for member, part in enumerate(cp.parts):
        for at, number in enumerate(_chunks_of(part, cp.size)):
            source = parts[member, :, :, at * chunk : (at + 1) * chunk]
            whole[:, :, number * chunk : (number + 1) * chunk] = source.unsqueeze(4)
    return whole.flatten(3, 4)


def _scatter_sum(gradients: Sequence[Tensor], cp: ContextParallel, repeats: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of this part's key and value, summed over all parts.

    gradients: of the keys and values up to the end of the early chunk, then of the late chunk.
    """
    summed = [
        each.view(*each.shape[:2], -1, repeats, each.shape[3]).sum(3) if repeats > 1 else each for each in gradients
    ]
    batch, end, heads, size = summed[2].shape
    chunk = end // (_chunks_of(cp.part, cp.size)[1] + 1)
    parts = summed[2].new_zeros(cp.size, 2, batch, 2 * chunk, heads, size)
    for member, part in enumerate(cp.parts):
        for at, number in enumerate(_chunks_of(part, cp.size)):
            rows = slice(number * chunk, (number + 1) * chunk)
            for kind in range(2):
                to = parts[member, kind, :, at * chunk : (at + 1) * chunk]
                for each in (summed[kind], summed[2 + kind]):
                    if rows.stop <= each.shape[1]:
                        to += each[:, rows]
    with timed_group(cp) as group:
        own = start_reduce_scatter(parts.view(-1), group)().view(2, batch, 2 * chunk, heads, size)
    return own[0], own[1]


class _GatherKeys(torch.autograd.Function):
    """The gathering of keys and values. The results are keys and values up to the early chunk's end and the late's.

    All four share one storage, so kernels that keep them keep it once.
    """

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, cp: ContextParallel, repeats: int) -> tuple[Tensor, ...]:
        """key, value: (batch, seq / cp, kv heads, head_size); results: (batch, up to seq, heads, head_size)."""
        ctx.cp, ctx.repeats = cp, repeats
        whole = _gather_whole(key, value, cp, repeats)
        early, late = cp.ends(key.shape[1] // 2)
        return whole[0, :, :early], whole[1, :, :early], whole[0, :, :late], whole[1, :, :late]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *_scatter_sum(gradients, ctx.cp, ctx.repeats), None, None


class _KeptPart(NamedTuple):
    """A part of the storage of gathered keys and values."""

    keys: _RegatheredKeys
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class _RegatheredKeys:
    """Gathered keys and values that are freed after the forward and gathered once more for all uses in the backward."""

    def __init__(self, gather: Callable[[], Tensor]) -> None:
        self._gather = gather
        self._whole: Tensor | None = None
        self.uses = self._left = 0

    def take(self) -> Tensor:
        """Return the keys and values for one use. The last use frees them."""
        if self._whole is None:
            self._whole, self._left = self._gather(), self.uses
        whole, self._left = self._whole, self._left - 1
        if not self._left:
            self._whole = None
        return whole


def _regather_in_backward(
    gathered: Tensor, key: Tensor, value: Tensor, cp: ContextParallel, repeats: int
) -> AbstractContextManager[object]:
    """Make kernels inside keep this part's `key` and `value` instead of the storage of `gathered`."""
    if not torch.is_grad_enabled():
        return nullcontext()
    address, own = gathered.untyped_storage().data_ptr(), (key.detach(), value.detach())
    keys = _RegatheredKeys(lambda: _gather_whole(*own, cp, repeats))

    def pack(saved: Tensor) -> Tensor | _KeptPart:
        if saved.untyped_storage().data_ptr() != address:
            return saved
        keys.uses += 1
        return _KeptPart(keys, saved.shape, saved.stride(), int(saved.storage_offset()))

    def unpack(packed: Tensor | _KeptPart) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch.no_grad():
            return packed.keys.take().as_strided(packed.shape, packed.stride, packed.offset)

    return saved_tensors_hooks(pack, unpack)
