"""The cost of `holmes doctor` to a run that it watches: steps of two Gloo ranks with and without, and its CPU seconds.

Each rank waits 50 ms in a step, as for a GPU, and then computes and exchanges gradients. Blocks of 100 steps alternate
with blocks during which the script that the doctor sends to a host runs there; its six snapshots, over a minute by
default, take one block. `python -m benchmarks.doctor_overhead` prints the ratio of the median steps, of a watched block
to the mean of the blocks before and after; with the range that holds the median of such ratios with 95%. CPU seconds
are the script's and the whole command's, for one watch of any length.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import print_figure
from prober.running.watch_script import watch_script

ROUNDS, BLOCK_S, START_S = 20, 6, 15.0
DEFAULT_WATCH_S = 60
TRAINING = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(512, 512))
while True:
    began = time.time()
    time.sleep(0.05)
    model(torch.ones(64, 512)).sum().backward()
    if dist.get_rank() == 0:
        print(began, time.time() - began, flush=True)
"""


def main() -> None:
    """Train, watch every second block, and compare the steps; then count CPU seconds of single watches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING, encoding="utf-8")
        (folder / "hosts.yaml").write_text("transport: local\nhosts: [here]\n", encoding="utf-8")
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with (folder / "steps").open("w", encoding="utf-8") as steps:
            training = subprocess.Popen(words, cwd=folder, env=variables, stdout=steps)
            try:
                time.sleep(START_S)
                blocks = [_block(is_watched=bool(number % 2)) for number in range(2 * ROUNDS + 1)]
                script_s = _cpu_s(["sh", "-s"], watch_script(BLOCK_S, None, "end"))
                doctor = ["-m", "holmes_cli", "doctor", str(folder / "hosts.yaml"), "--seconds", str(BLOCK_S), "--json"]
                command_s = _cpu_s([sys.executable, *doctor])
            finally:
                training.terminate()
                training.wait()
        lines = (line.split() for line in (folder / "steps").read_text(encoding="utf-8").splitlines())
        measured = [(float(words[0]), float(words[1])) for words in lines if len(words) == 2]
    medians = [statistics.median([took for at, took in measured if began <= at < ended]) for began, ended in blocks]
    ratios = [2 * medians[at] / (medians[at - 1] + medians[at + 1]) for at in range(1, len(medians), 2)]
    low, high = _range_of_median(ratios)
    alone_ms = statistics.median(medians[::2]) * 1e3
    print(f"median step alone {alone_ms:.2f} ms, {len(measured)} steps in {len(blocks)} blocks")
    print(f"ratio of {ROUNDS} watched blocks {statistics.median(ratios):.4f}, 95% within {low:.4f} to {high:.4f}")
    print_figure("step_with_watch", statistics.median(ratios), "x")
    print_figure("watch_script_cpu", script_s, "s")
    print_figure("doctor_command_cpu", command_s - script_s, "s")
    print_figure("watch_script_core_share", 100 * script_s / DEFAULT_WATCH_S, "%")


def _block(is_watched: bool) -> tuple[float, float]:
    """Let a block pass, and return when it began and ended."""
    began = time.time()
    if is_watched:
        _cpu_s(["sh", "-s"], watch_script(BLOCK_S, None, "end"))
    else:
        time.sleep(BLOCK_S)
    return began, time.time()


def _cpu_s(words: Sequence[str], text: str = "") -> float:
    """Return the CPU seconds that the command and what it started took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, input=text.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _range_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the values between which the median lies with 95%: by ranks, whatever the distribution."""
    ordered = sorted(values)
    out = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    return ordered[out], ordered[-1 - out]


if __name__ == "__main__":
    main()
