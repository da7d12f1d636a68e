"""Advice on a plan, as `holmes plan --json` prints it under `advice`; documented in docs/planning.md."""

from __future__ import annotations

from holmes_core.records.plan import Crossing
from holmes_core.records.record import Record


class PlannedStep(Record):
    """A summary of a plan: degrees, hosts, step, and the speed in tokens/s relative to the requested plan."""

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    crossing: Crossing
    hosts: int
    step_s: float
    ratio: float


class Help(Record):
    """A change that would make the job faster: in words, and as text for `--what-if` or job.yaml."""

    words: str
    what_if: str | None
    job: str | None
    step_s: float
    tokens_per_s: float
    ratio: float


class WhatIf(Record):
    """A requested change and its plan, or the reason why there is none."""

    change: str
    plan: PlannedStep | None
    why: str


class PlanAnswer(Record):
    """A question about the plan, its answer, and the plan that was made for the answer, if any."""

    question: str
    answer: str
    plan: PlannedStep | None = None


class Ablation(Record):
    """The step of the same plan without some of its features; None if that does not fit, with the reason."""

    without: tuple[str, ...]
    step_s: float | None
    why: str


class PlacedBy(Record):
    """One order of a layer's experts, evaluated on the odd tokens of a trace.

    `copies` leave a host per token; `fullest` is the fullest rank's rows over the mean; `seconds` is the time per
    micro-batch that the group waits for network and experts.
    """

    copies: float
    fullest: float
    seconds: float


class LayerExperts(Record):
    """The experts of a layer by rank of a group, compared with their usual order by number.

    `gap`: the fraction by which the seconds may exceed the optimum, on the even tokens, which select the order. None if
    no time was left to search for another order.
    """

    layer: int
    experts: tuple[tuple[int, ...], ...]
    usual: PlacedBy
    placed: PlacedBy
    gap: float | None


class PlanAdvice(Record):
    """All advice on one plan. Lists that were not requested are empty."""

    answer: tuple[str, ...]  # the lines above the tables
    left_out: tuple[str, ...]  # a sentence for each reason why hosts or GPUs are idle
    bottleneck: str
    notes: tuple[str, ...]  # the sentences below the tables
    helps: tuple[Help, ...]  # best first
    untried: tuple[str, ...]  # changes that no time was left for
    what_ifs: tuple[WhatIf, ...]
    explain: tuple[PlanAnswer, ...]
    ablations: tuple[Ablation, ...]
    experts: tuple[LayerExperts, ...] = ()  # by layer, with --routing
