"""Steps of a trainer's own command, read from the lines that its ranks print. Pure: time is passed in."""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holmes_core.records.plan import Node, Plan
from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.messages import HostCounters
from holmes_runtime.config.rank_metrics import ByteCounters, counters_increase
from holmes_runtime.config.trainable import trained_step_flops
from launcher.journal.step_metrics import FinishedStep, StepMetrics, StepTraffic
from launcher.prepare.prepare import planned_rdma_ports

NUMBER = r"(?:[-+]?[0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan)"
ANY = rf"(?i)\bstep\s*[:=]?\s*(?P<step>[0-9]+)\b.*?\bloss\s*[:=]?\s*(?P<loss>{NUMBER})"
"""A line as many scripts print it: `step 12 loss 3.4`."""
HUGGING_FACE = rf"'loss': '?(?P<loss>{NUMBER})"
"""transformers, trainer_callback.py: a dictionary, printed every `logging_steps`."""
PATTERNS: Mapping[str, tuple[str, ...]] = {
    # Megatron-LM, megatron/training/training.py, training_log.
    "megatron": (
        rf"iteration\s+(?P<step>[0-9]+)\s*/.*?elapsed time per iteration \(ms\): (?P<milliseconds>{NUMBER})"
        rf"(?:.*?learning rate: (?P<learning_rate>{NUMBER}))?.*?lm loss: (?P<loss>{NUMBER})"
        rf"(?:.*?grad norm: (?P<grad_norm>{NUMBER}))?",
    ),
    # torchtitan, torchtitan/components/metrics.py.
    "torchtitan": (
        rf"step:\s*(?P<step>[0-9]+)\s+loss:\s*(?P<loss>{NUMBER})(?:\s+grad_norm:\s*(?P<grad_norm>{NUMBER}))?",
    ),
    # DeepSpeed, deepspeed/runtime/pipe/engine.py, train_batch.
    "deepspeed": (rf"steps: (?P<step>[0-9]+) loss: (?P<loss>{NUMBER}) iter time \(s\): (?P<seconds>{NUMBER})", ANY),
    "accelerate": (HUGGING_FACE, ANY),
    "torch": (ANY, HUGGING_FACE),
}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MAX_CHARACTERS = 2000  # limit of a line that is read
WINDOW_S = 1.0  # lines come in batches, ten a second: short steps are timed together over this window


class _StepLine(NamedTuple):
    """A step whose line has arrived: the time, and the byte counters at that time, by host."""

    step: int
    time_s: float
    counters: Mapping[str, Mapping[str, ByteCounters]]


class PrintedSteps:
    """Reads steps, each from the first rank that prints it. The first step is timed from `started_s`.

    A line without a step number counts as the step after the last. Seconds are the trainer's own if it prints them;
    otherwise they are the time since an earlier line, divided by the steps between. Bytes are the increase of the
    hosts' counters since that line, likewise divided.
    """

    def __init__(self, plan: Plan, started_s: float) -> None:
        trainer = plan.job.trainer
        assert trainer is not None
        own = trainer.step_pattern
        self._patterns = [re.compile(text) for text in ((own,) if own is not None else PATTERNS[trainer.engine])]
        self._plan, self._last_step = plan, -1
        self._taken = deque([_StepLine(-1, started_s, {})])  # the first one is before the window
        self._planned = {node.host: set(planned_rdma_ports(node)) for node in plan.nodes}
        for port in plan.prediction.traffic:
            self._planned[port.host].add(port.netdev)
        self._counters: dict[str, Mapping[str, ByteCounters]] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}  # the kinds by host
        job = plan.job
        self._flops = trained_step_flops(job.model, job.trainable, job.global_batch_size) / plan.world_size

    def take_counters(self, node: Node, reading: HostCounters) -> None:
        """Take a host's counters of the interfaces and ports that the plan names."""
        planned = self._planned[node.host]
        self._counters[node.host] = {name: each for name, each in reading.interfaces.items() if name in planned}
        self._gpus.setdefault(node.host, reading.gpus[: node.num_ranks])

    def take(self, line: str, now_s: float) -> FinishedStep | None:
        """Return the step that a line completes; None for any other line."""
        text = COLOURS.sub("", line[:MAX_CHARACTERS])
        found = next((match for pattern in self._patterns if (match := pattern.search(text))), None)
        if found is None:
            return None
        values = {name: _finite(value) for name, value in found.groupdict().items() if value is not None}
        printed = values.get("step")
        step = self._last_step + 1 if printed is None else int(printed) - 1
        if "loss" not in values or step <= self._last_step:
            return None
        seconds = values.get("seconds") or (values.get("milliseconds") or 0.0) / 1000
        since = self._line_before(now_s)
        if since.step < 0:
            self._taken.clear()  # the start does not count as a step
        self._taken.append(_StepLine(step, now_s, dict(self._counters)))
        step_s = seconds or (now_s - since.time_s) / (step - since.step)
        self._last_step = step
        return FinishedStep(self._metrics(since, step, max(step_s, 1e-6), values), ())

    def _line_before(self, now_s: float) -> _StepLine:
        """Return the line from which a step's seconds and bytes are counted."""
        while len(self._taken) > 1 and self._taken[1].time_s <= now_s - WINDOW_S:
            self._taken.popleft()
        return self._taken[0]

    def _traffic(self, since: _StepLine, step: int) -> Iterator[StepTraffic]:
        """Yield the bytes of each interface per step, since an earlier line."""
        steps = step - since.step
        for host, counters in self._counters.items():
            for netdev, moved in counters_increase(since.counters.get(host, {}), counters).items():
                yield StepTraffic(host, netdev, moved.sent_bytes // steps, moved.received_bytes // steps)

    def _peak_flops_per_s(self) -> float:
        """Return the peak of the fastest GPU, whose rank is used least; 0 unless the peaks of all GPUs are known."""
        kinds = [self._gpus.get(node.host, ()) for node in self._plan.nodes]
        peaks = [peak_flops_per_s(name, self._plan.job.value_type) for name in {*itertools.chain(*kinds)}]
        return max((peak or 0.0 for peak in peaks), default=0.0) if all(kinds) and all(peaks) else 0.0

    def _metrics(self, since: _StepLine, step: int, step_s: float, values: Mapping[str, float | None]) -> StepMetrics:
        job, peak = self._plan.job, self._peak_flops_per_s()
        return StepMetrics(
            step=step,
            loss=values["loss"],
            eval_loss=None,
            grad_norm=values.get("grad_norm"),
            learning_rate=values.get("learning_rate"),
            step_s=step_s,
            compute_s=None,
            exposed_s=None,
            tokens_per_s=job.global_batch_size * job.model.seq_length / step_s,
            tflops_per_s=self._flops / step_s / 1e12,
            mfu=self._flops / step_s / peak if peak else 0.0,
            memory_bytes=None,
            verdicts=(),
            interfaces=tuple(self._traffic(since, step)),
        )


def _finite(text: str) -> float | None:
    """Return the number; None for NaN, infinity and text that is not a number, as a user's pattern may match any."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
