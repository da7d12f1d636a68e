"""The steps on shapes that no constant of the cost model was fitted to: planned here, trained in one process."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.on_gpus.bench import Bench
from benchmarks.on_gpus.report import Failed, Figure, Seen, Skipped
from benchmarks.on_gpus.scale import Job
from benchmarks.on_gpus.shape_worker import Result, Task
from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.model_shape import attention_flops, head_flops, matrix_flops, step_flops
from holmes_runtime.node.compiler import missing_for_fp8
from launcher.prepare.prepare import run_config_of
from planner.cost.gpu_speeds import gpu_speed
from planner.cost.memory_margin import reserve_bytes, training_margin

MAX_OFF = 2.0  # by which a measured step may differ from its prediction before planning by it is no use
GIB = 2**30
BEYOND_PLAIN = ("data", "trainable")  # keys of a shape's job, or "experts" of its model, that the plain loop has not
FP8_SHAPES = ("gpt-1.3b", "llama-3-8b-8-layers")
# Words in the names of kernels, and of torch's operators on CPUs; the first kind that fits counts.
KINDS = {
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "matrices": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk", "aten::mm", "aten::addmm", "aten::bmm"),
    "update": ("adam", "multi_tensor", "foreach"),
    "copies": ("memcpy", "memset"),
}


def mode_name(name: str, compiles: bool) -> str:
    """Return the name of a shape's task, eager or compiled."""
    return f"{name}/{'compiled' if compiles else 'eager'}"


def shapes(bench: Bench) -> list[Figure]:
    """Train each shape by Holmes' trainer, eager and then compiled, and compare it with its plan."""
    modes = (False, True) if bench.compiles else (False,)
    plans, notes = _plans(bench, {mode_name(n, c): _job(bench, n, c) for n in bench.scale.shapes for c in modes})
    figures, wrong = _measured(bench, "shapes", plans, notes)
    if not bench.compiles:
        notes.append("compiled layers: skipped, see the machine's not_compiled")
    if wrong:
        raise Failed("; ".join(wrong), figures, notes)
    return Seen(figures, notes)


def offload(bench: Bench) -> list[Figure]:
    """Train one shape with optimizer states in host memory, and compare it with its plan."""
    job = _job(bench, profiled_shape(bench), bench.compiles)
    job["parallel"] = {**job["parallel"], "optimizer_offload": True}
    plans, notes = _plans(bench, {"offload": job})
    figures, wrong = _measured(bench, "offload", plans, notes)
    if wrong:
        raise Failed("; ".join(wrong), figures, notes)
    return Seen(figures, notes)


def fp8(bench: Bench) -> list[Figure]:
    """Train two shapes compiled, with their layers in FP8 and in bf16, one after the other."""
    lacking = missing_for_fp8() or (None if bench.compiles else "a compiler")
    if lacking is not None:
        raise Skipped(f"layers in FP8 need {lacking}")
    names = [name for name in FP8_SHAPES if name in bench.scale.shapes]
    jobs = {name: {**_job(bench, name, compiles=True), "precision": "bf16"} for name in names}
    jobs |= {f"{name}/fp8": {**job, "fp8": True} for name, job in jobs.items()}
    plans, notes = _plans(bench, jobs)
    results = bench.run_tasks(
        "fp8", [Task(name, "holmes", _config(plan)) for name, plan in plans.items()], plans.values()
    )
    figures, wrong = list[Figure](), list(notes)
    for name, result in results.items():
        notes.append(_in_words(name, plans[name], result))
        if result.error is not None:
            wrong.append(f"{name}: {result.error}")
            continue
        notes.append(f"{name}: losses {', '.join(f'{loss:.5f}' for loss in result.losses)}")
        figures += _speed(bench, name, plans[name], result)
        plain = results.get(name.removesuffix("/fp8"))
        if plain is not None and plain is not result and plain.error is None:
            off = max(abs(one - other) / other for one, other in zip(result.losses, plain.losses, strict=True))
            figures.append(Figure(f"{name}: x times as fast as bf16", plain.step_s / result.step_s, ""))
            figures.append(Figure(f"{name}: largest relative difference of a loss", off, ""))
    if wrong:
        raise Failed("; ".join(wrong), figures, notes)
    return Seen(figures, notes)


