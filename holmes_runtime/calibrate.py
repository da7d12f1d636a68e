"""`python -m holmes_runtime.calibrate ...`: measures how fast this machine computes one layer; prints a JSON line."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from holmes_runtime.config.model_shape import ModelShape, layer_flops
from holmes_runtime.model.decoder import Block, make_rotation
from holmes_runtime.model.tensor_parallel import ALONE


@dataclass(frozen=True)
class LayerSpeed:
    """Speed of one layer, forward and backward, on one micro-batch: medians over `repetitions`."""

    flops_per_s: float
    forward_s: float
    backward_s: float
    flops: float
    repetitions: int
    threads: int
    device: str


def calibrate(block: nn.Module, hidden: Tensor, rotation: Tensor | None, flops: float, seconds: float) -> LayerSpeed:
    """Times `block` on hidden (micro_batch_size, seq_length, hidden_size) for about `seconds`, after one warm-up."""
    _time_once(block, hidden, rotation)
    times: list[tuple[float, float]] = []
    stop_s = time.monotonic() + seconds
    while not times or time.monotonic() < stop_s:
        times.append(_time_once(block, hidden, rotation))
    forward_s = sorted(forward for forward, _ in times)[len(times) // 2]
    backward_s = sorted(backward for _, backward in times)[len(times) // 2]
    achieved = flops / (forward_s + backward_s)
    return LayerSpeed(achieved, forward_s, backward_s, flops, len(times), torch.get_num_threads(), hidden.device.type)


def _time_once(block: nn.Module, hidden: Tensor, rotation: Tensor | None) -> tuple[float, float]:
    """Seconds of one forward and of its backward."""
    start_s = _now_s(hidden.device)
    output = block(hidden, rotation)
    middle_s = _now_s(hidden.device)
    output.backward(torch.ones_like(output))
    return middle_s - start_s, _now_s(hidden.device) - middle_s


def _now_s(device: torch.device) -> float:
    """The time in seconds once the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Reads the command line, measures every slot at once and prints the slowest."""
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.calibrate", description="Time one layer.")
    parser.add_argument("--family", choices=["gpt", "llama"], default="gpt")
    for name in ("--hidden-size", "--num-heads", "--seq-length", "--micro-batch-size"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--num-kv-heads", type=int, help="as many as --num-heads if not given")
    parser.add_argument("--ffn-hidden-size", type=int, help="four times --hidden-size if not given")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, as threads_per_slot of the job")
    parser.add_argument("--slots", type=int, default=1, help="processes that share this machine and compute at once")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()

    # Forked before anything has computed: torch is imported once, and no thread is lost in the fork.
    with multiprocessing.get_context("fork").Pool(arguments.slots) as pool:
        measured = pool.map(_measure, [arguments] * arguments.slots, chunksize=1)
    print(json.dumps(asdict(min(measured, key=lambda one: one.flops_per_s))))


def _measure(arguments: argparse.Namespace) -> LayerSpeed:
    """The speed of one slot, measured in a process of its own."""
    torch.set_num_threads(arguments.threads)
    batch, seq, size = arguments.micro_batch_size, arguments.seq_length, arguments.hidden_size
    shape = ModelShape(
        arguments.family,
        num_layers=1,
        hidden_size=size,
        num_heads=arguments.num_heads,
        num_kv_heads=arguments.num_kv_heads or arguments.num_heads,
        ffn_hidden_size=arguments.ffn_hidden_size or 4 * size,
        vocab_size=1,
        seq_length=seq,
        rope_theta=10000.0,
        factory=None,
    )
    device = torch.device(arguments.device)
    block = Block(shape, ALONE, "none").to(device)
    hidden = torch.randn(batch, seq, size, device=device, requires_grad=True)
    rotation = make_rotation(shape, device) if shape.family == "llama" else None
    flops = 3 * layer_flops(shape, batch)  # a backward is two forwards
    return calibrate(block, hidden, rotation, flops, arguments.seconds)


if __name__ == "__main__":
    main()
