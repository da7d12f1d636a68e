"""The outer step: the Nesterov update of the anchor by the mean pseudo-gradient of all islands.

An island's pseudo-gradient is the anchor minus its current parameters. The mean of all is the gradient of an outer
optimizer with Nesterov momentum, which gives the next anchor. IEEE 754 defines each operation, on fp32 numbers in host
memory, so islands that take the same step have the same bits. Source: Douillard et al., DiLoCo, 2023.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.comm.wire import pack, unpack
from holmes_runtime.config.codec import OUTER_BLOCK, Codec

DIGEST_BYTES = 16


class OutgoingGradient(NamedTuple):
    """The bytes an island sends, uint8; their values on arrival, fp32 (elements,); and the rounding error."""

    packed: Tensor
    arrives: Tensor
    error: Tensor | None


def outgoing(anchor: Tensor, parameters: Tensor, error: Tensor | None, codec: Codec) -> OutgoingGradient:
    """Pack an island's part of the mean: its pseudo-gradient plus the previous `error`. All are fp32 (elements,).

    Without a codec it sends the `parameters` themselves, so that a lone island keeps every bit.
    """
    if codec == "none":
        return OutgoingGradient(pack(parameters, codec, None), parameters, error)
    assert error is not None
    return _coded((anchor - parameters).add_(error), codec)


def packed_mean(parts: Sequence[Tensor], tokens: Sequence[int], error: Tensor | None, codec: Codec) -> OutgoingGradient:
    """Pack the mean of all islands' `parts`, fp32 (elements,), plus the previous `error` of the reducing island.

    The error counts as one island's. In a mean of n it is divided by n, and the new rounding error multiplied by n.
    """
    mean = weighted_mean(parts, tokens)
    if codec == "none":
        return OutgoingGradient(pack(mean, codec, None), mean, error)
    assert error is not None
    coded = _coded(mean.add_(error / len(parts)), codec)
    assert coded.error is not None
    return coded._replace(error=coded.error * len(parts))


def _coded(values: Tensor, codec: Codec) -> OutgoingGradient:
    packed = pack(values, codec, None, OUTER_BLOCK)
    arrives = arrived(packed, codec, len(values))
    return OutgoingGradient(packed, arrives, values.sub_(arrives))


def arrived(packed: Tensor, codec: Codec, elements: int) -> Tensor:
    """Return the values of `packed` after unpacking, fp32 (elements,)."""
    return unpack(packed, codec, (elements,), torch.float32, OUTER_BLOCK)


class OuterStepResult(NamedTuple):
    """The next anchor and momentum, fp32 (elements,)."""

    anchor: Tensor
    momentum: Tensor


def outer_step(
    anchor: Tensor,
    momentum: Tensor,
    parts: Sequence[Tensor],
    tokens: Sequence[int],
    codec: Codec,
    outer_rate: float,
    factor: float,
) -> OuterStepResult:
    """Return the next anchor and momentum from the `parts` of all islands; `factor` multiplies the momentum.

    With a rate of 1 and a factor of 0, the next anchor is exactly the mean of the islands' parameters.
    """
    mean = weighted_mean(parts, tokens)
    if codec == "none":
        change = anchor - mean
    else:
        change = mean
        mean = anchor - change
    following = (momentum * factor).add_(change)
    step = (following * (outer_rate * factor)).sub_(change * (1 - outer_rate))
    return OuterStepResult(mean - step, following)


def estimated_anchor(anchor: Tensor, momentum: Tensor, parameters: Tensor, outer_rate: float, factor: float) -> Tensor:
    """Return the next anchor if all islands had the same `parameters`, fp32 (elements,)."""
    return outer_step(anchor, momentum, [parameters], [1], "none", outer_rate, factor).anchor


def weighted_mean(parts: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
    """Return the mean of `parts`, fp32 (elements,), weighted by tokens."""
    total = sum(tokens)
    mean = parts[0] * (tokens[0] / total)
    for part, count in zip(parts[1:], tokens[1:], strict=True):
        mean += part * (count / total)
    return mean


def digest_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the digest of contiguous tensors, uint8 (DIGEST_BYTES,). It shows islands that their states differ."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for values in tensors:
        hashed.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def sum_of(digests: Iterable[Tensor]) -> int:
    """Return the sum of the digests modulo 2^64."""
    return sum(int.from_bytes(bytes(digest.tolist()), "big") for digest in digests) % 2**64
