"""FSDP2 on a mesh of two dimensions, as torch's page on fully_shard has it: train.py REPLICATE SHARD."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
sizes = int(sys.argv[1]), int(sys.argv[2])
override = {"shard": "gloo"}
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"), backend_override=override)
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, 6):
    inputs = torch.randn(16, 64, generator=generator)
    targets = torch.randint(0, 8, (16,), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"step {step} loss {mean.item() / dist.get_world_size():.17g}", flush=True)
late = dist.new_group([0, dist.get_world_size() - 1])  # made after training began, as some scripts do
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # fully_shard keeps Gloo's threads: one that lets go of a tensor while Python ends aborts the process
