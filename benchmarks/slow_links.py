"""Training over slow, long and shared wires: codecs on edges, delay, data parallelism in two levels. Needs root.

Two clusters of two hosts on the bed, 2 Gbit/s inside, each host with a NIC of the given rate to the other cluster; ten
layers of 6 MB of gradients, 128 samples a step, compute emulated (4 ms forward and 8 ms backward a layer and sample).
Every plan is the best that `holmes plan` finds for what job.yaml allows; "exact" allows no codec, and on the slowest
wires uses one cluster alone. One run prints all figures; `--write-docs` puts table and picture into docs/slow-links.md.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import codec_loss
from benchmarks.doc_table import DOCS, write_table
from benchmarks.figure import print_figure
from benchmarks.line_chart import line_chart
from benchmarks.runtime import DDP, FAST_MBPS, UNSHAPED_MBPS, Row, Site, described, plan_of, probed_bed, rows_of
from holmes_core.records.plan import Plan

RATES_MBPS = (500, 100, 50, 20, 10, 5, 2)
CODECS = ("none", "int8", "int4")
MODES = {"none": "exact", "int8": "int8", "int4": "int4"}
DELAYS_MS, DELAYED_MBPS, WIDE_TRUNK_MBPS = (0, 5, 25), 100, 250
TWO_LEVELS_MBPS = 50
FAST_INSIDE_MBPS = 500
STEPS, SLOW_STEPS = 6, 4  # the first is dropped
SAMPLES, SEQ_LENGTH = 128, 128
JOB: dict[str, Any] = {
    "model": {"num_layers": 10, "hidden_size": 352, "num_heads": 4, "seq_length": SEQ_LENGTH},
    "global_batch_size": SAMPLES,
    "device": "cpu",
    "steps": STEPS,
    "compute": {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}},
    "parallel": {"micro_batch_size": 2, "recompute": "none"},
}
HEADINGS = (
    "Mbit/s",
    "one way",
    "job.yaml allows",
    "plan",
    "step s",
    "predicted",
    "tokens/s",
    "of unshaped",
    "MB across",
)


@dataclass(frozen=True)
class Measured:
    """One plan and its run. `allowed` is the lossiest codec of job.yaml."""

    mbps: int
    delay_ms: float
    allowed: str
    plan: Plan
    row: Row

    @property
    def tokens_per_s(self) -> float:
        """Of the median step."""
        return SAMPLES * SEQ_LENGTH / self.row.step_s


def main() -> None:
    """All measurements, the table and the figures."""
    started_s = time.monotonic()
    with probed_bed(UNSHAPED_MBPS, UNSHAPED_MBPS) as site:
        unshaped = measure(site, UNSHAPED_MBPS, "none")
    runs = [unshaped, *over_rates()]
    delayed = list(over_delays())
    ratio = hierarchical_over_ddp()
    lines = table_lines([*runs, *delayed], unshaped)
    print("\n".join(lines))
    for name, value, unit in (*figures(runs, delayed, unshaped), ("hierarchical_over_ddp.50mbit", ratio, "x")):
        print_figure(f"slow_links.{name}", value, unit)
    if "--write-docs" in sys.argv:
        write_docs(lines, runs)
    codec_loss.main([])
    print(f"took {time.monotonic() - started_s:.0f} s")


def over_rates() -> Iterator[Measured]:
    """Every rate with every codec; where leave for one changes nothing the plan is not run again."""
    for mbps in RATES_MBPS:
        with probed_bed(FAST_MBPS, mbps) as site:
            known: dict[tuple[object, ...], Measured] = {}
            for codec in CODECS:
                plan = planned(site, codec)
                if shape(plan) not in known:
                    known[shape(plan)] = run(site, plan, mbps, codec)
                yield replace(known[shape(plan)], allowed=codec)


def over_delays() -> Iterator[Measured]:
    """Exact plans on a measured wire that is ever longer."""
    for delay_ms in DELAYS_MS:
        with probed_bed(FAST_MBPS, DELAYED_MBPS, WIDE_TRUNK_MBPS, delay_ms) as site:
            yield replace(measure(site, DELAYED_MBPS, "none"), delay_ms=delay_ms)


def hierarchical_over_ddp() -> float:
    """Replicas alone, few samples a step: ours in two levels over torch's DistributedDataParallel."""
    parallel = {"pp": 1, "dp": 4, "micro_batch_size": 2, "recompute": "none"}
    with probed_bed(FAST_INSIDE_MBPS, TWO_LEVELS_MBPS) as site:
        job = {**with_data(JOB), "global_batch_size": 8, "steps": STEPS + 2, "parallel": parallel}
        plan = plan_of(site, job, "holmes")
        assert plan.data_parallel == "hierarchical", plan.data_parallel
        (ours,) = rows_of(site, "emulated", plan, {"hierarchical": described(plan)}, "holmes_runtime.train", {})
        (theirs,) = rows_of(site, "emulated", plan, {DDP: "-"}, "benchmarks.torch_rivals", {DDP: SLOW_STEPS})
        print(f"two levels {ours.step_s:.2f} s, {ours.across_mb:.1f} MB across; predicted {plan.prediction.step_s:.2f}")
        print(f"ddp {theirs.step_s:.2f} s, {theirs.across_mb:.1f} MB across")
        return theirs.step_s / ours.step_s


