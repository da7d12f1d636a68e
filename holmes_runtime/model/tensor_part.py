"""The part of a parameter that a rank holds under tensor and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.tensor_parallel import TensorParallel

SPLIT_DIM = {
    "token_embedding.weight": 0,
    "attention.qkv.weight": 0,
    "attention.qkv.bias": 0,
    "attention.projection.weight": 1,
    "mlp.gate.weight": 0,
    "mlp.up.weight": 0,
    "mlp.up.bias": 0,
    "mlp.down.weight": 1,
    "experts.gate.weight": 1,
    "experts.up.weight": 1,
    "experts.down.weight": 2,
    "head.weight": 0,
    "query_lora.b": 0,
    "key_lora.b": 0,
    "value_lora.b": 0,
    "qkv_lora.b": 0,
    "projection_lora.a": 1,
    "gate_lora.b": 0,
    "up_lora.b": 0,
    "down_lora.a": 1,
}
"""The dimension along which tensor parallelism splits a parameter, by the end of its name. Others are not split."""
EXPERT_MATRICES = tuple(name for name in SPLIT_DIM if name.startswith("experts."))
"""The ends of names of parameters that have one matrix for each expert, in dimension 0."""


@dataclass(frozen=True)
class TensorPart:
    """The part of a parameter that a rank holds: a box of `shape` at `offset` in the whole of `global_shape`."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """True if the rank holds the whole parameter."""
        return self.shape == self.global_shape

    def of(self, whole: Tensor) -> Tensor:
        """Return a view of this part of `whole` (global_shape)."""
        return whole[tuple(slice(start, start + size) for start, size in zip(self.offset, self.shape, strict=True))]


def part_of(
    name: str, global_shape: tuple[int, ...], tp: TensorParallel, ep: ExpertParallel = ALL_EXPERTS
) -> TensorPart:
    """Return the part of parameter `name` that this rank of `tp` and `ep` holds."""
    offset, shape = [0] * len(global_shape), list(global_shape)
    split = split_dim(name)
    if split is not None:
        own = tp.part(global_shape[split])
        offset[split], shape[split] = own.start, len(own)
    if has_experts(name):
        experts = ep.part(global_shape[0])
        offset[0], shape[0] = experts.start, len(experts)
    return TensorPart(global_shape, tuple(offset), tuple(shape))


def has_experts(name: str) -> bool:
    """Return True if parameter `name` has one matrix for each expert of a layer."""
    return name.endswith(EXPERT_MATRICES)


def split_dim(name: str) -> int | None:
    """Return the dimension along which tensor parallelism splits parameter `name`; None if it is not split."""
    return next((dim for end, dim in SPLIT_DIM.items() if name.endswith(end)), None)
