"""The run folder on the controller: plan.json, run.json, metrics.jsonl, and a log a rank."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import TextIO

from holmes_core.errors import HolmesError
from holmes_core.plan import Plan
from holmes_core.record import write_atomically
from holmes_core.run import Run
from launcher.step_metrics import StepMetrics


def new_run_id() -> str:
    """A name for a run: the time it began (UTC), and four random digits."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


class RunFolder:
    """Where one run is written down while it runs."""

    def __init__(self, parent: Path, run_id: str, plan: Plan) -> None:
        self.path = parent / run_id
        try:
            (self.path / "logs").mkdir(parents=True)
        except OSError as error:
            raise HolmesError(
                f"{self.path}: cannot be made: {error.strerror}", "choose another folder with `--runs`"
            ) from None
        write_atomically(self.path / "plan.json", plan.to_json())
        self._metrics = open(self.path / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._logs: dict[str, TextIO] = {}

    def write_run(self, run: Run) -> None:
        """Replace run.json."""
        write_atomically(self.path / "run.json", run.to_json())

    def write_step(self, step: StepMetrics) -> None:
        """Append one step to metrics.jsonl."""
        self._metrics.write(json.dumps(step.as_json()) + "\n")
        self._metrics.flush()

    def write_log(self, name: str, line: str) -> None:
        """Append one line to logs/NAME.log."""
        if name not in self._logs:
            self._logs[name] = open(self.path / "logs" / f"{name}.log", "a", encoding="utf-8")  # noqa: SIM115
        self._logs[name].write(line + "\n")
        self._logs[name].flush()

    def close(self) -> None:
        """Close all files."""
        self._metrics.close()
        for log in self._logs.values():
            log.close()
