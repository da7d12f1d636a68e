"""FSDP2 that trains as an island: train.py STEPS SAMPLES REPLICATE SHARD, with the samples that a rank takes in a step.

The lines with `island` are all that islands need. By torchrun alone the script trains as one.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holmes_runtime.outer.island import Island

steps, samples, *sizes = map(int, sys.argv[1:])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

island = Island(model.named_parameters(), steps)
step = island.begin(0)
generator = torch.Generator().manual_seed(dist.get_rank() * island.count + island.number)  # samples of its own
teacher = torch.Generator().manual_seed(1)
wanted = torch.randn(64, 8, generator=teacher)
while step < steps:
    inputs = torch.randn(samples, 64, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), (inputs @ wanted).argmax(1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"step {step + 1} loss {mean.item() / dist.get_world_size():.17g}", flush=True)
    step = island.step()
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # fully_shard keeps Gloo's threads: one that lets go of a tensor while Python ends aborts the process
