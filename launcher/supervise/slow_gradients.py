"""Explain a run that is slower than planned because gradients cross a wire that carries less. Pure.

Examinations time only the edges of the pipeline. Every step waits for gradients, and that wait is measured anyway.
"""

from __future__ import annotations

from holmes_core.records.plan import Plan
from holmes_core.units import format_seconds
from launcher.journal.step_metrics import FinishedStep

AFTER_STEPS = 15  # of an attempt: caches and connections are warm, and the first examination is over
SLOW = 1.5  # times the planned step; less is within the error of predictions
MAX_OF_IT = 0.5  # share of the excess over the planned step


def slow_gradients_sentence(plan: Plan, finished: FinishedStep, median_step_s: float) -> str | None:
    """Return why steps take longer than planned if waits for gradients are most of it; else None.

    A wait that a host's slow compute explains does not count.
    """
    planned, compute_s = plan.prediction, finished.metrics.compute_s
    if compute_s is None:
        return None
    longer_s = median_step_s - planned.step_s
    wait_s = finished.gradients_s - planned.exposed_dp_s - max(0.0, compute_s - planned.compute_s)
    where = _crossed(plan)
    if not where or median_step_s <= SLOW * planned.step_s or wait_s <= MAX_OF_IT * longer_s:
        return None
    return (
        f"steps take {median_step_s / planned.step_s:.1f}x as long as planned ({format_seconds(median_step_s)}, not "
        f"{format_seconds(planned.step_s)}): ranks wait {format_seconds(finished.gradients_s)} for gradients, planned "
        f"{format_seconds(planned.exposed_dp_s)}; {where} carries less than planned: measure it with "
        "`holmes probe --links`, then plan again"
    )


def _crossed(plan: Plan) -> str:
    """Return the network that gradients cross: trunks between clusters, or else a cluster's; "" inside one host."""
    across: set[str] = set()
    inside: set[str] = set()
    for group in plan.groups:
        if group.axis not in ("dp", "dp_across"):
            continue
        ranks = [plan.ranks[rank] for rank in group.ranks]
        clusters = sorted({rank.cluster for rank in ranks})
        if len(clusters) > 1:
            across.add(" - ".join(clusters))
        elif len({rank.host for rank in ranks}) > 1:
            inside.add(clusters[0])
    if across:
        return f"the trunk {', '.join(sorted(across))}"
    return f"the network of {', '.join(sorted(inside))}" if inside else ""
