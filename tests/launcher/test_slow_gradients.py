"""Why steps take longer than planned is said where ranks wait for gradients that cross a slow wire."""

from __future__ import annotations

import pytest

from launcher.journal.step_metrics import FinishedStep, StepMetrics
from launcher.supervise.slow_gradients import slow_gradients_sentence

from .plans import cpu_plan

ACROSS = {"pp": 1, "dp": 4}
INSIDE = {"pp": 2, "dp": 2}
ALONE = {"pp": 4, "dp": 1}


def said(degrees: dict[str, int], times: float, waited: float = 1.0, computed: float = 0.0) -> str | None:
    """The sentence on steps so many times as long; waits for gradients and compute have those parts of what is more."""
    plan = cpu_plan(parallel=degrees)
    planned, longer_s = plan.prediction, (times - 1) * plan.prediction.step_s
    metrics = StepMetrics(
        step=14,
        loss=1.0,
        eval_loss=None,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_s=times * planned.step_s,
        compute_s=planned.compute_s + computed * longer_s,
        exposed_s=waited * longer_s,
        tokens_per_s=1.0,
        tflops_per_s=1.0,
        mfu=0.0,
        memory_bytes=1,
        verdicts=(),
        interfaces=(),
    )
    finished = FinishedStep(metrics, (), gradients_s=planned.exposed_dp_s + waited * longer_s)
    return slow_gradients_sentence(plan, finished, times * planned.step_s)


def test_the_trunk_that_gradients_cross_is_named() -> None:
    sentence = said(ACROSS, 10)
    assert sentence is not None
    assert sentence.startswith("steps take 10.0x as long as planned (")
    assert "; the trunk a - b carries less than planned" in sentence


def test_gradients_inside_clusters_name_their_networks() -> None:
    assert "; the network of a, b carries less than planned" in (said(INSIDE, 10) or "")


@pytest.mark.parametrize(
    ("degrees", "times", "waited", "computed"),
    [
        (ACROSS, 1.4, 1.0, 0.0),  # nearly as planned
        (ACROSS, 10, 0.4, 0.0),  # something else is most of it
        (ACROSS, 10, 1.0, 0.8),  # a host that computes longer holds them up
        (ALONE, 10, 1.0, 0.0),  # no gradients travel
    ],
)
def test_other_reasons_are_not_put_on_the_wire(
    degrees: dict[str, int], times: float, waited: float, computed: float
) -> None:
    assert said(degrees, times, waited, computed) is None
