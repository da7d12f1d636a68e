"""`python -m benchmarks.gradient_add`: bytes that adding a micro-batch's gradient to its sum takes through memory.

Counted on the operators that torch dispatches in the backward of a layer, matrix products and views apart: each reads
its tensors and writes its result once, as a kernel on a GPU does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.figure import print_figure
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_settings import OptimizerSettings
from holmes_runtime.parallel.zero1 import Zero1

INPUTS, OUTPUTS = 256, 128
SETTINGS = OptimizerSettings(1e-4, 0.0, 0, "constant", 0.0, 0.9, 0.95, None)


class MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what aten's operators read and write, but matrix products and views; `operators` are their names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_bytes, self.operators = 0, list[str]()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs the operator and counts it."""
        result = operator(*args, **(kwargs or {}))
        if operator.namespace == "aten" and not operator.is_view and operator is not torch.ops.aten.mm.default:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.total_bytes += sum(tensor.nbytes for tensor in tensors)
            self.operators.append(str(operator))
        return result


def gradient_adds(value_type: torch.dtype) -> tuple[MovedBytes, MovedBytes]:
    """Return what moves when the first gradient of one matrix becomes the sum, and when the second joins it."""
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=value_type)
    zero1 = Zero1([layer], {}, SETTINGS, RankGroups(), num_microbatches=2)
    zero1.start()
    first, second = MovedBytes(), MovedBytes()
    for moved in (first, second):
        output = layer(torch.ones(2, INPUTS, dtype=value_type))
        gradient = torch.ones_like(output)
        with moved:
            torch.autograd.backward(output, gradient)
    return first, second


def main() -> None:
    """Prints both precisions' bytes a parameter as figures."""
    for value_type in (torch.bfloat16, torch.float32):
        name = str(value_type).removeprefix("torch.")
        each = gradient_adds(value_type)[1].total_bytes / (INPUTS * OUTPUTS)
        print_figure(f"runtime.bytes_per_gradient_add.{name}", each, "B")


if __name__ == "__main__":
    main()
