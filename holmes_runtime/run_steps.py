"""The training loop of one rank: step after step, and what comes between them."""

from __future__ import annotations

import torch.distributed as dist

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.health.examination import Examination
from holmes_runtime.metrics import MetricsFile, StepMeter
from holmes_runtime.trainer import Trainer


def run_steps(
    trainer: Trainer, checkpoints: Checkpoints | None, first_step: int, lines: MetricsFile, counts_bytes: bool
) -> None:
    """Takes the steps from `first_step` to the last, or to the one at whose end all ranks agree to stop.

    A barrier before the first and after the last makes the run's byte counts complete. The last step is always saved.
    """
    config = trainer.config
    examination = Examination(config, trainer.me, trainer.groups, trainer.device)
    dist.barrier()
    meter = StepMeter(trainer, counts_bytes)
    for step in range(first_step, config.steps):
        result = trainer.step(step)
        is_last = result.stop or step == config.steps - 1
        line = meter.end_step(step, result, barrier=is_last)
        evaluates = config.evaluation is not None and (step + 1) % config.evaluation.every_steps == 0
        has_reason = examination.add(line.step_s, line.paused_s, meter.laps_s)
        examines = examination.is_due(step, result.examine)
        if has_reason and not examines:
            trainer.ask_to_examine()
        saves = checkpoints is not None and (is_last or (step + 1) % checkpoints.every_steps == 0)
        if evaluates or examines or saves:
            trainer.zero1.wait()
            meter.pause()
        if evaluates and config.evaluation is not None:
            line = line._replace(eval_loss=trainer.evaluate(config.evaluation.num_batches))
        if examines:
            line = line._replace(verdicts=examination.hold(step, result.examine))
            trainer.pipeline.follow(examination.config)
        lines.write(line)
        if checkpoints is not None:
            checkpoints.check()
        if checkpoints is not None and saves:
            checkpoints.save(trainer.zero1.shards(), trainer.counters(step + 1))
        if is_last:
            break
        meter.resume()
    if checkpoints is not None:
        checkpoints.finish()
