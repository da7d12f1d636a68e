"""The steps of `make test-gpu`, in the order in which they are of use: the runs, the measurements, the bars.

The small ones train by Holmes' own three commands on this machine, the shapes by its trainer in one process. On CPUs
the same steps run with tiny shapes, and nothing is judged that only a GPU can show.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from benchmarks.on_gpus.bench import Bench
from benchmarks.on_gpus.hooked_ranks import run_hooked
from benchmarks.on_gpus.machine import Device
from benchmarks.on_gpus.one_rank_group import settings
from benchmarks.on_gpus.product_run import ProductRun, largest_difference, last_words
from benchmarks.on_gpus.report import Failed, Figure, Seen, Skipped
from benchmarks.on_gpus.scale import ONE_RANK
from benchmarks.on_gpus.shape_steps import (
    MAX_OFF,
    compared_with_calibration,
    fp8,
    offload,
    plain_torch,
    profiled,
    profiled_shape,
    shape_plan,
    shapes,
)
from holmes_runtime.config.model_shape import attention_flops
from launcher.prepare.prepare import run_config_of

FP32_TOLERANCE = 1e-3  # of losses, relative: kernels and orders of sums differ
# Three to four times what bf16 makes of the small job's losses on CPUs, against fp32: 2.1e-3 to 2.8e-3 over four seeds.
# Measured by benchmarks/on_gpus/loss_spread.py on 2026-11-26 with torch 2.13.
BF16_TOLERANCE = 1e-2
# Batch, query heads, key-value heads, sequence length and head size.
MASK_SIZES = {"2k": (4, 16, 16, 2048, 128), "8k grouped": (2, 32, 8, 8192, 128), "32k": (1, 16, 8, 32768, 128)}


def single(bench: Bench) -> list[Figure]:
    """Train in fp32 and bf16, eager and compiled, against the same job in fp32 on this machine's CPUs."""
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    bench.train("reference", device="cpu", threads_per_slot=threads, parallel=ONE_RANK)
    bench.train("fp32", compile=False, parallel=ONE_RANK)
    bench.train("bf16", precision="bf16", compile=False, parallel=ONE_RANK)
    names, notes = ["bf16"], []
    if bench.compiles:
        bench.train("bf16-compiled", precision="bf16", compile=bench.device == "cuda", parallel=ONE_RANK)
        names.append("bf16-compiled")
    else:
        notes.append("bf16-compiled: skipped, see the machine's not_compiled")
    exact = bench.agree(["fp32"], "reference", FP32_TOLERANCE)
    return Seen([*exact, *bench.agree(names, "reference", BF16_TOLERANCE)], notes)


def memory(bench: Bench) -> list[Figure]:
    """Launch a Llama of 1.3 B as Holmes trains it by itself: memory and step against the plan's."""
    changes = dict(bench.scale.large)
    if not bench.compiles:
        changes["compile"] = False
    return _against_plan(bench, bench.train("llama-1.3b", **changes))


def _against_plan(bench: Bench, run: ProductRun) -> list[Figure]:
    planned_bytes, predicted_s = max(run.plan.prediction.memory_bytes), run.plan.prediction.step_s
    figures = [
        Figure("MFU", run.mfu, ""),
        Figure("compute a rank", run.tflops_per_s, "TFLOP/s"),
        Figure("step", run.step_s, "s"),
        Figure("step over its prediction", run.step_s / predicted_s, ""),
        Figure("reserved memory", run.memory_bytes / 2**30, "GiB"),
        Figure("reserved memory over the plan's", run.memory_bytes / planned_bytes, ""),
    ]
    if bench.device == "cuda" and run.memory_bytes > planned_bytes:
        raise Failed(f"{run.memory_bytes} bytes were reserved, the plan counts {planned_bytes}", figures)
    if bench.device == "cuda" and not 1 / MAX_OFF < run.step_s / predicted_s < MAX_OFF:
        raise Failed(f"a step takes {run.step_s:.3g} s, {predicted_s:.3g} s were predicted", figures)
    return figures


def calibrated(bench: Bench) -> list[Figure]:
    """Measure the speed for one of the shapes by `holmes_runtime.calibrate`, and predict its step by that."""
    plan = shape_plan(bench, profiled_shape(bench))
    model = run_config_of(plan, "calibrate").model
    numbers = {
        "--hidden-size": model.hidden_size,
        "--num-heads": model.num_heads,
        "--ffn-hidden-size": model.ffn_size,
        "--seq-length": model.seq_length,
        "--vocab-size": model.vocab_size,
        "--job-layers": model.num_layers,
        "--micro-batch-size": plan.micro_batch_size,
        "--rounds": 1,
        "--seconds": bench.scale.calibrate_s,
    }
    options = [str(word) for option in numbers.items() for word in option]
    compiles = "--compile" if plan.job.compiles else "--no-compile"
    output = _module("holmes_runtime.calibrate", "--family", model.family, "--device", bench.device, compiles, *options)
    flops_per_s = float(yaml.safe_load(output)["compute"]["flops_per_s"])
    figures = [Figure("calibrate", flops_per_s / 1e12, "TFLOP/s")]
    try:
        return figures + compared_with_calibration(bench, flops_per_s)
    except Skipped as error:
        return Seen(figures, [str(error)])


