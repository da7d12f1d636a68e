"""Advice on a plan, as `holmes plan --json` prints it under `advice`; documented in docs/planning.md."""

from __future__ import annotations

from holmes_core.records.plan import Crossing
from holmes_core.records.record import Record


class PlannedStep(Record):
    """A plan in short: its degrees, hosts and step, and the speed in tokens/s relative to the plan that was asked."""

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    crossing: Crossing
    hosts: int
    step_s: float
    ratio: float


class Help(Record):
    """A change that would make the job faster: in words, and as `--what-if` or job.yaml takes it."""

    words: str
    what_if: str | None
    job: str | None
    step_s: float
    tokens_per_s: float
    ratio: float


class WhatIf(Record):
    """A change that was asked, and its plan, or why there is none."""

    change: str
    plan: PlannedStep | None
    why: str


class PlanAnswer(Record):
    """A question about the plan, its answer, and the plan that the answer is about, if one was made for it."""

    question: str
    answer: str
    plan: PlannedStep | None = None


class Ablation(Record):
    """The step of the same plan without some of its features; None where that does not fit, and why."""

    without: tuple[str, ...]
    step_s: float | None
    why: str


class PlacedBy(Record):
    """One order of a layer's experts on the odd tokens of a trace: copies that leave hosts, of a token, the fullest
    rank's rows over the mean, and the seconds of a micro-batch that its group waits for network and experts.
    """

    copies: float
    fullest: float
    seconds: float


class LayerExperts(Record):
    """The experts of a layer by rank of a group, and their usual order, in which they are numbered.

    `gap`: how far its seconds may be from the optimum, on the even tokens that choose, as a part of them; None where
    no time was left to look for another order than the usual one.
    """

    layer: int
    experts: tuple[tuple[int, ...], ...]
    usual: PlacedBy
    placed: PlacedBy
    gap: float | None


class PlanAdvice(Record):
    """All advice on one plan; lists of what was not asked are empty."""

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
