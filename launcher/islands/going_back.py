"""Islands that all go back to one older step, each to its own checkpoint of that moment (`--resume-step`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd, lcm

from holmes_core.errors import HolmesError
from holmes_core.records.plan import IslandsPlan

MAX_SHOWN = 10


def steps_back(plan: IslandsPlan, step: int) -> tuple[int, ...]:
    """Return the steps that each island has taken once island 0 has taken `step`, in rounds that end together.

    Raises HolmesError if another island is then within a step.
    """
    first, *_ = plan.inner_steps
    for island, inner_steps in enumerate(plan.inner_steps):
        if step * inner_steps % first:
            every = lcm(*(first // gcd(first, each) for each in plan.inner_steps))
            raise HolmesError(
                f"--resume-step {step}: island 0, whose steps count, takes {first} steps a round, and island {island} "
                f"takes {inner_steps}: it has then taken {step * inner_steps / first:.2f} steps",
                f"name a multiple of {every}; or continue from the newest checkpoints with `--resume`",
            )
    return tuple(step * inner_steps // first for inner_steps in plan.inner_steps)


def step_of_island(plan: IslandsPlan, step: int | None, island: int) -> int | None:
    """Return the step to which an island goes back, where all go back to island 0's `step`. Raises as `steps_back`."""
    return None if step is None else steps_back(plan, step)[island]


def require_checkpoints(plan: IslandsPlan, step: int, saved: Sequence[Collection[int]]) -> None:
    """Raise HolmesError unless each island has a checkpoint to go back to; `saved` are the steps of its own."""
    back = steps_back(plan, step)
    having = [island for island, steps in enumerate(back) if steps in saved[island]]
    if len(having) == len(back):
        return
    lacking = (_place(plan, island, back[island]) for island in range(len(back)) if island not in having)
    there = f"; those that have it: {', '.join(f'island {island}' for island in having)}" if having else ""
    common = [each for each in sorted(saved[0]) if _all_have(plan, each, saved)][-MAX_SHOWN:]
    steps = ", ".join(map(str, common))
    name = f"all islands have --resume-step {steps}" if common else "no step is saved on all islands"
    raise HolmesError(
        f"--resume-step {step}: no checkpoint {'; '.join(lacking)}{there}",
        f"{name}; or continue from the newest checkpoints with `--resume`",
    )


def _place(plan: IslandsPlan, island: int, steps: int) -> str:
    checkpoint, hosts = plan.islands[island].job.checkpoint, (node.host for node in plan.islands[island].nodes)
    assert checkpoint is not None  # else nothing is resumed
    return f"after step {steps} of island {island} in {checkpoint.path} of {', '.join(hosts)}"


def _all_have(plan: IslandsPlan, step: int, saved: Sequence[Collection[int]]) -> bool:
    try:
        return all(steps in has for steps, has in zip(steps_back(plan, step), saved, strict=True))
    except HolmesError:
        return False