def measure(site: Site, mbps: int, codec: str) -> Measured:
    """The best plan with leave for `codec`, run."""
    return run(site, planned(site, codec), mbps, codec)


def planned(site: Site, codec: str) -> Plan:
    """The best plan with that leave."""
    return plan_of(site, {**with_data(JOB), "wire": {"edges": codec}}, "holmes")


def with_data(job: dict[str, Any]) -> dict[str, Any]:
    """The job, on text that every machine has; emulated compute does not look at it."""
    return {**job, "data": {"path": str(Path(os.__file__).parent), "pattern": "argparse.py"}}


def run(site: Site, plan: Plan, mbps: int, codec: str) -> Measured:
    """The plan's run."""
    (row,) = rows_of(site, f"{codec} allowed", plan, {"holmes": described(plan)}, "holmes_runtime.train", {})
    return Measured(mbps, 0, codec, plan, row)


def shape(plan: Plan) -> tuple[object, ...]:
    """What tells two plans of one bed apart."""
    degrees = (plan.pp, plan.dp, plan.micro_batch_size, plan.schedule, plan.chunks, plan.extra_in_flight)
    stages = tuple((stage.num_layers, stage.clusters) for stage in plan.stages)
    return (*degrees, stages, tuple(group.codec for group in plan.groups))


def figures(runs: Sequence[Measured], delayed: Sequence[Measured], unshaped: Measured) -> list[tuple[str, float, str]]:
    """(name, value, unit)."""
    at = {(each.mbps, each.allowed): each for each in runs}

    def share(mbps: int, codec: str) -> float:
        return at[mbps, codec].tokens_per_s / unshaped.tokens_per_s

    found = [
        *((f"eager_int8_share.{mbps}mbit", share(mbps, "int8"), "1") for mbps in (20, 10)),
        ("int4_share.5mbit", share(5, "int4"), "1"),
        ("over_exact.10mbit", share(10, "int8") / share(10, "none"), "x"),
        ("over_exact.5mbit", share(5, "int4") / share(5, "none"), "x"),
        *((f"edge_bytes.{codec}", edge_bytes_ratio(at[5, codec].plan), "x") for codec in ("int8", "int4")),
    ]
    found += [(f"exact_share.{mbps}mbit", share(mbps, "none"), "1") for mbps in RATES_MBPS]
    found += [
        (f"delay_share.{each.delay_ms:g}ms", each.tokens_per_s / delayed[0].tokens_per_s, "1") for each in delayed[1:]
    ]
    errors = [abs(each.plan.prediction.step_s / each.row.step_s - 1) for each in (*runs, *delayed)]
    return [*found, ("prediction_error.mean", 100 * sum(errors) / len(errors), "%")]


def edge_bytes_ratio(plan: Plan) -> float:
    """Bytes of an edge's message as values are over those it has packed, for the lossiest edge of the plan."""
    sizes = {"none": 4.0, "int8": 66 / 64, "int4": 34 / 64}
    return max(4.0 / sizes[group.codec] for group in plan.groups if group.codec in sizes)


def table_lines(runs: Sequence[Measured], unshaped: Measured) -> list[str]:
    """The runs as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for each in runs:
        rate = "unshaped" if each.mbps == UNSHAPED_MBPS else str(each.mbps)
        codecs = sorted({group.codec for group in each.plan.groups if group.codec != "none"})
        degrees = f"pp {each.plan.pp}, dp {each.plan.dp}, b {each.plan.micro_batch_size}, {each.row.how}"
        cells = [
            *(rate, f"{each.delay_ms:g} ms", MODES[each.allowed], ", ".join([degrees, *codecs])),
            *(f"{each.row.step_s:.3f}", f"{each.plan.prediction.step_s:.3f}", f"{each.tokens_per_s:.0f}"),
            *(f"{each.tokens_per_s / unshaped.tokens_per_s:.2f}", f"{each.row.across_mb:.1f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def write_docs(lines: Sequence[str], runs: Sequence[Measured]) -> None:
    """Table and picture of docs/slow-links.md."""
    machine = f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores, {platform.machine()}."
    write_table("slow-links.md", "measured", (machine, "", *lines))
    points = {
        name: [(each.mbps, each.tokens_per_s) for each in runs if each.allowed == codec and each.mbps in RATES_MBPS]
        for codec, name in MODES.items()
    }
    text = line_chart("tokens/s by Mbit/s of each host's way to the other cluster", points)
    (DOCS / "slow-links.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
