"""`python -m benchmarks.on_gpus.masked_attention SIZES.json`: attention with a mask, and by kernels that need none.

SIZES.json has, by name, the batch, query heads, key-value heads, sequence length and head size. Attention inside
documents is given their ends, and attention of the last quarter of a sequence, as ranks that share one compute it,
where its queries end. Prints one line of JSON for each size and kernel: seconds of a forward and backward by the mask
and without, and the largest difference of a result or gradient, over the largest value there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.on_gpus.attention_backends import Attend, timed
from benchmarks.on_gpus.shape_worker import DOCUMENT_TOKENS
from holmes_runtime.model.context_parallel import attend_up_to_end
from holmes_runtime.model.document_mask import attend_documents, causal_mask, document_ends, document_mask


def by_mask(mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as the trainer does where no kernel takes ends of documents."""
    repeats = query.shape[2] // key.shape[2]
    key, value = (each.repeat_interleave(repeats, 2).transpose(1, 2) for each in (key, value))
    return scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=mask).transpose(1, 2)


def documents(size: Sequence[int], device: torch.device) -> tuple[Attend, Attend]:
    """Return attention inside documents by a mask and by their ends."""
    batch, _, _, length, _ = size
    positions = (torch.arange(batch * length, device=device).view(batch, length) + 100) % DOCUMENT_TOKENS
    positions[:, 0] = 0  # a sample begins a document of its own
    ends = document_ends(positions, int((positions == 0).sum()))
    mask = document_mask(positions, torch.bfloat16)
    return partial(by_mask, mask), lambda query, key, value: attend_documents(query, key, value, ends)


def last_quarter(size: Sequence[int], device: torch.device) -> tuple[Attend, Attend]:
    """Return attention of the last quarter of a sequence to all of it by a mask and without."""
    length = size[3]
    mask = causal_mask(length // 4, length, torch.bfloat16).to(device)

    def without(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_up_to_end(query.transpose(1, 2), key, value, None).view_as(query)

    return partial(by_mask, mask), without


def compare(size: Sequence[int], queries: int, ways: tuple[Attend, Attend], device: torch.device) -> dict[str, float]:
    """Return the seconds of both ways and the largest difference, for the last `queries` of a sequence."""
    batch, heads, kv_heads, length, head_size = size
    generator = torch.Generator(device).manual_seed(0)
    shapes = [(batch, queries, heads), (batch, length, kv_heads), (batch, length, kv_heads), (batch, queries, heads)]
    query, key, value, gradient = (
        torch.randn(*shape, head_size, device=device, dtype=torch.bfloat16, generator=generator) for shape in shapes
    )
    inputs = [each.requires_grad_() for each in (query, key, value)]
    (mask_s, by), (kernel_s, without) = (timed(way, inputs, gradient) for way in ways)
    pairs = ((one.float(), other.float()) for one, other in zip(without, by, strict=True))
    differences = [((one - other).abs().max() / other.abs().max()).item() for one, other in pairs]
    return {"mask": mask_s, "kernel": kernel_s, "difference": max(differences)}


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda", 0)
    for name, size in json.loads(given.sizes.read_text(encoding="utf-8")).items():
        for kind, make, queries in ("documents", documents, size[3]), ("last quarter", last_quarter, size[3] // 4):
            found = compare(size, queries, make(size, device), device)
            print(json.dumps({"name": f"{name} {kind}", **found}), flush=True)


if __name__ == "__main__":
    main()
