"""The training loop of one rank: steps, with evaluations, examinations and checkpoints between them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch.distributed as dist

from holmes_runtime.comm.stopwatch import named_range
from holmes_runtime.config.rank_metrics import step_name
from holmes_runtime.health.examination import Examination
from holmes_runtime.health.position_report import PositionReport
from holmes_runtime.memory_report import record_places
from holmes_runtime.metrics import MetricsFile, StepMeter
from holmes_runtime.outer.outer_loop import OuterLoop
from holmes_runtime.rank_notices import RankNotices
from holmes_runtime.trace import StepProfiler
from holmes_runtime.trainer import StepResult, Trainer

if TYPE_CHECKING:
    from holmes_runtime.checkpoint.checkpoints import Checkpoints

COLLECT_EVERY_STEPS = 100
RECORDED_STEPS = 3  # at the start, with recorded allocations: a GPU that is too small is full by then


def run_steps(
    trainer: Trainer,
    outer: OuterLoop | None,
    checkpoints: Checkpoints | None,
    first_step: int,
    lines: MetricsFile,
    position: PositionReport,
    profiler: StepProfiler,
    notices: RankNotices,
    counts_bytes: bool,
) -> None:
    """Take steps from `first_step` to the end of the run, or until all ranks agree to stop.

    Barriers before the first and after the last step make the run's byte counts complete. The state after the last step
    is always saved. An island skips steps if the others have continued without it. An evaluation or checkpoint that
    was due after a skipped step then follows at once.
    """
    config = trainer.config
    examination = Examination(config, trainer.me, trainer.groups, trainer.device)
    profiler.reach(first_step)
    dist.barrier()
    meter = StepMeter(trainer, counts_bytes)
    gc.disable()
    next_step, taken = first_step, 0
    evaluates_every = config.evaluation.every_steps if config.evaluation else config.steps + 1
    may_stop_early = config.evaluation is not None and config.evaluation.patience is not None
    while next_step < config.steps and trainer.early_stop is None:
        step = next_step
        position.now(f"step {step + 1}")
        result, next_step = take_step(trainer, outer, step)
        taken += 1
        collect_garbage(taken)
        is_last = result.stop or next_step >= config.steps
        evaluates = next_step // evaluates_every > step // evaluates_every
        line = meter.end_step(step, result, barrier=is_last or (evaluates and may_stop_early))
        line = line._replace(outer=outer.next_report() if outer else None)
        has_reason = examination.add(line.step_s, line.paused_s, meter.laps_s)
        examines = examination.is_due(step, result.examine)
        if has_reason and not examines:
            trainer.ask_to_examine()
        saves = checkpoints is not None and (is_last or checkpoints.is_due(step, next_step))
        if evaluates or examines or saves or profiler.changes_at(next_step):
            trainer.zero1.wait()
            meter.pause()
            position.now(f"evaluation, examination or checkpoint after step {step + 1}")
        if evaluates:
            line = line._replace(eval_loss=evaluate(trainer, next_step, notices))
            is_last = is_last or trainer.early_stop is not None
        if examines:
            line = line._replace(verdicts=examination.hold(step, result.examine))
            trainer.pipeline.follow(examination.config)
        lines.write(line)
        if checkpoints is not None:
            checkpoints.check()
            if saves or is_last:
                save(trainer, outer, checkpoints, next_step)
        if is_last:
            break
        profiler.reach(next_step)
        record_places(trainer.device, on=step + 1 < first_step + RECORDED_STEPS)
        meter.resume()
    gc.enable()
    profiler.finish()
    end(trainer.early_stop if next_step < config.steps else None, next_step, checkpoints, notices)


def evaluate(trainer: Trainer, steps: int, notices: RankNotices) -> float | None:
    """Evaluate on all ranks after `steps` steps. Return the validation loss on the ranks that know it, else None."""
    assert trainer.config.evaluation is not None
    loss = trainer.evaluate(trainer.config.evaluation.num_batches, steps)
    if trainer.validated is not None and trainer.validated.loss is None:
        notices.say(
            "warning", f"the validation loss after step {steps} is no finite number: it counts as no improvement"
        )
    return loss


def end(early_stop: str | None, steps: int, checkpoints: Checkpoints | None, notices: RankNotices) -> None:
    """Wait for the last checkpoint. If the run stops early, after `steps` steps, report the reason."""
    if checkpoints is not None:
        checkpoints.close(is_over=early_stop is not None)
    if early_stop is not None:
        best = f"; the best checkpoint is {checkpoints.best}" if checkpoints is not None and checkpoints.best else ""
        notices.say("early stop", f"{early_stop}: stopped at step {steps}{best}")


def take_step(trainer: Trainer, outer: OuterLoop | None, step: int) -> tuple[StepResult, int]:
    """Take one step, and an island's outer syncs around it. Return the result and the number of the next step."""
    if outer is not None:
        outer.before_step(step)
    with named_range(step_name(step)):
        result = trainer.step(step)
    return result, step + 1 if outer is None else outer.after_step(step + 1, result.stop, result.exchange)


def save(trainer: Trainer, outer: OuterLoop | None, checkpoints: Checkpoints, steps: int) -> None:
    """Start saving the state after `steps` steps. An island first waits for its outer sync in flight."""
    if outer is None:
        checkpoints.save(trainer.zero1.shards(), trainer.counters(steps))
    else:
        outer.settle()
        checkpoints.save(trainer.zero1.shards(), trainer.counters(steps, outer.counters), outer.saved())


def collect_garbage(steps_taken: int) -> None:
    """Collect garbage after the first step and every hundredth step. Automatic collection is off.

    It would run at a different moment on each rank, and every step waits for the slowest rank. Objects that exist after
    the first step live until the end, so they are frozen, and later collections skip them.
    """
    if steps_taken == 1 or steps_taken % COLLECT_EVERY_STEPS == 0:
        gc.collect()
    if steps_taken == 1:
        gc.freeze()
