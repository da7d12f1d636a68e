"""The page of a run: self-contained, escaped, and drawn by a real browser where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holmes_cli.pages.status_page import status_page
from holmes_core.records.run import Failure, Run
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics, StepTraffic
from tests.cli.browser import NEEDS_BROWSER, dumped
from tests.launcher.plans import cpu_plan


def page(count: int = 5) -> str:
    plan = cpu_plan()
    failure = Failure(
        host="b1",
        cluster="b",
        rank=2,
        exit_code=-9,
        message="<script>alert(1)</script>",
        last_lines=("last words",),
        time_s=1.0,
        likely="memory",
    )
    run = Run(run_id="r", plan_digest=plan.digest(), state="failed", started_at_s=0.0, failures=(failure,))
    steps = [step(number) for number in range(count)]
    return status_page(StoredRun(Path("runs/r"), run), plan, steps, {"a1": "stepping"}, ["slow host b1"])


def step(number: int) -> StepMetrics:
    ports = tuple(StepTraffic(host, "eth0", 1000 * number, 1000) for host in ("a1", "b1"))
    return StepMetrics(
        step=number,
        loss=5.0 - number,
        eval_loss=None,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_s=0.5,
        compute_s=0.3,
        exposed_s=0.1,
        tokens_per_s=100.0 + number,
        tflops_per_s=1.0,
        mfu=0.0,
        memory_bytes=1,
        verdicts=(),
        interfaces=ports,
    )


def test_page_fetches_nothing_and_escapes_what_ranks_said() -> None:
    assert re.findall(r"(?:src|href)=|@import|url\(", page()) == []
    assert "<script>" not in page()
    assert "&lt;script&gt;alert(1)" in page()


def test_every_step_is_a_point_and_the_loss_falls() -> None:
    curve = re.findall(r'class="curve" points="([^"]+)"', page())[0]
    heights = [float(point.split(",")[1]) for point in curve.split()]
    assert len(heights) == 5
    assert heights == sorted(heights)  # SVG counts downwards


def test_page_of_a_run_without_a_step_has_no_chart() -> None:
    assert "<svg" not in page(0)
    assert "last words" in page(0)


@pytest.mark.process
@NEEDS_BROWSER
def test_browser_draws_the_curves(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text(page(), encoding="utf-8")
    assert dumped(path).count('<polyline class="curve"') == 4
