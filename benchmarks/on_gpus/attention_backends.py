"""`python -m benchmarks.on_gpus.attention_backends SIZES.json --device cuda`: each backend's time for causal attention.

SIZES.json has, by name, the batch, query heads, key-value heads, sequence length and head size. Prints one line of JSON
for each size and backend: seconds of a forward and a backward, or the error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
MAX_SCORE_BYTES = 4 * 2**30  # fp32, of the backend that keeps all of them
ROUNDS, WARM_UP = 6, 2

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def seconds_of(backend: SDPBackend | None, size: Sequence[int], device: torch.device) -> float:
    """Return the seconds of a forward and backward, by one backend or by the one that torch chooses."""
    batch, heads, kv_heads, length, head_size = size
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shapes = [(batch, each, length, head_size) for each in (heads, kv_heads, kv_heads)]
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes)
    gradient = torch.randn_like(query)
    attend = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=heads != kv_heads)
    with sdpa_kernel(backend) if backend is not None else nullcontext():
        return timed(attend, (query, key, value), gradient)[0]


def timed(attend: Attend, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[float, list[Tensor]]:
    """Return the median seconds of a forward and backward; and the result, and the gradients of `inputs`."""
    seconds, made = list[float](), list[Tensor]()
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        mixed = attend(inputs[0], inputs[1], inputs[2])
        made = [mixed.detach(), *torch.autograd.grad(mixed, inputs, gradient)]
        if gradient.device.type == "cuda":
            torch.cuda.synchronize(gradient.device)
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds[WARM_UP:]), made


def measure(name: str, size: Sequence[int], device: torch.device) -> None:
    """Print the seconds of every backend at one size."""
    batch, heads, _, length, _ = size
    for backend_name, backend in {"torch's choice": None, **BACKENDS}.items():
        line: dict[str, object] = {"name": name, "backend": backend_name}
        try:
            if backend is SDPBackend.MATH and 4 * batch * heads * length**2 > MAX_SCORE_BYTES:
                raise RuntimeError("its scores would not fit")
            line["seconds"] = seconds_of(backend, size, device)
        except RuntimeError as error:
            line["error"] = str(error).splitlines()[0][:200]
        print(json.dumps(line), flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    given = parser.parse_args()
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    for name, size in json.loads(given.sizes.read_text(encoding="utf-8")).items():
        measure(name, size, device)


if __name__ == "__main__":
    main()