def plain_torch(bench: Bench) -> list[Figure]:
    """Train the same shapes by a plain torch loop, compiled where Holmes' is, with as many samples a micro-batch."""
    jobs = {name: _job(bench, name, bench.compiles) for name, job in bench.scale.shapes.items() if is_plain(job)}
    plans, notes = _plans(bench, jobs)
    tasks = [Task(name, "plain", _config(plan)) for name, plan in plans.items()]
    figures = []
    for name, result in bench.run_tasks("plain-torch", tasks, plans.values()).items():
        if result.error is not None:
            notes.append(f"{name}: {result.error}")
            continue
        figures += _speed(bench, name, plans[name], result)
        if result.micro_batch_size != plans[name].micro_batch_size:
            notes.append(
                f"{name}: by {result.micro_batch_size} a micro-batch, as memory did not suffice for the plan's"
            )
        own_s = bench.figure("shapes", f"{mode_name(name, bench.compiles)}: step")
        if own_s:
            figures.append(Figure(f"{name}: Holmes is x times as fast", result.step_s / own_s, ""))
    if not figures:
        raise Failed("no shape was trained", (), notes)
    return Seen(figures, notes)


def profiled(bench: Bench) -> list[Figure]:
    """Record the kernels of one shape, and compare their seconds by kind with the plan's."""
    shape = profiled_shape(bench)
    name = mode_name(shape, bench.compiles)
    plans, notes = _plans(bench, {name: _job(bench, shape, bench.compiles)})
    if name not in plans:
        raise Failed(notes[0])
    result = bench.run_tasks("profile", [Task(name, "holmes", _config(plans[name]), profiled=True)], plans.values())[
        name
    ]
    if result.error is not None:
        raise Failed(result.error)
    seconds: dict[str, float] = {}
    for kernel, kernel_s in result.kernels_s.items():
        seconds[kind_of(kernel)] = seconds.get(kind_of(kernel), 0.0) + kernel_s
    planned = _planned_kinds(bench, plans[name])
    figures = [Figure(f"{kind}: measured", value, "s") for kind, value in seconds.items()]
    figures += [Figure(f"{kind}: planned", value, "s") for kind, value in planned.items()]
    longest = [f"{kernel_s:.4g} s {kernel[:100]}" for kernel, kernel_s in list(result.kernels_s.items())[:25]]
    return Seen(figures, longest)


def kind_of(kernel: str) -> str:
    """Return the kind of work that a kernel does, by its name."""
    low = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in low for word in words)), "other")


def compared_with_calibration(bench: Bench, flops_per_s: float) -> list[Figure]:
    """Return the measured step of the profiled shape over its prediction by the calibrated speed alone.

    Raises:
        Skipped: No step of the shape was measured.
    """
    shape = profiled_shape(bench)
    name = mode_name(shape, bench.compiles)
    measured_s = bench.figure("shapes", f"{name}: step")
    if measured_s is None:
        raise Skipped(f"no step of {name} was measured")
    plan = bench.plan({**_job(bench, shape, bench.compiles), "compute": {"flops_per_s": flops_per_s}})
    return [Figure("step over its prediction after calibrate", measured_s / plan.prediction.step_s, "")]


def profiled_shape(bench: Bench) -> str:
    """Return the shape that steps of one shape take: the first."""
    return next(iter(bench.scale.shapes))


def is_plain(job: Job) -> bool:
    """Return True if the loop of plain torch trains what Holmes' trainer does."""
    return not any(key in job for key in BEYOND_PLAIN) and "experts" not in job["model"]


def shape_plan(bench: Bench, name: str) -> Plan:
    """Return the plan of a shape, compiled if that is possible here."""
    return bench.plan(_job(bench, name, bench.compiles))


def _job(bench: Bench, name: str, compiles: bool) -> Job:
    return bench.scale.shape_job(name, bench.corpus(), bench.device, compiles and bench.device == "cuda")


def _plans(bench: Bench, jobs: dict[str, Job]) -> tuple[dict[str, Plan], list[str]]:
    """Return the plans of `jobs`, and notes on those that cannot be planned."""
    plans, notes = {}, []
    for name, job in jobs.items():
        try:
            plans[name] = bench.plan(job)
        except HolmesError as error:
            notes.append(f"{name}: no plan: {error}")
    return plans, notes


def _config(plan: Plan) -> str:
    return run_config_of(plan, "shape").to_json()


def _measured(bench: Bench, step: str, plans: dict[str, Plan], notes: list[str]) -> tuple[list[Figure], list[str]]:
    """Train `plans`, and return the figures and what is wrong with them. Adds how each was trained to `notes`."""
    wrong = list(notes)
    figures: list[Figure] = []
    tasks = [Task(name, "holmes", _config(plan)) for name, plan in plans.items()]
    results = bench.run_tasks(step, tasks, plans.values())
    for name, plan in plans.items():
        result = results[name]
        notes.append(_in_words(name, plan, result))
        if result.error is not None:
            wrong.append(f"{name}: {result.error}")
            continue
        figures += _beside_plan(bench, name, plan, result)
        if bench.device == "cuda":
            wrong += _faults(name, plan, result)
    return figures, wrong


