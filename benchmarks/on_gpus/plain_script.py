"""A script as users have them, which knows nothing of Holmes: DDP on two ranks, and a group of its own."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Print the loss of each step from rank 0."""
    on_gpu = sys.argv[1] == "cuda"
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    eager = {"device_id": device} if on_gpu and os.environ.get("EAGER") else {}
    dist.init_process_group("nccl" if on_gpu else "gloo", **eager)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).to(device))
    own = dist.new_group([0, 1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1, 5):
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(8, 256).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=own)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
