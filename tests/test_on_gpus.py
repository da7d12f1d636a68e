"""The steps of `make test-gpu`: what is said where there is no GPU, and that each works, tiny and on CPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.on_gpus.bench import Bench
from benchmarks.on_gpus.machine import Machine
from benchmarks.on_gpus.one_rank_group import LEFT_OUT, settings
from benchmarks.on_gpus.packages import PYPROJECT, how_to_bring, missing_packages, requirements
from benchmarks.on_gpus.plain_loop import PlainModel, train
from benchmarks.on_gpus.product_run import ProductRun
from benchmarks.on_gpus.report import Failed, Figure, Outcome, page, read_outcomes, write_report
from benchmarks.on_gpus.run_all import chosen_steps, first_screen, main, run_step
from benchmarks.on_gpus.run_tasks import run_tasks
from benchmarks.on_gpus.scale import ON_GPUS, TINY, TINY_SHAPES
from benchmarks.on_gpus.shape_steps import is_plain, kind_of
from benchmarks.on_gpus.shape_worker import Task
from benchmarks.on_gpus.steps import STEPS, Step, degrees, memory
from holmes_core.node_settings import SETTINGS
from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import stage_parameters
from tests.planner.fleets import gpu_inventory, plan_for
from tests.seeds import few_of

NONE = Machine("2.13.0+cu130", "13.0", "2.29.7", None, ())
ONE = replace(NONE, driver="580.65.06", gpus=("NVIDIA H100 80GB HBM3",))
INVENTORY = gpu_inventory([1])


def job_on_gpus(**changes: object) -> Job:
    return Job.model_validate({**ON_GPUS.job("/corpus.txt", "cuda"), **changes})


def run_of(*losses: float, step_s: float = 1.0, memory_bytes: int = 1) -> ProductRun:
    plan = plan_for(INVENTORY, job_on_gpus(parallel={"tp": 1, "pp": 1, "dp": 1}))
    return ProductRun(plan, losses, (step_s,) * len(losses), 100.0, 0.4, memory_bytes)


class Done(Bench):
    """Trains nothing: every run is the one that `runs` has, or a good one."""

    def train(self, name: str, **changes: object) -> ProductRun:
        del changes
        self.runs.setdefault(name, run_of(3.0, 2.0))
        return self.runs[name]


def bench_of(folder: Path, **runs: ProductRun) -> Done:
    return Done(folder, "cuda", ON_GPUS, ONE.gpus, dict(runs))


def test_without_a_gpu_every_step_is_skipped_and_the_command_says_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-o", str(tmp_path)], NONE) == 1
    assert "nothing was run: no GPU is there" in capsys.readouterr().err
    steps = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert {step["state"] for step in steps} == {"skipped"}
    assert len(steps) > len(STEPS)
    assert "no GPU is there" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (replace(ONE, cuda=None), "is built without CUDA"),
        (replace(ONE, driver="575.57.08", gpus=()), "index-url https://download.pytorch.org/whl/cu126"),
        (ONE, "needs 8 GPUs, there are 1"),
    ],
)
def test_a_step_that_this_machine_cannot_run_says_why(tmp_path: Path, machine: Machine, why: str) -> None:
    step = Step("eight", "", 8, lambda _: [])
    outcome = run_step(step, bench_of(tmp_path), machine)
    assert outcome.state == "skipped"
    assert why in outcome.why


def test_losses_of_other_degrees_are_held_against_one_rank_s(tmp_path: Path) -> None:
    figures = degrees(2)(bench_of(tmp_path))
    assert [figure.value for figure in figures if "differs" in figure.name] == [0.0] * len(ON_GPUS.two)
    wrong = bench_of(tmp_path, tp2=run_of(3.0, 2.01))
    with pytest.raises(Failed, match=r"tp2: loss differs by 0\.005 from fp32, 0\.001 are allowed"):
        degrees(2)(wrong)
    with pytest.raises(Failed, match="tp2: loss differs by nan"):
        degrees(2)(bench_of(tmp_path, tp2=run_of(3.0, float("nan"))))


def test_memory_and_step_are_held_against_the_plan(tmp_path: Path) -> None:
    step_s = run_of(3.0).plan.prediction.step_s
    good = run_of(3.0, step_s=1.5 * step_s)
    figures = {figure.name: figure.value for figure in memory(bench_of(tmp_path, **{"llama-1.3b": good}))}
    assert figures["step over its prediction"] == pytest.approx(1.5)
    assert figures["MFU"] == 0.4
    for bad, said in (
        (replace(good, memory_bytes=2**40), "bytes were reserved, the plan counts"),
        (replace(good, steps_s=(3 * step_s,)), "s were predicted"),
    ):
        with pytest.raises(Failed, match=said):
            memory(bench_of(tmp_path, **{"llama-1.3b": bad}))


def test_a_failed_step_is_in_the_report_with_what_was_measured(tmp_path: Path) -> None:
    def fails(_: Bench) -> list[Figure]:
        raise Failed("a | b\nc", [Figure("step", 2.0, "s")])

    failed = run_step(Step("it", "shows", 1, fails), bench_of(tmp_path), ONE)
    assert failed.state == "failed"
    passed = Outcome("other", "shows", "passed", "", 2.0, (Figure("MFU", 0.41, ""),))
    text = page(ONE, "cuda", [failed, passed])
    assert "On device cuda: 1 passed, 1 failed, 0 skipped." in text
    assert "| failed | 0 | a \\| b c |" in text
    assert "| other | MFU | 0.41 |  |" in text
    assert "| it | step | 2 | s |" in text  # what was measured before it failed


def test_whatever_ends_a_step_is_in_the_report(tmp_path: Path) -> None:
    def breaks(bench: Bench) -> list[Figure]:
        return [Figure("step", bench.runs["none"].step_s, "s")]

    outcome = run_step(Step("it", "shows", 1, breaks), bench_of(tmp_path), ONE)
    assert (outcome.state, outcome.why) == ("failed", "KeyError('none')")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", few_of(1, [2, 8]))
def test_every_layout_is_one_that_is_planned_as_it_is_named(ranks: int) -> None:
    for name, parallel in ON_GPUS.layouts(ranks).items():
        plan = plan_for(INVENTORY, job_on_gpus(compile=False, parallel=parallel))
        assert plan.world_size == ranks, name
        planned = {"dp": plan.engine_dp, "cp": plan.job.cp}
        assert {key: planned[key] if key in planned else getattr(plan, key) for key in parallel} == parallel


def test_the_large_jobs_are_planned_compiled_and_in_bf16() -> None:
    for job in (job_on_gpus(**ON_GPUS.large), job_on_gpus(**ON_GPUS.largest)):
        assert (job.compiles, job.value_type) == (True, "bf16")
        assert plan_for(INVENTORY, job).prediction.step_s > 0
    model = job_on_gpus(**ON_GPUS.large).model
    assert stage_parameters(model, model.num_layers, True, True) == pytest.approx(1.3e9, rel=0.05)


def test_nccl_is_given_every_variable_that_plans_set_for_it() -> None:
    for_nccl = {name for name in SETTINGS if name.startswith(("NCCL_", "TORCH_"))}
    assert for_nccl - set(settings()) == set(LEFT_OUT)


@pytest.mark.parametrize("name", few_of(2, (name for name, job in TINY_SHAPES.items() if is_plain(job))))
def test_the_plain_loop_trains_the_model_that_holmes_counts(name: str) -> None:
    scale = replace(TINY, shapes=TINY_SHAPES)
    shape = Job.model_validate(scale.shape_job(name, "/corpus.txt", "cpu", False)).model
    parameters = sum(parameter.numel() for parameter in PlainModel(shape).parameters())
    assert parameters == stage_parameters(shape, shape.num_layers, True, True)
    assert len(train(shape, torch.device("cpu"), micro_batch_size=2, microbatches=2, steps=2, recomputes=True)) == 2


@pytest.mark.parametrize("name", few_of(2, ON_GPUS.shapes))
@pytest.mark.parametrize("compiles", [False, True])
def test_every_shape_has_a_plan_on_one_gpu_of_80_gb(name: str, compiles: bool) -> None:
    inventory = gpu_inventory([1], gpus_per_host=1, gpu_name="NVIDIA H100 80GB HBM3")
    plan = plan_for(inventory, Job.model_validate(ON_GPUS.shape_job(name, "/corpus.txt", "cuda", compiles)))
    assert (plan.job.value_type, plan.job.compiles, plan.optimizer_offload) == ("bf16", compiles, False)


def test_missing_packages_are_named_at_once_with_the_command_that_brings_them() -> None:
    needed = requirements(PYPROJECT.read_text(encoding="utf-8"))
    assert {"typer", "pydantic", "pulp", "highspy", "paramiko", "rich", "pyyaml", "jinja2"} == set(needed)
    assert missing_packages(needed) == []
    there = {"typer": "0.9", "highspy": "1.16.0", "torch": "2.11.0+cu130"}
    missing = missing_packages({"typer": ">=0.12", "highspy": ">=1.7,<1.16", "rich": ""}, there.get)
    assert missing == ["typer>=0.12", "highspy>=1.7,<1.16", "rich"]
    text = how_to_bring(missing)
    assert "pip download --only-binary=:all:" in text
    assert "'typer>=0.12' 'highspy>=1.7,<1.16' 'rich'" in text


def test_steps_are_chosen_by_name() -> None:
    assert [step.name for step in chosen_steps("shapes,single", None)] == ["single", "shapes"]
    assert "two" not in [step.name for step in chosen_steps(None, "two,eight")]
    with pytest.raises(ValueError, match="no step is named shape;"):
        chosen_steps("shape", None)


def test_a_step_that_needs_a_failed_one_is_skipped(tmp_path: Path) -> None:
    step = Step("after", "", 1, lambda _: [], needs=("before",))
    bench = bench_of(tmp_path)
    assert "needs before, which was not run" in run_step(step, bench, ONE).why
    bench.outcomes["before"] = Outcome("before", "", "failed", "", 1.0, ())
    outcome = run_step(step, bench, ONE)
    assert (outcome.state, outcome.why) == ("skipped", "needs before, which failed")
    bench.outcomes["before"] = Outcome("before", "", "failed", "", 1.0, (Figure("step", 1.0, "s"),))
    assert run_step(step, bench, ONE).state == "passed"


def test_an_exclusive_gpu_skips_only_what_shares_it() -> None:
    lines = first_screen(replace(ONE, compute_mode="Exclusive_Process"), "cuda", STEPS, ())
    assert "  shared-gpu: skipped: compute mode Exclusive_Process lets one process use the GPU" in lines
    assert "  shapes: will be run" in lines


def test_a_machine_without_a_compiler_says_that_compiled_layers_are_skipped() -> None:
    lines = first_screen(replace(ONE, not_compiled="a C compiler"), "cuda", STEPS, ())
    assert "compiled layers are skipped: this machine lacks a C compiler" in lines
    assert "  shapes: will be run" in lines


def test_a_report_keeps_the_steps_of_an_earlier_call_on_the_same_machine(tmp_path: Path) -> None:
    outcome = Outcome("shapes", "", "passed", "", 2.0, (Figure("step", 1.0, "s"),), ("a note",))
    write_report(tmp_path, ONE, "cuda", [outcome])
    assert read_outcomes(tmp_path, ONE, "cuda") == {"shapes": outcome}
    assert read_outcomes(tmp_path, replace(ONE, torch="2.14.0"), "cuda") == {}
    assert read_outcomes(tmp_path / "none", ONE, "cuda") == {}


def test_kernels_are_counted_by_kind() -> None:
    kinds = {
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "matrices",
        "sm90_xmma_gemm_bf16bf16_bf16f32": "matrices",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": "attention",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "update",
        "Memcpy DtoH (Device -> Pinned)": "copies",
        "triton_poi_fused_mul_silu_0": "other",
    }
    assert {kernel: kind_of(kernel) for kernel in kinds} == kinds


@pytest.mark.process
def test_a_task_that_fails_leaves_its_error_and_the_next_is_run(tmp_path: Path) -> None:
    tasks = [Task("broken", "holmes", "{}"), Task("also", "plain", "{}")]
    results = run_tasks(tmp_path, "cpu", tasks, 60.0, float("inf"))
    assert {name: result.error is None for name, result in results.items()} == {"broken": False, "also": False}
    assert run_tasks(tmp_path, "cpu", tasks, 60.0, 0.0)["also"].error == "not run: the time for this call was over"


ON_CPUS = tuple(step.name for step in STEPS if step.name not in ("fp8", "masks"))  # need torchao, and a GPU


@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "wanted",
    [("shapes", "calibrate", "two"), pytest.param(ON_CPUS, marks=pytest.mark.exhaustive)],
    ids=["some", "all"],
)
def test_steps_work_on_cpus(wanted: tuple[str, ...], tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--only", ",".join(wanted), "-o", str(tmp_path)]) == 0
    steps = {step["step"]: step for step in json.loads((tmp_path / "report.json").read_text())["steps"]}
    assert {name: steps[name]["why"] for name in wanted} == dict.fromkeys(wanted, "")
