"""`python -m benchmarks.codec_speed`: processor time of packing and unpacking a message, by codec, type and size.

One thread; the least of several repetitions, in milliseconds per MiB of the message as it is before packing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.figure import print_figure
from holmes_runtime.comm.wire import Direction, MessageName, pack, unpack
from holmes_runtime.config.codec import Codec

MIB = 2**20
SIZES_MIB = (0.5, 1, 2, 4, 8, 16)
REPETITIONS = 15
CODECS: dict[torch.dtype, tuple[Codec, ...]] = {
    torch.float32: ("bf16", "int8", "int4"),
    torch.bfloat16: ("int8", "int4"),
}
NAME = MessageName(seed=1, direction=Direction.FORWARD, step=1, microbatch=1, edge=0, shard=0)


def least_ms(work: Callable[[], torch.Tensor]) -> float:
    """Milliseconds of processor time of `work` at its best, after one run to warm up."""
    times = []
    for _ in range(1 + REPETITIONS):
        started_s = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - started_s))
    return min(times[1:])


def measure(codec: Codec, values: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of packing and of unpacking `values`."""
    packed = pack(values, codec, NAME)
    return (
        least_ms(lambda: pack(values, codec, NAME)),
        least_ms(lambda: unpack(packed, codec, values.shape, values.dtype)),
    )


def main() -> None:
    """Prints every size, and the worst of each codec and type as figures."""
    torch.set_num_threads(1)
    for dtype, codecs in CODECS.items():
        kind = str(dtype).removeprefix("torch.")
        for codec in codecs:
            worst = [0.0, 0.0]
            for size in SIZES_MIB:
                values = torch.randn(int(size * MIB) // dtype.itemsize).to(dtype)
                taken = [ms / size for ms in measure(codec, values)]
                worst = [max(pair) for pair in zip(worst, taken, strict=True)]
                print(f"{kind} {codec} {size} MiB: pack {taken[0]:.3f}, unpack {taken[1]:.3f} ms/MiB", flush=True)
            for what, most in zip(("pack", "unpack"), worst, strict=True):
                print_figure(f"slow_links.{what}_ms_per_mib.{kind}.{codec}", most, "ms/MiB")


if __name__ == "__main__":
    main()
