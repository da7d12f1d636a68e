"""Steps read from the lines of trainers, as each prints them."""

from __future__ import annotations

import pytest

from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.gpu_peaks import PEAK_FLOPS_PER_S
from holmes_runtime.config.messages import HostCounters
from holmes_runtime.config.model_shape import step_flops
from holmes_runtime.config.rank_metrics import ByteCounters
from launcher.journal.step_metrics import StepMetrics, StepTraffic
from launcher.supervise.printed_steps import PrintedSteps
from tests.launcher.plans import cpu_plan, gpu_plan

# As each prints it in its logs: Megatron-LM and torchtitan issues, DeepSpeed's pipeline tutorial, transformers 4 and 5.
MEGATRON = (
    " [2025-11-02 10:00:01] iteration       10/  500000 | consumed samples:          320 | elapsed time per iteration "
    "(ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.500000E-06 | global batch size:    32 | "
    "lm loss: 1.087329E+01 | loss scale: 1.0 | grad norm: 5.123 | number of skipped iterations:   0 |"
)
TORCHTITAN = (
    "[titan] 2024-12-05 18:57:21,391 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  8.2364  \x1b[38;2;180;60;0m"
    "grad_norm:  1.3072  \x1b[33mmemory: 47.72GiB(50.18%)  \x1b[34mtps: 1,234  \x1b[36mtflops: 71.2\x1b[39m"
)
DEEPSPEED = "steps: 10 loss: 8.9012 iter time (s): 0.250 samples/sec: 64.9"
TRANSFORMERS_4 = "{'loss': 2.3456, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.01}"
TRANSFORMERS_5 = "  1%|          | 1/100 [00:00<00:10]{'loss': '2.3456', 'grad_norm': '1.25', 'epoch': '0.01'}"


def plan_of_command(engine: str, on_gpus: bool = False, **trainer: object) -> Plan:
    """The plan of a small job for a trainer's command."""
    plan = gpu_plan() if on_gpus else cpu_plan()
    job = plan.job.model_dump(mode="json", exclude={"data", "optimizer", "checkpoint", "evaluation", "compile"})
    job["trainer"] = {"engine": engine, "command": ["python", "train.py"], **trainer}
    return plan.model_copy(update={"job": Job.model_validate(job)})


def taken(steps: PrintedSteps, line: str, now_s: float) -> StepMetrics:
    """The step of a line that ends one."""
    step = steps.take(line, now_s)
    assert step is not None
    return step.metrics


@pytest.mark.parametrize(
    ("engine", "line", "step", "loss", "grad_norm", "step_s"),
    [
        ("megatron", MEGATRON, 9, 10.87329, 5.123, 1.2345),
        ("torchtitan", TORCHTITAN, 9, 8.2364, 1.3072, 0.5),
        ("deepspeed", DEEPSPEED, 9, 8.9012, None, 0.25),
        ("accelerate", TRANSFORMERS_4, 0, 2.3456, None, 5.0),
        ("accelerate", TRANSFORMERS_5, 0, 2.3456, None, 5.0),
        ("torch", "Epoch 0 | step 10 | Loss: 1,234.5", 9, 1234.5, None, 0.5),
        ("torch", "step=10 loss=1.5e-3", 9, 1.5e-3, None, 0.5),
    ],
)
def test_line_of_each_trainer_is_a_step(
    engine: str, line: str, step: int, loss: float, grad_norm: float | None, step_s: float
) -> None:
    metrics = taken(PrintedSteps(plan_of_command(engine), 100.0), line, 105.0)
    assert (metrics.step, metrics.loss, metrics.grad_norm) == (step, loss, grad_norm)
    assert metrics.step_s == pytest.approx(step_s)
    assert (metrics.compute_s, metrics.exposed_s, metrics.memory_bytes) == (None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{'eval_loss': 2.1, 'epoch': 1.0}",
        "{'train_runtime': 12.3, 'train_loss': 1.9}",
        "loading step 3 of the recipe",
        "step " + "9" * 5000,
    ],
)
@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "deepspeed", "accelerate", "torch"])
def test_other_lines_are_no_steps(engine: str, line: str) -> None:
    assert PrintedSteps(plan_of_command(engine), 0.0).take(line, 1.0) is None


def test_step_that_several_ranks_print_counts_once() -> None:
    steps = PrintedSteps(plan_of_command("torch"), 0.0)
    assert taken(steps, "step 1 loss 3", 1.0).step == 0
    assert steps.take("step 1 loss 3", 1.1) is None
    assert taken(steps, "step 2 loss 2", 2.0).step == 1


def test_seconds_are_those_between_lines_over_the_steps_between() -> None:
    steps = PrintedSteps(plan_of_command("torch"), 0.0)
    taken(steps, "step 1 loss 3", 60.0)  # starting is no step
    assert taken(steps, "step 11 loss 2", 80.0).step_s == pytest.approx(2.0)
    assert taken(steps, "step 12 loss 2", 83.0).step_s == pytest.approx(3.0)