def _in_words(name: str, plan: Plan, result: Result) -> str:
    job, kept = plan.job, "offloaded" if plan.optimizer_offload else "on the GPU"
    laps = ", ".join(f"{lap} {seconds:.4g}" for lap, seconds in result.laps_s.items())
    steps = ", ".join(f"{seconds:.4g}" for seconds in result.steps_s)
    return (
        f"{name}: {job.value_type}, {'compiled' if job.compiles else 'eager'}, recompute {plan.recompute}, "
        f"micro-batch {plan.micro_batch_size} x {plan.microbatches[0]}, states {kept}; "
        f"built in {result.build_s:.1f} s; steps {steps}; laps {laps}"
    )


def _beside_plan(bench: Bench, name: str, plan: Plan, result: Result) -> list[Figure]:
    planned = plan.prediction
    parts = {"compute": planned.compute_s, "update": planned.optimizer_s}
    memory_bytes = max(planned.memory_bytes)
    counted_bytes = (memory_bytes - reserve_bytes(plan.job, 1, 1, 1)) / (1 + training_margin(plan.job))
    return [
        *_speed(bench, name, plan, result),
        Figure(f"{name}: planned step", planned.step_s, "s"),
        *(Figure(f"{name}: planned {part}", seconds, "s") for part, seconds in parts.items()),
        Figure(f"{name}: step over its prediction", result.step_s / planned.step_s, ""),
        Figure(f"{name}: planned memory", memory_bytes / GIB, "GiB"),
        Figure(f"{name}: peak memory over the plan's", result.memory_bytes / memory_bytes, ""),
        Figure(f"{name}: peak memory over the plan's without its margin", result.memory_bytes / counted_bytes, ""),
        Figure(f"{name}: reserved memory", result.reserved_bytes / GIB, "GiB"),
    ]


def _speed(bench: Bench, name: str, plan: Plan, result: Result) -> list[Figure]:
    job = plan.job
    tokens = job.global_batch_size * job.model.seq_length
    peak = peak_flops_per_s(bench.gpus[0], job.value_type) if bench.gpus and bench.device == "cuda" else None
    rate = step_flops(job.model, job.global_batch_size) / result.step_s
    return [
        Figure(f"{name}: step", result.step_s, "s"),
        Figure(f"{name}: tokens a second", tokens / result.step_s, "1/s"),
        *([Figure(f"{name}: MFU", rate / peak, "")] if peak else []),
        Figure(f"{name}: peak memory", result.memory_bytes / GIB, "GiB"),
    ]


def _faults(name: str, plan: Plan, result: Result) -> Sequence[str]:
    planned_s, planned_bytes = plan.prediction.step_s, max(plan.prediction.memory_bytes)
    faults = []
    if result.memory_bytes > planned_bytes:
        faults.append(f"{name}: {result.memory_bytes} bytes were allocated, the plan counts {planned_bytes}")
    if not 1 / MAX_OFF < result.step_s / planned_s < MAX_OFF:
        faults.append(f"{name}: a step takes {result.step_s:.3g} s, {planned_s:.3g} s were predicted")
    return faults


def _planned_kinds(bench: Bench, plan: Plan) -> dict[str, float]:
    """Return the plan's seconds of a step by kind of work: forward and backward, all micro-batches."""
    job, planned = plan.job, plan.prediction
    model, size = job.model, plan.micro_batch_size
    speed = gpu_speed(bench.gpus[0], job.value_type) if bench.gpus and bench.device == "cuda" else None
    if speed is None:
        return {"all but the update": planned.compute_s, "update": planned.optimizer_s}
    slowing = 1 + speed.half_size / (size * model.seq_length * model.hidden_size)
    matrices = model.num_layers * matrix_flops(model, size) + head_flops(model, size)
    times = 3 * plan.microbatches[0]
    matrices_s = times * matrices * slowing / speed.matrix_flops_per_s
    rate = speed.attention_flops_per_s or speed.matrix_flops_per_s
    attention_s = times * model.num_layers * attention_flops(model, size) / rate
    other_s = planned.compute_s - matrices_s - attention_s
    return {"matrices": matrices_s, "attention": attention_s, "other": other_s, "update": planned.optimizer_s}
