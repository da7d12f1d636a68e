"""`python -m holmes_runtime.calibrate ...`: measures how fast this machine computes one layer; prints a JSON line."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from holmes_runtime.model import Block


@dataclass(frozen=True)
class Calibration:
    """Speed of one layer, forward and backward, on one micro-batch: medians over `repetitions`."""

    flops_per_s: float
    forward_s: float
    backward_s: float
    flops: float
    repetitions: int
    threads: int
    device: str


def layer_flops(micro_batch_size: int, seq_length: int, hidden_size: int) -> float:
    """Floating-point operations of one layer's forward and backward on one micro-batch, without recomputation.

    72 b s h^2 (1 + s / (6 h)); Narayanan et al., Megatron-LM, SC 2021, equation 3, for one layer without the head
    and without the second forward of recomputation (72 instead of 96).
    """
    return 72 * micro_batch_size * seq_length * hidden_size**2 * (1 + seq_length / (6 * hidden_size))


def calibrate(block: nn.Module, hidden: Tensor, flops: float, seconds: float) -> Calibration:
    """Times `block` on hidden (micro_batch_size, seq_length, hidden_size) for about `seconds`, after one warm-up."""
    _time_once(block, hidden)
    times: list[tuple[float, float]] = []
    stop_s = time.monotonic() + seconds
    while not times or time.monotonic() < stop_s:
        times.append(_time_once(block, hidden))
    forward_s = sorted(forward for forward, _ in times)[len(times) // 2]
    backward_s = sorted(backward for _, backward in times)[len(times) // 2]
    achieved = flops / (forward_s + backward_s)
    return Calibration(achieved, forward_s, backward_s, flops, len(times), torch.get_num_threads(), hidden.device.type)


def _time_once(block: nn.Module, hidden: Tensor) -> tuple[float, float]:
    """Seconds of one forward and of its backward."""
    start_s = _now_s(hidden.device)
    output = block(hidden)
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
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.calibrate", description="Time one GPT layer.")
    for name in ("--hidden-size", "--num-heads", "--seq-length", "--micro-batch-size"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, as threads_per_slot of the job")
    parser.add_argument("--slots", type=int, default=1, help="processes that share this machine and compute at once")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()

    # Forked before anything has computed: torch is imported once, and no thread is lost in the fork.
    with multiprocessing.get_context("fork").Pool(arguments.slots) as pool:
        measured = pool.map(_measure, [arguments] * arguments.slots, chunksize=1)
    print(json.dumps(asdict(min(measured, key=lambda one: one.flops_per_s))))


def _measure(arguments: argparse.Namespace) -> Calibration:
    """The speed of one slot, measured in a process of its own."""
    torch.set_num_threads(arguments.threads)
    batch, seq, size = arguments.micro_batch_size, arguments.seq_length, arguments.hidden_size
    block = Block(size, arguments.num_heads).to(arguments.device)
    hidden = torch.randn(batch, seq, size, device=arguments.device, requires_grad=True)
    return calibrate(block, hidden, layer_flops(batch, seq, size), arguments.seconds)


if __name__ == "__main__":
    main()