def test_lines_that_come_in_batches_are_timed_together() -> None:
    steps = PrintedSteps(plan_of_command("torch"), 0.0)
    seconds = [taken(steps, f"step {step} loss 1", 60 + step // 5 * 0.25).step_s for step in range(1, 101)]
    assert seconds[40:] == pytest.approx([0.05] * 60, rel=0.25)


def test_pattern_of_the_users_own_takes_the_place_of_the_engine_s() -> None:
    pattern = r"it (?P<step>\d+): (?P<seconds>[0-9.]+) s, L=(?P<loss>\S+)"
    steps = PrintedSteps(plan_of_command("megatron", step_pattern=pattern), 0.0)
    metrics = taken(steps, "it 3: 0.75 s, L=2.5", 9.0)
    assert (metrics.step, metrics.step_s, metrics.loss) == (2, 0.75, 2.5)
    assert steps.take(MEGATRON, 10.0) is None


def test_bytes_are_the_increase_of_the_planned_counters_over_the_steps_between() -> None:
    plan = plan_of_command("torch")
    steps, node = PrintedSteps(plan, 0.0), plan.nodes[0]
    netdev = next(port.netdev for port in plan.prediction.traffic if port.host == node.host)

    def count(sent: int) -> None:
        steps.take_counters(node, HostCounters({netdev: ByteCounters(sent, 2 * sent), "other": ByteCounters(9, 9)}, ()))

    assert taken(steps, "step 1 loss 3", 10.0).interfaces == ()  # it begins with the run
    count(5000)
    assert taken(steps, "step 2 loss 3", 20.0).interfaces == ()  # no counters before it
    count(5600)
    assert taken(steps, "step 4 loss 3", 30.0).interfaces == (StepTraffic(node.host, netdev, 300, 600),)
    count(100)  # the host's interface came up anew
    assert taken(steps, "step 5 loss 3", 40.0).interfaces == ()


def test_bytes_and_seconds_of_short_steps_are_of_the_same_lines() -> None:
    plan = plan_of_command("torch")
    steps, node = PrintedSteps(plan, 0.0), plan.nodes[0]
    netdev = next(port.netdev for port in plan.prediction.traffic if port.host == node.host)
    sent = []
    for step in range(1, 201):
        if step % 5 == 0:  # counters come twice a second, lines ten times
            steps.take_counters(node, HostCounters({netdev: ByteCounters(1000 * step, 0)}, ()))
        sent += [port.sent_bytes for port in taken(steps, f"step {step} loss 1", 60 + step / 10).interfaces]
    assert sum(sent[20:]) / len(sent[20:]) == pytest.approx(1000, rel=0.05)


def test_mfu_is_of_a_rank_on_the_fastest_gpu_once_all_peaks_are_known() -> None:
    plan = plan_of_command("torch", on_gpus=True)
    steps, kinds = PrintedSteps(plan, 0.0), ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]
    steps.take_counters(plan.nodes[0], HostCounters({}, (kinds[0],)))
    assert taken(steps, "step 1 loss 3", 10.0).mfu == 0
    steps.take_counters(plan.nodes[1], HostCounters({}, (kinds[1],)))
    metrics = taken(steps, "step 2 loss 3", 12.0)
    flops_per_s = step_flops(plan.job.model, plan.job.global_batch_size) / plan.world_size / 2.0
    assert metrics.mfu == pytest.approx(flops_per_s / PEAK_FLOPS_PER_S["H100"]["bf16"])


@pytest.mark.parametrize("kinds", [(), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb",), ("Some GPU", "NVIDIA H100 80GB HBM3")])
def test_mfu_is_not_known_without_the_peak_of_every_gpu(kinds: tuple[str, ...]) -> None:
    plan = plan_of_command("torch", on_gpus=True)
    steps = PrintedSteps(plan, 0.0)
    for node in plan.nodes:
        steps.take_counters(node, HostCounters({}, kinds))
    assert taken(steps, "step 1 loss 3", 10.0).mfu == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python", "-I", "train.py"], "with -I"),
        (["/opt/conda/bin/python3.12", "-uE", "-m", "train"], "with -E"),
        (["env", "PYTHONPATH=src", "python", "train.py"], "with PYTHONPATH=src"),
    ],
)
def test_command_whose_groups_would_have_no_network_is_refused(command: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=f"runs Python {words}"):
        plan_of_command("torch", command=command)


@pytest.mark.parametrize("command", ["python -u train.py -S", "python -m train -I", "./run -I", "python -W -E t.py"])
def test_options_of_the_program_are_its_own(command: str) -> None:
    trainer = plan_of_command("torch", command=command.split()).job.trainer
    assert trainer is not None
    assert " ".join(trainer.command) == command


@pytest.mark.parametrize(("pattern", "words"), [("(", "is not a regular expression"), ("step (?P<step>.)", "no group")])
def test_pattern_without_a_loss_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_of_command("torch", step_pattern=pattern)