def attention(bench: Bench) -> list[Figure]:
    """Time each backend of attention at the sizes of the shapes, forward and backward."""
    sizes, flops, notes = {}, {}, []
    for name in bench.scale.shapes:
        plan = shape_plan(bench, name)
        model = plan.job.model
        sizes[name] = (plan.micro_batch_size, model.num_heads, model.kv_heads, model.seq_length, model.head_size)
        flops[name] = 3 * attention_flops(model, plan.micro_batch_size)
    file = bench.folder / "attention.json"
    file.write_text(json.dumps(sizes), encoding="utf-8")
    figures = []
    for line in map(
        json.loads, _module("benchmarks.on_gpus.attention_backends", str(file), "--device", bench.device).splitlines()
    ):
        name = f"{line['name']}: {line['backend']}"
        if "error" in line:
            notes.append(f"{name}: {line['error']}")
        else:
            figures.append(Figure(name, flops[line["name"]] / line["seconds"] / 1e12, "TFLOP/s"))
    notes.append("the count is 12 b s^2 q, also above the diagonal, as in the plan")
    return Seen(figures, notes)


def masks(bench: Bench) -> list[Figure]:
    """Time attention inside documents, and of a part of a sequence, by a mask and by the kernel that needs none.

    Raises:
        Failed: The two differ by more than bf16 makes.
    """
    if bench.device == "cpu":
        raise Skipped("these kernels are for GPUs")
    file = bench.folder / "masks.json"
    file.write_text(json.dumps(MASK_SIZES), encoding="utf-8")
    figures, wrong = [], []
    for line in map(json.loads, _module("benchmarks.on_gpus.masked_attention", str(file)).splitlines()):
        figures += [Figure(f"{line['name']}: by the {way}", line[way] * 1e3, "ms") for way in ("mask", "kernel")]
        figures.append(Figure(f"{line['name']}: differs by", line["difference"], ""))
        if not line["difference"] <= BF16_TOLERANCE:
            wrong.append(f"{line['name']}: {line['difference']:.2g}, {BF16_TOLERANCE:g} are allowed")
    if wrong:
        raise Failed("; ".join(wrong), figures)
    return figures


def nccl_settings(bench: Bench) -> list[Figure]:
    """Open a communicator of one rank under every variable and option that a plan may set."""
    seen = json.loads(_module("benchmarks.on_gpus.one_rank_group", "--device", bench.device).splitlines()[-1])
    figures = [Figure("variables set", len(settings()), ""), Figure("named by NCCL's log", len(seen["named"]), "")]
    refused = [line for line in seen["warnings"] if any(name in line for name in settings())]
    if seen["mean"] != 1.0:
        raise Failed(f"the sum over the group is off: {seen['mean']}", figures, seen["warnings"])
    if refused:
        raise Failed(f"NCCL refuses a variable: {'; '.join(refused)}", figures, seen["warnings"])
    return Seen(figures, [f"NCCL warns: {line}" for line in seen["warnings"]])


def shared_gpu(bench: Bench) -> list[Figure]:
    """Two ranks of a pipeline on one GPU, messages through host memory, against one rank with both stages."""
    alone, together = (_ranks_on_one_gpu(bench.device, ranks) for ranks in (1, 2))
    differs_by = largest_difference(together, alone)
    if not differs_by <= FP32_TOLERANCE:
        raise Failed(f"losses differ by {differs_by:.2g}, {FP32_TOLERANCE:g} are allowed: {alone} and {together}")
    return [Figure("two ranks: loss differs by", differs_by, "")]


def trainer_hook(bench: Bench) -> list[Figure]:
    """Run a script of DDP under the hook: its losses are the bare script's, and NCCL takes the transport it is told."""
    on_gpu = bench.device == "cuda"
    bare = run_hooked(bench.folder / "bare", bench.device, None, hooked=False)
    notes = []
    for name, eager in {"hooked": False, "hooked-eager": True}.items():
        hooked = run_hooked(bench.folder / name, bench.device, "Socket" if on_gpu else None, eager=eager)
        if any(hooked.exit_codes) or hooked.losses != bare.losses or len(hooked.losses) < 4:
            raise Failed(f"{name}: {hooked.exit_codes}, {hooked.losses}, bare {bare.losses}: {hooked.errors}")
        if on_gpu and hooked.networks != ("Socket",):
            raise Failed(f"{name}: NCCL's log names {hooked.networks}")
        notes.append(f"{name}: {[(group['name'], group['net_name'], group['interface']) for group in hooked.groups]}")
    figures = [Figure("groups seen", len(hooked.groups), "")]
    if on_gpu:
        absent = run_hooked(bench.folder / "absent", bench.device, "AWS Libfabric")
        if not all(absent.exit_codes):
            raise Failed("NCCL made a group by a transport that is not here", figures, notes)
        notes.append(f"told to take a transport that is not here: {absent.errors[-600:]}")
    return Seen(figures, notes)


