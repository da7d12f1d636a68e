"""Fits the constants of one machine type to the calibrating rows by coordinate search, and prints them.

`python -m benchmarks.published_steps.fit A100`. Each constant in turn is multiplied and divided by a factor that
shrinks; what lowers the mean of |log(predicted / published)| is kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.published_steps.measurements import Measurement, measurements
from benchmarks.published_steps.predict_row import calibrates, chosen_size, predicted_bytes, predicted_s
from benchmarks.published_steps.sites import SITES, Site
from planner.cost.collectives import Path

Constants = Mapping[str, float]  # "speed.FIELD", "TABLE.FIELD" of a site; "inside.FIELD" of all sites' hosts
FIRST_FACTOR, LAST_FACTOR = 1.25, 1.01

FITTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "A100": (
        ("V1", "V2", "V3", "V4"),
        (
            "speed.matrix_flops_per_s", "speed.half_size", "speed.attention_flops_per_s", "speed.memory_bytes_per_s",
            "speed.launch_s", "inside.bandwidth_bytes_per_s", "inside.latency_s",
            "V1.edge_efficiency", "V1.sync_efficiency", "V4.edge_efficiency", "V4.sync_efficiency",
        ),
    ),
    "GH200": (
        ("V5",),
        (
            "speed.matrix_flops_per_s", "speed.half_size", "speed.launch_s", "inside.latency_s",
            "V5.edge_efficiency", "V5.sync_efficiency",
        ),
    ),
    "GH200-memory": (("V5",), ("V5.reserve_bytes", "V5.extra_state_bytes", "V5.activation_factor")),
    "H100": (("V6",), ("speed.matrix_flops_per_s", "speed.half_size", "V6.exposed_tp", "V6.sync_efficiency")),
}  # fmt: skip

# What no constant may exceed: dense tensor rates of the data sheets (GH200: TF32) and, for NVLink, 0.8 of their rates.
# A new machine type starts from plausible constants in gpu_speeds.py and sites.py.
MOST = {
    "A100": {
        "speed.matrix_flops_per_s": 312e12,
        "speed.memory_bytes_per_s": 2.039e12,
        "inside.bandwidth_bytes_per_s": 240e9,
    },
    "GH200": {"speed.matrix_flops_per_s": 494e12},
    "H100": {"speed.matrix_flops_per_s": 989e12, "inside.bandwidth_bytes_per_s": 450e9},
}


def read_constants(names: Sequence[str], sites: Mapping[str, Site]) -> dict[str, float]:
    """What the constants are now."""
    first = next(iter(sites.values()))
    owners = {"speed": first.speed, "inside": first.inside, **sites}
    return {name: float(getattr(owners[name.split(".")[0]], name.split(".")[1])) for name in names}


def with_constants(sites: Mapping[str, Site], constants: Constants) -> dict[str, Site]:
    """The sites with other constants; tables that share a site share its efficiencies."""
    fields: dict[str, dict[str, float]] = {}
    for name, value in constants.items():
        owner, field = name.split(".")
        fields.setdefault(owner, {})[field] = value
    changed = {}
    for table, site in sites.items():
        own = next((fields[other] for other in sites if sites[other] is site and other in fields), {})
        inside: Path = replace(site.inside, **fields.get("inside", {}))
        changed[table] = replace(site, speed=replace(site.speed, **fields.get("speed", {})), inside=inside, **own)  # type: ignore[arg-type]
    return changed


def mean_error(rows: Sequence[Measurement], sites: Mapping[str, Site]) -> float:
    """Mean of |log(predicted / published)|."""
    return sum(abs(math.log(quick_s(row, sites[row.table]) / row.step_s)) for row in rows) / len(rows)


def mean_memory_error(rows: Sequence[Measurement], sites: Mapping[str, Site]) -> float:
    """As `mean_error`, of the memory of the fullest rank."""
    pairs = [(predicted_bytes(row, sites[row.table], row.micro_batch_size or 1), row.memory_gb) for row in rows]
    return sum(abs(math.log(found / (1e9 * measured))) for found, measured in pairs if measured) / len(rows)


def quick_s(row: Measurement, site: Site) -> float:
    """The predicted step; of many micro-batches, from steps of two and three rounds of pp, each further one alike."""
    assert row.micro_batch_size is not None
    one_round = row.pp * row.dp * row.micro_batch_size
    rounds = row.global_batch_size / one_round
    if rounds <= 4:
        return predicted_s(row, site)
    two_s, three_s = (predicted_s(replace(row, global_batch_size=n * one_round), site) for n in (2, 3))
    return two_s + (three_s - two_s) * (rounds - 2)


def search(start: Constants, most: Constants, loss: Callable[[Constants], float]) -> tuple[dict[str, float], float]:
    """Constants no single one of which can be bettered by the last factor, and their loss; none exceeds its `most`."""
    best = dict(start)
    least = loss(best)
    factors = dict.fromkeys(best, FIRST_FACTOR)
    while max(factors.values()) > LAST_FACTOR:
        for name in best:
            for factor in (factors[name], 1 / factors[name]):
                limit = most.get(name, 1.0 if name.endswith(("_efficiency", "exposed_tp")) else math.inf)
                tried = {**best, name: min(best[name] * factor, limit)}
                found = loss(tried)
                if found < least:
                    best, least = tried, found
                    break
            else:
                factors[name] = math.sqrt(factors[name])
        print(f"{least:.4f}", {name: f"{value:.3g}" for name, value in best.items()}, file=sys.stderr, flush=True)
    return best, least


def main() -> None:
    """Fit the machine type named on the command line."""
    tables, names = FITTED[sys.argv[1]]
    sites = {table: SITES[table] for table in tables}
    rows = [chosen_size(row, sites[row.table]) for row in measurements() if row.table in tables and calibrates(row)]
    error = mean_memory_error if sys.argv[1].endswith("memory") else mean_error
    best, least = search(
        read_constants(names, sites),
        MOST.get(sys.argv[1], {}),
        lambda constants: error(rows, with_constants(sites, constants)),
    )
    print(f"mean |log error| {least:.4f} on {len(rows)} rows")
    for name, value in best.items():
        print(f"{name} = {value:.3g}")


if __name__ == "__main__":
    main()
