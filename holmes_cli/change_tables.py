"""What another inventory would give, as tables: the changes that would help most, and the ones the user asked about."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_cli.plan_tables import Sheet, count, describe_degrees
from holmes_core.errors import HolmesError
from holmes_core.plan import Plan, Prediction
from holmes_core.units import format_seconds
from planner.advise import Advised

SPEED = ("step", "tokens/s", "ratio")


def advice_sheet(plan: Plan, advised: Advised) -> Sheet:
    """The changes that would help, as `--what-if` takes them, best first; why there are none where there are none."""
    rows = [(item.words, item.change, *_speed(item.prediction, plan.prediction)) for item in advised.found]
    if not rows:
        rows.append(("none of those tried makes the step faster", "", "", "", ""))
    if advised.untried:
        rows.append((f"not tried: {', '.join(advised.untried)}", "", "", "", ""))
    return Sheet("What would help most", ("change", "--what-if", *SPEED), tuple(rows))


def what_if_sheet(plan: Plan, outcomes: Mapping[str, Plan | HolmesError]) -> Sheet:
    """The plan as it is, and each change with the plan it would get, or why there is none."""
    rows = [("as it is", _degrees(plan), *_speed(plan.prediction, plan.prediction))]
    for change, outcome in outcomes.items():
        if isinstance(outcome, HolmesError):
            rows.append((change, f"no plan: {outcome.what}", "", "", ""))
        else:
            rows.append((change, _degrees(outcome), *_speed(outcome.prediction, plan.prediction)))
    return Sheet("What if", ("change", "degrees", *SPEED), tuple(rows))


def _degrees(plan: Plan) -> str:
    return f"{describe_degrees(plan)}; {count(len(plan.nodes), 'host')}"


def _speed(guess: Prediction, base: Prediction) -> tuple[str, str, str]:
    """Step, tokens/s, and how many times as fast as `base`."""
    ratio = f"{guess.tokens_per_s / base.tokens_per_s:.2f}x" if base.tokens_per_s else ""
    return format_seconds(guess.step_s), f"{guess.tokens_per_s:.0f}", ratio
