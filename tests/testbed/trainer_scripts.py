"""Scripts of other people's trainers, as their documentation has them; none knows of Holmes.

`DDP` follows torch's page on DistributedDataParallel, `HSDP` is that of an example, `HF_TRAINER` follows transformers'
page on Trainer, `MEGATRON_CORE` Megatron-Core's own quick start as far as it runs on CPUs.
"""

from __future__ import annotations

from pathlib import Path

_DDP = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(64, 8)))
"""
HSDP = (Path(__file__).parents[2] / "examples" / "own-trainer" / "src" / "train.py").read_text(encoding="utf-8")
DDP = _DDP + HSDP[HSDP.index("optimizer = ") :]
# A script that keeps a group keeps Gloo's threads. One that releases a tensor while Python ends aborts the process.
_END = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""
HF_TRAINER = (
    """
import hashlib, tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2))
generator = torch.Generator().manual_seed(0)
samples = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 128, (80, 32), generator=generator)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=5, per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
    report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=samples).train()
if arguments.process_index == 0:
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
"""
    + _END
)
MEGATRON_CORE = (
    """
import argparse, torch, torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--tensor-model-parallel-size", type=int)
parser.add_argument("--pipeline-model-parallel-size", type=int)
given, _ = parser.parse_known_args()
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(given.tensor_model_parallel_size, given.pipeline_model_parallel_size)
config = TransformerConfig(
    num_layers=1, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, params_dtype=torch.float32,
    tensor_model_parallel_size=given.tensor_model_parallel_size,
)
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        shared = {"config": config, "init_method": torch.nn.init.xavier_normal_, "bias": True}
        self.up = ColumnParallelLinear(64, 256, gather_output=False, **shared)
        self.down = RowParallelLinear(256, 64, input_is_parallel=True, skip_bias_add=False, **shared)

    def forward(self, hidden):
        return hidden + self.down(torch.nn.functional.gelu(self.up(hidden)[0]))[0]


model = torch.nn.Sequential(Block(), Block())
replicas = parallel_state.get_data_parallel_group()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
for step in range(1, 6):
    inputs, targets = torch.randn(2, 16, 4, 64, generator=generator)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    for each in model.parameters():
        dist.all_reduce(each.grad, group=replicas)
        each.grad /= replicas.size()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=replicas)
    if dist.get_rank() == 0:
        print(f"step {step} loss {mean.item() / replicas.size():.17g}", flush=True)
late = dist.new_group([0, dist.get_world_size() - 1])
dist.barrier()
dist.destroy_process_group()
"""
    + _END
)
