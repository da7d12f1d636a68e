"""The best codecs and depths of edges, chosen from measurements by the planner's rules. Free of torch.

All functions are pure, so all ranks get the same result from the same measurements.
"""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from holmes_runtime.config.codec import CODECS, EdgeSettings
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import DEEPENED
from holmes_runtime.health.measured_times import Measured, StepEstimate

Settings = tuple[EdgeSettings, ...]
"""The settings of all edges, by earlier pipeline rank."""

MAX_SLOWDOWN = 1.02  # accepted for a milder codec or less memory
MIN_GAIN = 1.05  # of a change of settings: less may be noise


def adapt(plan: RunConfig, config: RunConfig, measured: Measured) -> Settings:
    """Return the next settings of all edges, from measurements under `config`; `plan` is the run as planned.

    They change if that makes the step faster by `MIN_GAIN`. They also change to milder codecs, or back to the plan, if
    that costs at most `MAX_SLOWDOWN`.
    """
    estimate, now = StepEstimate(config, measured), config.edge_settings
    best = choose(plan, estimate)
    now_s, best_s = estimate.step_s(now), estimate.step_s(best)
    is_faster = now_s > best_s * MIN_GAIN
    is_as_good = best_s <= now_s * MAX_SLOWDOWN and (best == plan.edge_settings or _is_milder(best, now))
    return best if is_faster or is_as_good else now


def choose(plan: RunConfig, estimate: StepEstimate) -> Settings:
    """Return the mildest allowed codecs and the smallest depth that make the step as short as possible.

    Edges start with the lossiest codec and the greatest depth that is useful and fits memory. One after another, each
    takes the mildest codec, and then the smallest depth, that keeps the step within `MAX_SLOWDOWN`. Depth is therefore
    preferred to loss. No edge becomes shallower than planned.
    """
    settings = _deepest(plan, estimate)
    max_s = estimate.step_s(settings) * MAX_SLOWDOWN
    for edge in sorted(plan.edges_between_hosts):
        for direction in ("gradients", "activations"):
            milder = (_with(settings, edge, **{direction: codec}) for codec in plan.allowed_codecs)
            settings = next(tried for tried in milder if estimate.step_s(tried) <= max_s)
    for edge, planned in enumerate(plan.edge_settings):
        depths = range(planned.extra_in_flight, settings[edge].extra_in_flight)
        shallower = [_with(settings, edge, extra_in_flight=extra) for extra in depths]
        enough = bisect_left(shallower, True, key=lambda tried: estimate.step_s(tried) <= max_s)
        settings = [*shallower, settings][enough]
    return settings


def _with(settings: Settings, edge: int, **changes: object) -> Settings:
    return (*settings[:edge], settings[edge]._replace(**changes), *settings[edge + 1 :])  # type: ignore[arg-type]


def _deepest(plan: RunConfig, estimate: StepEstimate) -> Settings:
    """Return the lossiest codecs, and the depths that hide messages of any codec and fit memory."""
    lossiest = plan.allowed_codecs[-1]
    settings = tuple(
        each._replace(activations=lossiest, gradients=lossiest) if edge in plan.edges_between_hosts else each
        for edge, each in enumerate(plan.edge_settings)
    )
    if plan.schedule not in DEEPENED or plan.pp == 1:
        return settings
    wanted = _useful_depths(plan, estimate)
    for most in range(max(wanted), 0, -1):
        deeper = tuple(
            each._replace(extra_in_flight=max(each.extra_in_flight, min(depth, most)))
            for each, depth in zip(settings, wanted, strict=True)
        )
        if _fits(plan, deeper):
            return deeper
    return settings


def _useful_depths(plan: RunConfig, estimate: StepEstimate) -> list[int]:
    """Return by edge the micro-batches in flight, beyond 1F1B, that hide a round trip with any codec.

    They are at most the micro-batches of a step.
    """
    replicas = [[sum(seconds) for seconds in zip(*stages, strict=True)] for stages in estimate.stage_s]
    stages_s = [max(seconds) for seconds in zip(*replicas, strict=True)]
    edges = range(plan.pp - 1)
    found = [0] * (plan.pp - 1)
    for codec in plan.allowed_codecs:
        packed = [
            EdgeSettings(codec, codec, 0) if e in plan.edges_between_hosts else plan.edge_settings[e] for e in edges
        ]
        pace_s = max(*stages_s, *(estimate.busy_s(e, packed[e]) for e in edges))
        for e in edges:
            trip_s = stages_s[e] + stages_s[e + 1] + estimate.trip_s(e, packed[e])
            found[e] = max(found[e], ceil(trip_s / pace_s) - 2 if pace_s else 0)
    return [min(extra, max(plan.microbatches)) for extra in found]


def _fits(plan: RunConfig, settings: Settings) -> bool:
    """Return True if every pipeline rank has memory for its micro-batches in flight, where that is known."""
    most = max(plan.microbatches)
    in_flight = (
        min(most, plan.pp - rank + sum(each.extra_in_flight for each in settings[rank:])) for rank in range(plan.pp)
    )
    return all(held <= room for held, room in zip(in_flight, plan.room_in_flight, strict=False))


def _is_milder(settings: Settings, now: Settings) -> bool:
    """Return True if some edge has a milder codec and none a lossier one."""
    ours, theirs = ([CODECS.index(codec) for each in edges for codec in each[:2]] for edges in (settings, now))
    return ours != theirs and all(one <= other for one, other in zip(ours, theirs, strict=True))
