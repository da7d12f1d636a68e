"""All advice on a plan as one record, as `--json` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from holmes_cli.screen.change_tables import helps
from holmes_cli.screen.show_plan import headline, plan_sentences
from holmes_core.errors import HolmesError
from holmes_core.records.advice import PlanAdvice, PlannedStep, WhatIf
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.explain import bottleneck
from planner.advice.left_out import left_out_sentences
from planner.advice.plan_with_advice import PlanAndAdvice


def plan_advice(answer: PlanAndAdvice, inventory: Inventory) -> PlanAdvice:
    """Return the sentences, the changes that help, and the answers to the user's questions."""
    plan = answer.plan
    return PlanAdvice(
        answer=headline(plan, inventory),
        left_out=left_out_sentences(plan, inventory),
        bottleneck=bottleneck(plan),
        notes=plan_sentences(plan, inventory, answer.advised.engine),
        helps=helps(plan, answer.advised),
        untried=answer.advised.untried,
        what_ifs=tuple(_what_ifs(plan, answer.what_ifs)),
        explain=answer.answers,
        ablations=answer.ablations,
        experts=answer.experts,
    )


def _what_ifs(plan: Plan, outcomes: Mapping[str, Plan | HolmesError]) -> Iterator[WhatIf]:
    for change, outcome in outcomes.items():
        if isinstance(outcome, HolmesError):
            yield WhatIf(change=change, plan=None, why=outcome.what)
        else:
            yield WhatIf(change=change, plan=_in_short(outcome, plan), why="")


def _in_short(plan: Plan, base: Plan) -> PlannedStep:
    step_s = plan.prediction.step_s
    return PlannedStep(
        tp=plan.tp,
        pp=plan.pp,
        dp=plan.engine_dp,
        micro_batch_size=plan.micro_batch_size,
        crossing=plan.solve.crossing,
        hosts=len(plan.nodes),
        step_s=step_s,
        ratio=base.prediction.step_s / step_s if step_s else 1.0,
    )


def with_advice(plan: Path, advice: PlanAdvice) -> Iterator[str]:
    """Yield the lines of the plan's file with one key more, `advice`; its last line closes the plan."""
    before = ""
    with open(plan, encoding="utf-8") as written:
        for line in written:
            if line != "}\n":
                yield before
                before = line
    yield f'{before.rstrip()},\n "advice": {advice.model_dump_json()}\n}}\n'
