"""One rank that opens the groups of two replicas on GPUs, and prints how that ended; torchrun's variables are set."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from holmes_runtime.comm import process_groups
from holmes_runtime.trial import Trial
from tests.runtime.launched_runs import TINY_LLAMA


def main() -> None:
    """Planned on InfiniBand, which this machine need not have."""
    config = Trial(TINY_LLAMA, "cuda", "fp32", threads=1, micro_batch_size=1, dp=2).config()
    config = replace(config, groups=tuple(replace(group, net_name="IB") for group in config.groups))
    rank = int(os.environ["RANK"])
    print(f"torch sees {torch.cuda.device_count()} GPU", flush=True)
    process_groups.connect(config, rank, config.world_size)
    try:
        process_groups.open_groups(config, rank, torch.device("cuda", 0))
    except RuntimeError as error:
        print(f"refused: {error}", flush=True)
    else:
        print("opened", flush=True)
    os._exit(0)  # the end of a process group that never was would wait for its GPU


if __name__ == "__main__":
    main()
