"""A run's metrics for Prometheus: a text file for node_exporter's textfile collector, rewritten as steps finish."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Run, State
from launcher.journal.step_metrics import StepMetrics

VARIABLE = "HOLMES_PROMETHEUS"
EVERY_S = 1.0  # between two writes while steps finish


def exports_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of node_exporter's textfile collector, None if unset. Raises HolmesError if it is not one."""
    if not environ.get(VARIABLE):
        return None
    folder = Path(environ[VARIABLE]).absolute()
    if not folder.is_dir():
        raise HolmesError(
            f"{VARIABLE}: {folder} is not a folder",
            "name the one that node_exporter's --collector.textfile.directory names, or unset it",
        )
    return folder


class Gauge(NamedTuple):
    """A Prometheus gauge. Its labels are added to the run's labels."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}


class PrometheusFile:
    """The file `holmes-RUN.prom` in a folder that node_exporter reads; everyone may read it. `now_s` gives Unix time.

    The file stays after the run, with the last state. A full disk leaves it unchanged and does not affect the run.
    """

    def __init__(self, folder: Path, run_id: str, now_s: Callable[[], float] = time.time) -> None:
        self._path, self._run_id, self._now_s = folder / f"holmes-{run_id}.prom", run_id, now_s
        self._step: StepMetrics | None = None
        self._run: tuple[Run, Plan] | None = None
        self._written_s = 0.0

    def take_run(self, run: Run, plan: Plan) -> None:
        """Record that the run has begun, restarted or ended."""
        self._run = run, plan
        self._write()

    def take_step(self, step: StepMetrics) -> None:
        """Record a finished step."""
        self._step = step
        if self._now_s() - self._written_s >= EVERY_S:
            self._write()

    def _write(self) -> None:
        if self._run is None:
            return
        self._written_s = self._now_s()
        text = exposition(self._run_id, [*_of_run(*self._run, self._written_s), *_of_step(self._step)])
        # The collector reads files that end in .prom. Others may make links in its folder, but cannot guess this name.
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
            temporary.chmod(0o644)
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)


def exposition(run_id: str, gauges: list[Gauge]) -> str:
    """Return the gauges in Prometheus' text format. Gauges with the same name must be adjacent."""
    lines, known = [], set[str]()
    for gauge in gauges:
        if gauge.name not in known:
            known.add(gauge.name)
            lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} gauge"]
        labels = ",".join(f"{name}={json.dumps(value)}" for name, value in {"run": run_id, **gauge.labels}.items())
        lines.append(f"{gauge.name}{{{labels}}} {gauge.value!r}")
    return "\n".join(lines) + "\n"


def _of_run(run: Run, plan: Plan, now_s: float) -> Iterator[Gauge]:
    for state in get_args(State):
        yield Gauge(
            "holmes_run_state", "1 for the state that the run is in.", int(run.state == state), {"state": state}
        )
    yield Gauge("holmes_run_started_timestamp_seconds", "When the run began.", run.started_at_s)
    yield Gauge("holmes_run_updated_timestamp_seconds", "When this was written.", now_s)
    yield Gauge("holmes_run_attempt", "Starts of the run before this one.", run.attempt)
    yield Gauge("holmes_run_steps_planned", "Steps of the whole training.", plan.job.steps)
    yield Gauge("holmes_run_predicted_step_seconds", "Seconds per step as planned.", plan.prediction.step_s)
    yield Gauge("holmes_run_predicted_tokens_per_second", "Tokens per second as planned.", plan.prediction.tokens_per_s)


def _of_step(step: StepMetrics | None) -> Iterator[Gauge]:
    if step is None:
        return
    yield Gauge("holmes_run_steps_done", "Steps that the training has completed.", step.step + 1)
    if step.loss is not None:
        yield Gauge("holmes_run_loss", "Loss of the last step.", step.loss)
    yield Gauge("holmes_run_step_seconds", "Seconds of the last step.", step.step_s)
    if step.exposed_s is not None:
        yield Gauge("holmes_run_network_wait_seconds", "Seconds of it spent waiting for the network.", step.exposed_s)
    yield Gauge("holmes_run_tokens_per_second", "Tokens per second in the last step.", step.tokens_per_s)
    if step.mfu:
        yield Gauge("holmes_run_mfu_ratio", "Model FLOP/s of a rank over the peak of its GPU.", step.mfu)
    if step.memory_bytes is not None:
        yield Gauge("holmes_run_memory_bytes", "Peak memory of the rank that uses the most.", step.memory_bytes)
    for port in step.interfaces:
        where = {"host": port.host, "device": port.netdev}
        yield Gauge("holmes_run_interface_sent_bytes", "Sent in the last step.", port.sent_bytes, where)
