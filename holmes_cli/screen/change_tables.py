"""Alternatives to a plan, as tables: the most helpful changes, the user's own, and other modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_cli.screen.plan_tables import Sheet, count, describe_degrees
from holmes_core.errors import HolmesError
from holmes_core.records.advice import Ablation, Help, PlanAnswer
from holmes_core.records.islands import BestMode, LossPenalty, Mode, ModePrice, Modes, SettingPrice
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes, format_rate, format_seconds
from planner.advice.advise import Advised
from planner.cost.codec_loss import loss_words

MAX_NAMED = 8  # changes that were not tried
MODE_WORDS: dict[Mode, str] = {
    "pipeline": "pipeline across clusters",
    "data": "data parallelism across clusters",
    "both": "pipeline and data parallelism across",
    "islands": "islands",
    "one cluster": "one cluster alone",
}
SPEED = ("step", "tokens/s", "ratio")


def helps(plan: Plan, advised: Advised) -> tuple[Help, ...]:
    """Return the helpful changes: of the inventory, best first, then of job.yaml."""
    found = [_help(item.words, item.step_s, plan, what_if=str(item.change)) for item in advised.found]
    for codec, step_s in advised.codecs:
        words = f"what crosses between stages packed as {codec}, which changes training: {loss_words(codec)}"
        found.append(_help(words, step_s, plan, job=f"wire: {{edges: {codec}}}"))
    if advised.batch is not None:
        found.append(_batch_help(plan, *advised.batch))
    return tuple(found)


def _help(words: str, step_s: float, plan: Plan, what_if: str | None = None, job: str | None = None) -> Help:
    ratio = plan.prediction.step_s / step_s if step_s else 1.0
    speed = ratio * plan.prediction.tokens_per_s
    return Help(words=words, what_if=what_if, job=job, step_s=step_s, tokens_per_s=speed, ratio=ratio)


def _batch_help(plan: Plan, batch: int, step_s: float) -> Help:
    """Return another batch size: its ratio is that of tokens/s, as its step has another number of tokens."""
    now, sample_s = plan.prediction, step_s / batch
    tokens_per_s = plan.job.model.seq_length / sample_s
    before = format_seconds(now.step_s / plan.job.global_batch_size)
    return Help(
        words=f"a batch of {batch}: {format_seconds(sample_s)} a sample, not {before}",
        what_if=None,
        job=f"global_batch_size: {batch}",
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        ratio=tokens_per_s / now.tokens_per_s,
    )


def advice_sheet(plan: Plan, advised: Advised) -> Sheet:
    """Return the helpful changes in the form of `--what-if` or job.yaml, or a row that none of them helps."""
    rows = [
        (
            each.words,
            each.what_if or f"job.yaml: {each.job}",
            format_seconds(each.step_s),
            f"{each.tokens_per_s:.0f}",
            f"{each.ratio:.2f}x",
        )
        for each in helps(plan, advised)
    ]
    if not rows:
        rows.append(("none of those tried makes the step faster", "", "", "", ""))
    if advised.untried:
        more = len(advised.untried) - MAX_NAMED
        named = ", ".join(advised.untried[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        rows.append((f"not tried: {named}", "", "", "", ""))
    return Sheet("What would help most", ("change", "--what-if", *SPEED), tuple(rows))


def explain_sheet(answers: Sequence[PlanAnswer]) -> Sheet:
    """Return the usual questions about the plan, each with its answer."""
    rows = tuple(
        (
            each.question,
            each.answer,
            format_seconds(each.plan.step_s) if each.plan else "",
            f"{each.plan.ratio:.2f}x" if each.plan else "",
        )
        for each in answers
    )
    return Sheet("Why this plan", ("question", "answer", "step", "ratio"), rows)


def ablation_sheet(plan: Plan, ablations: Sequence[Ablation]) -> Sheet:
    """Return the step as planned and without some of its features."""
    rows = [("as planned", *_speed(plan.prediction.step_s, plan))]
    for each in ablations:
        name = f"without {', '.join(each.without)}"
        rows.append(
            (f"{name}: does not fit: {each.why}", "", "", "")
            if each.step_s is None
            else (name, *_speed(each.step_s, plan))
        )
    return Sheet("The same plan without", ("feature", *SPEED), tuple(rows))


def what_if_sheet(plan: Plan, outcomes: Mapping[str, Plan | HolmesError]) -> Sheet:
    """Return the plan as it is, and each change with its plan, or why there is none."""
    rows = [("as it is", _degrees(plan), *_speed(plan.prediction.step_s, plan))]
    for change, outcome in outcomes.items():
        if isinstance(outcome, HolmesError):
            rows.append((change, f"no plan: {outcome.what}", "", "", ""))
        else:
            rows.append((change, _degrees(outcome), *_speed(outcome.prediction.step_s, plan)))
    return Sheet("What if", ("change", "degrees", *SPEED), tuple(rows))


def mode_sheets(modes: Modes) -> tuple[Sheet, ...]:
    """Return the price of each mode, of islands' settings, and the best modes for other networks between clusters."""
    first = modes.prices[0].tokens_per_s or 0.0
    rows = tuple(_mode_row(price, first, at == 0) for at, price in enumerate(modes.prices))
    headings = ("mode", "clusters", "step or round", "tokens/s", "across", "why not")
    prices = Sheet("Modes", headings, rows)
    settings = (_settings_sheet(modes.settings),) if modes.settings else ()
    return (prices, *settings, *((_best_modes(modes.by_network),) if modes.by_network else ()))