def _ranks_on_one_gpu(device: Device, ranks: int) -> list[float]:
    """The losses, which the last rank prints."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benchmarks.on_gpus.shared_gpu", "--device", device]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **where, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    said = [process.communicate() for process in started]
    for rank, (process, (_, errors)) in enumerate(zip(started, said, strict=True)):
        if process.returncode != 0:
            raise Failed(f"rank {rank} ended with {process.returncode}: {errors.decode()[-1000:]}")
    losses: list[float] = json.loads(said[-1][0].splitlines()[-1])
    return losses


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def degrees(*wanted: int) -> Callable[[Bench], list[Figure]]:
    """The layouts of the scale for so many ranks, each against one rank, losses and traffic of their networks."""

    def run(bench: Bench) -> list[Figure]:
        if "fp32" not in bench.runs:
            bench.train("fp32", compile=False, parallel=ONE_RANK)
        names, seconds = [], []
        for count in wanted:
            for name, parallel in bench.scale.layouts(count).items():
                done = bench.train(name, compile=False, parallel=parallel, slots_per_host=count)
                names.append(name)
                seconds.append(Figure(f"{name}: step", done.step_s, "s"))
        return bench.agree(names, "fp32", FP32_TOLERANCE) + seconds

    return run


def eight_b(bench: Bench) -> list[Figure]:
    """Llama 3 8B as Holmes plans it by itself on eight GPUs."""
    return _against_plan(bench, bench.train("llama-3-8b", **bench.scale.largest))


def _module(name: str, *arguments: str) -> str:
    return last_words([sys.executable, "-m", name, *arguments])


@dataclass(frozen=True)
class Step:
    """One step of the list: what it shows, and what it needs.

    `needs`: steps whose results it compares with. `shares_gpu`: two processes use one GPU.
    """

    name: str
    shows: str
    least_gpus: int
    run: Callable[[Bench], list[Figure]]
    needs: tuple[str, ...] = ()
    shares_gpu: bool = False


STEPS = (
    Step("single", "losses of one GPU against CPUs, fp32, bf16, compiled", 1, single),
    Step("memory", "memory, step and MFU of 1.3 B, launched, against the plan", 1, memory),
    Step("shapes", "step, tokens/s, MFU and memory of the shapes against their plans, eager and compiled", 1, shapes),
    Step("plain-torch", "the same shapes by a plain torch loop", 1, plain_torch),
    Step("calibrate", "measured FLOP/s, and a step predicted by them", 1, calibrated, ("shapes",)),
    Step("fp8", "two shapes with layers in FP8 and in bf16, compiled; needs torchao", 1, fp8),
    Step("offload", "optimizer states in host memory against the plan", 1, offload),
    Step("attention", "TFLOP/s of each backend of attention at the shapes' sizes", 1, attention),
    Step("masks", "attention inside documents, and of a part of a sequence, without a mask and with", 1, masks),
    Step("shared-gpu", "two ranks of a pipeline on one GPU against one rank", 1, shared_gpu, shares_gpu=True),
    Step(
        "trainer-hook",
        "a script of two ranks under the hook: losses, and NCCL's transport",
        1,
        trainer_hook,
        shares_gpu=True,
    ),
    Step("profile", "seconds of kernels by kind against the plan", 1, profiled),
    Step("nccl-settings", "NCCL takes every setting that plans make", 1, nccl_settings),
    Step("two", "pp under every schedule, tp and dp on two GPUs against one", 2, degrees(2)),
    Step("eight", "degrees of eight GPUs against one", 8, degrees(8)),
    Step("eight-b", "MFU, memory and step of 8 B against the plan", 8, eight_b),
)
"""What this machine can run."""

BY_HAND = {
    "faults": "`kill -STOP` a rank at step 0 and at step 50 of a launch, `kill -9` one: what is named, how soon, what "
    "stays in nvidia-smi",
    "memcheck": "`compute-sanitizer --tool memcheck` on 5 steps; `nsys profile -t cuda,nvtx` of 3",
    "one-fabric": "two hosts over InfiniBand or RoCE: port counters against the plan's bytes, nccl-tests beside",
    "two-clusters": "2 + 2 hosts over sockets: `NCCL_SOCKET_NTHREADS` x `NSOCKS_PERTHREAD`, delays by `tc netem`",
    "checkpoint": "7 B: `paused_s`, `--resume` under another plan, a host pulled with `--on-loss replan`",
    "scale": "64 GPUs and more: seconds to step 1, open files a rank, 24 h without hands",
}
"""What is left out everywhere: several hosts, or a person's hands."""
