"""The choice of inner steps, codec, fragments and delay of islands, if job.yaml leaves them open.

More inner steps raise the tokens/s, but also the loss. So the longest round within `max_loss_penalty` is considered for
each codec, number of fragments and delay, along with shorter ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from holmes_core.records.islands import LossPenalty, SettingPrice
from holmes_core.records.job import Job
from holmes_runtime.config.run_settings import ChosenIslands, IslandsSettings, OuterCodec
from planner.cost.islands_loss import BY_DELAY, MAX_INNER_STEPS, MEASURED_STEPS, loss_penalty
from planner.islands.island_rounds import IslandRound

FRAGMENTS = (1, 4)  # measured, as are the delays
DELAY_STEPS = tuple(BY_DELAY)
NEAR = 1.01  # among settings within this factor of the fastest, the one with the least loss is chosen
WHOLE = 8  # the longest rounds, one step apart: slower islands take whole steps, which some lengths suit better


def open_settings(job: Job) -> tuple[ChosenIslands, ...]:
    """Return every setting of islands that the job allows, a single one if it fixes all keys."""
    assert job.islands is not None
    section, most = job.islands, max(1, min(MAX_INNER_STEPS, job.steps // 2))
    codecs = (section.codec,) if section.codec else get_args(OuterCodec)
    fragments = (section.fragments,) if section.fragments else FRAGMENTS
    delays = DELAY_STEPS if section.delay_steps is None else (section.delay_steps,)
    if section.inner_steps == "all":
        section, fragments, delays = replace(section, inner_steps=job.steps), (1,), (0,)
        codecs = (section.codec or "int8",)  # no later exchange would correct the rounding errors of int4
    found = dict[ChosenIslands, None]()
    for others in product(codecs, fragments, delays):
        fixed = section.inner_steps
        numbers = {fixed} if isinstance(fixed, int) else _inner_steps(section, most, others)
        for number in sorted(numbers):
            found.update(dict.fromkeys(_setting(section, number, *others)))
    return tuple(found)


def choose_round(rounds: Sequence[IslandRound]) -> IslandRound | None:
    """Return the round with the least loss among the allowed ones that are about as fast as the fastest, if any."""
    allowed = [each for each in rounds if is_possible(each)]
    fastest = max((each.cost.tokens_per_s for each in allowed), default=0.0)
    near = [each for each in allowed if each.cost.tokens_per_s * NEAR >= fastest]
    return min(near, key=_loss_then_time, default=None)


def is_possible(made: IslandRound) -> bool:
    """Return True if the round's settings fit in memory, and their loss is allowed."""
    return not made.misfit and is_allowed(made.settings, made.loss)


def is_allowed(settings: ChosenIslands, loss: LossPenalty | None) -> bool:
    """Return True if the expected loss is within `max_loss_penalty`. A loss that was not measured is not."""
    if settings.max_loss_penalty is None:
        return True
    return loss is not None and loss.expected <= percent(settings.max_loss_penalty)


def percent(text: str) -> float:
    """Return the number of `0.5%`."""
    return float(text.removesuffix("%"))


def setting_prices(rounds: Sequence[IslandRound], chosen: IslandRound | None) -> Iterator[SettingPrice]:
    """Yield the prices of the chosen setting and of those that differ from it in one key, in their order."""
    if chosen is None or len(rounds) < 2:
        return
    ours = _respects(chosen.settings)
    fastest = max(made.cost.tokens_per_s for made in rounds if is_possible(made))
    for each in sorted(rounds, key=lambda made: _respects(made.settings)):
        differing = sum(a != b for a, b in zip(_respects(each.settings), ours, strict=True))
        is_round = each.settings.inner_steps in (ours[0], *MEASURED_STEPS)
        if differing <= 1 and is_round:
            yield _price(each, chosen, fastest)


def _respects(settings: ChosenIslands) -> tuple[int, int, tuple[int, int]]:
    codecs: tuple[OuterCodec, ...] = get_args(OuterCodec)
    return settings.inner_steps, codecs.index(settings.codec), (settings.fragments, settings.delay_steps)


def _price(made: IslandRound, chosen: IslandRound, fastest: float) -> SettingPrice:
    settings, cost = made.settings, made.cost
    return SettingPrice(
        inner_steps=max(made.inner_steps),
        codec=settings.codec,
        fragments=settings.fragments,
        delay_steps=settings.delay_steps,
        sent_bytes=sum(cost.sent_bytes),
        step_s=cost.round_s / max(made.inner_steps),
        tokens_per_s=cost.tokens_per_s,
        loss=made.loss,
        is_chosen=settings == chosen.settings,
        why=_why(made, chosen, fastest),
    )


def _why(made: IslandRound, chosen: IslandRound, fastest: float) -> str:
    """Return the reason why the setting was chosen, or why not."""
    speed, bound = made.cost.tokens_per_s, made.settings.max_loss_penalty
    if made.settings == chosen.settings:
        return "chosen: the fastest" if speed >= fastest else "chosen: least loss within 1 % of the fastest"
    if made.misfit:
        return f"dropped: {made.misfit}"
    if not is_possible(made):
        return f"more than max_loss_penalty {bound}" if made.loss else "its loss was not measured"
    if speed * NEAR >= min(fastest, chosen.cost.tokens_per_s):
        return "about as fast, no less loss"
    return f"{chosen.cost.tokens_per_s / speed:.2f}x the time a token"


def _inner_steps(section: IslandsSettings, most: int, others: tuple[OuterCodec, int, int]) -> set[int]:
    """Return the inner steps to consider: measured ones, the most, the most with an allowed loss, and a few less."""
    allowed = (
        steps
        for steps in range(most, 0, -1)
        if any(is_allowed(each, loss_penalty(each)) for each in _setting(section, steps, *others))
    )
    longest = {most, next(allowed, most)}
    near = {steps - fewer for steps in longest for fewer in range(min(WHOLE, steps))}
    return near | {steps for steps in MEASURED_STEPS if steps <= most}


def _setting(
    section: IslandsSettings, inner_steps: int, codec: OuterCodec, fragments: int, delay_steps: int
) -> Iterable[ChosenIslands]:
    """Return the setting in a tuple, or an empty one if a round is too short for the fragments and the delay."""
    if fragments > inner_steps or delay_steps > inner_steps // fragments:
        return ()
    chosen = {"inner_steps": inner_steps, "codec": codec, "fragments": fragments, "delay_steps": delay_steps}
    return (ChosenIslands(**(vars(section) | chosen)),)


def _loss_then_time(made: IslandRound) -> tuple[float, int, float]:
    return (
        round(made.loss.expected, 1) if made.loss else float("inf"),
        made.settings.inner_steps,
        -made.cost.tokens_per_s,
    )