def _settings_sheet(prices: Sequence[SettingPrice]) -> Sheet:
    """Return a row per setting of islands that was considered."""
    rows = tuple(
        (
            str(each.inner_steps),
            each.codec,
            f"{each.fragments}, {each.delay_steps} late",
            format_bytes(each.sent_bytes),
            format_seconds(each.step_s),
            f"{each.tokens_per_s:.0f}",
            loss_in_words(each.loss).removesuffix(" %"),
            each.why,
        )
        for each in prices
    )
    headings = ("inner steps", "codec", "fragments", "a round", "inner step", "tokens/s", "loss, %", "why")
    return Sheet("Settings of islands", headings, rows)


def loss_in_words(loss: LossPenalty | None) -> str:
    """Return `+0.5 ± 0.4 %`, the expected rise of the loss with half of its interval; or that it is not known."""
    if loss is None:
        return "not measured"
    return f"{loss.expected:+.1f} ± {(loss.high - loss.low) / 2:.1f} %"


def _mode_row(price: ModePrice, most_per_s: float, is_best: bool) -> tuple[str, ...]:
    if price.seconds is None or not price.tokens_per_s:
        return MODE_WORDS[price.mode], "", "", "", "", price.why
    speed = format_seconds(price.seconds), f"{price.tokens_per_s:.0f}", format_bytes(price.across_bytes or 0)
    ratio = most_per_s / price.tokens_per_s
    why = f"this is the plan; {price.why}" if is_best else f"{ratio:.2f}x the time a token; {price.why}"
    return MODE_WORDS[price.mode], ", ".join(price.clusters), *speed, why


def _best_modes(cells: Sequence[BestMode]) -> Sheet:
    """Return a row per rate between clusters and a column per latency, with the speed over the next best mode."""
    latencies = sorted({cell.latency_s for cell in cells})
    by_rate: dict[float, dict[float, BestMode]] = {}
    for cell in cells:
        by_rate.setdefault(cell.bandwidth_bytes_per_s, {})[cell.latency_s] = cell
    rows = tuple(
        (format_rate(rate), *(_cell(best[latency_s]) if latency_s in best else "" for latency_s in latencies))
        for rate, best in by_rate.items()
    )
    headings = ("a host", *map(format_seconds, latencies))
    return Sheet("Best mode by what joins clusters, times as fast as the next best", headings, rows)


def _cell(best: BestMode) -> str:
    return best.mode if best.over_next is None else f"{best.mode} {best.over_next:.2f}x"


def _degrees(plan: Plan) -> str:
    return f"{describe_degrees(plan)}; {count(len(plan.nodes), 'host')}"


def _speed(step_s: float, base: Plan) -> tuple[str, str, str]:
    """Return step, tokens/s, and the speed relative to `base`, whose job has as many tokens per step."""
    ratio = base.prediction.step_s / step_s if step_s else 1.0
    return format_seconds(step_s), f"{ratio * base.prediction.tokens_per_s:.0f}", f"{ratio:.2f}x"
