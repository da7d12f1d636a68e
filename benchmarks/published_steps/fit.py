"""Fits the constants of one machine type and its engines to the calibrating rows by coordinate search, and prints them.

`python -m benchmarks.published_steps.fit A100`. Each constant in turn is multiplied and divided by a factor that
shrinks; what lowers the mean of |log(predicted / published)| is kept. The part of ZeRO-3's traffic that stays exposed
(sharded_weights.py) was
fitted together with A100's and H100's speeds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.published_steps.measurements import Measurement, measurements
from benchmarks.published_steps.predict_row import calibrates, chosen_size, is_planned, plan_row, quick_s
from planner.cost.engines import ENGINES
from planner.cost.gpu_speeds import LEVELS, PUBLISHED, Speed

Constants = Mapping[str, float]  # "speed.FIELD" of the GPU, "ENGINE.FIELD"
FIRST_FACTOR, LAST_FACTOR = 1.25, 1.01

FITTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "A100": (
        ("V12", "V15"),
        ("speed.matrix_flops_per_s", "speed.attention_flops_per_s"),
    ),
    "A100 2021": (
        ("V1", "V2", "V3"),
        (
            "speed.matrix_flops_per_s", "speed.half_size", "speed.attention_flops_per_s", "speed.memory_bytes_per_s",
            "speed.launch_s", "megatron-2021.exchange_share",
        ),
    ),
    "A100-engines": (
        ("V1", "V2", "V3", "V4"),
        ("megatron-2021.exchange_share", "megatron-deepspeed.edge_share", "megatron-deepspeed.exchange_share"),
    ),
    "GH200": (("V5", "V16"), ("speed.matrix_flops_per_s", "sailor.inside_latency_s", "sailor.exposed_tp")),
    "H100-engines": (("V6",), ("megatron-2024.exposed_tp", "megatron-2024.exchange_share")),
    "GH200-memory": (("V5", "V16"), ("sailor.activation_factor",)),
    "H100": (("V11",), ("speed.matrix_flops_per_s", "speed.attention_flops_per_s")),
    "H100 NeMo": (("V8", "V9"), ("speed.matrix_flops_per_s", "megatron-2024.growth")),
}  # fmt: skip
SPEEDS: Mapping[str, tuple[MutableMapping[tuple[str, int], Speed], tuple[str, int]]] = {
    "A100": (PUBLISHED, ("A100", 2)),
    "A100 2021": (LEVELS["megatron-2021"], ("A100", 2)),
    "GH200": (LEVELS["sailor"], ("GH200", 4)),
    "H100": (PUBLISHED, ("H100", 2)),
    "H100 NeMo": (LEVELS["megatron-2024"], ("H100", 2)),
}

# What no constant may exceed: dense tensor rates of the data sheets (GH200: TF32). A new machine type starts from
# plausible constants in gpu_speeds.py and engines.py.
MAX_VALUES = {
    "A100": {"speed.matrix_flops_per_s": 312e12, "speed.memory_bytes_per_s": 2.039e12},
    "GH200": {"speed.matrix_flops_per_s": 494e12},
    "H100": {"speed.matrix_flops_per_s": 989e12},
}
MAX_VALUES |= {"A100 2021": MAX_VALUES["A100"], "H100 NeMo": MAX_VALUES["H100"]}


def read_constants(names: Sequence[str], gpu: str) -> dict[str, float]:
    """What the constants are now."""
    (speeds, key), engines = SPEEDS[gpu], {str(name): engine for name, engine in ENGINES.items()}
    speed = speeds[key]
    return {name: float(getattr(engines.get(_owner(name), speed), name.split(".")[1])) for name in names}


def _owner(name: str) -> str:
    return name.split(".")[0]


@contextmanager
def planned_with(constants: Constants, gpu: str) -> Iterator[None]:
    """The planner's tables with these constants."""
    (speeds, key), known_engines = SPEEDS[gpu], dict(ENGINES)
    known_speed = speeds[key]
    own = {name.removeprefix("speed."): value for name, value in constants.items() if _owner(name) == "speed"}
    try:
        speeds[key] = replace(known_speed, **own)
        for name, engine in known_engines.items():
            fields = {key.split(".")[1]: value for key, value in constants.items() if _owner(key) == name}
            ENGINES[name] = replace(engine, **fields)  # type: ignore[arg-type]
        yield
    finally:
        speeds[key] = known_speed
        ENGINES.update(known_engines)


def mean_error(rows: Sequence[Measurement]) -> float:
    """Mean of |log(predicted / published)|."""
    return sum(abs(math.log(quick_s(row) / row.step_s)) for row in rows) / len(rows)


def mean_memory_error(rows: Sequence[Measurement]) -> float:
    """As `mean_error`, of the memory of the fullest rank."""
    pairs = [(max(plan_row(row)[0].prediction.memory_bytes), row.memory_gb) for row in rows]
    return sum(abs(math.log(found / (1e9 * measured))) for found, measured in pairs if measured) / len(rows)


def search(start: Constants, most: Constants, loss: Callable[[Constants], float]) -> tuple[dict[str, float], float]:
    """Constants no single one of which can be bettered by the last factor, and their loss; none exceeds its `most`."""
    best = dict(start)
    least = loss(best)
    factors = dict.fromkeys(best, FIRST_FACTOR)
    while max(factors.values()) > LAST_FACTOR:
        for name in best:
            for factor in (factors[name], 1 / factors[name]):
                limit = most.get(name, 1.0 if name.endswith(("_share", "exposed_tp")) else math.inf)
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
    fitted = sys.argv[1]
    gpu, (tables, names) = fitted.split("-")[0], FITTED[fitted]
    rows = [row for row in measurements() if row.table in tables and calibrates(row) and is_planned(row)]
    rows = [chosen_size(row) for row in rows]
    error = mean_memory_error if fitted.endswith("memory") else mean_error

    def loss(constants: Constants) -> float:
        with planned_with(constants, gpu):
            return error(rows)

    best, least = search(read_constants(names, gpu), MAX_VALUES[gpu], loss)
    print(f"mean |log error| {least:.4f} on {len(rows)} rows")
    for name, value in best.items():
        print(f"{name} = {value:.3g}")


if __name__ == "__main__":
    main()
