"""The cost of `holmes doctor` to a run that it watches: median steps of two Gloo ranks, with and without, alternating.

`python -m benchmarks.doctor_overhead` prints the ratio of the medians.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import print_figure

ROUNDS, WATCH_S, START_S = 6, 10, 15.0
TRAINING = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(512, 512))
while True:
    began = time.time()
    model(torch.ones(64, 512)).sum().backward()
    if dist.get_rank() == 0:
        print(began, time.time() - began, flush=True)
"""


def main() -> None:
    """Train, watch every second round, and compare the steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING, encoding="utf-8")
        (folder / "hosts.yaml").write_text("transport: local\nhosts: [here]\n", encoding="utf-8")
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        watch = [sys.executable, "-m", "holmes_cli", "doctor", str(folder / "hosts.yaml"), "--seconds", str(WATCH_S)]
        with (folder / "steps").open("w", encoding="utf-8") as steps:
            training = subprocess.Popen(words, cwd=folder, env=variables, stdout=steps)
            time.sleep(START_S)
            rounds = []
            for number in range(2 * ROUNDS):
                began = time.time()
                if number % 2:
                    subprocess.run([*watch, "--json"], stdout=subprocess.DEVNULL, check=False)
                else:
                    time.sleep(WATCH_S)
                rounds.append((began, time.time()))
            training.terminate()
            training.wait()
        lines = (line.split() for line in (folder / "steps").read_text(encoding="utf-8").splitlines())
        measured = [(float(words[0]), float(words[1])) for words in lines if len(words) == 2]
    medians = [statistics.median([took for at, took in measured if began <= at < ended]) for began, ended in rounds]
    ratios = [watched / alone for alone, watched in itertools.pairwise(medians)][::2]
    print(f"median step alone {statistics.median(medians[::2]) * 1e3:.2f} ms, rounds {ratios}")
    print_figure("step_with_watch", statistics.median(ratios), "x")


if __name__ == "__main__":
    main()
