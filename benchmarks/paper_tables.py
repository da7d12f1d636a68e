"""The Holmes paper's public relative results (arXiv 2312.03549) beside those of `holmes plan`. Needs no other machine.

Ethernet over InfiniBand is what a cluster of A100 hosts gets without RDMA, GPT 3.6 B, 512 samples a step; Holmes over
Megatron-LM is GPT 7.5 B, 2048 samples, on four InfiniBand and four RoCE hosts. "paper's schedule": micro-batches of 4,
1F1B in two stages, as its two clusters have, and Megatron's rank order where that is compared; "free": all is the
planner's. Rates are assumptions (tests/planner/paper_examples.py), so only ratios are compared. Of the paper's figures
those stand here that public summaries of it give. `--write-docs` puts the table into docs/planning.md.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from benchmarks.doc_table import write_table
from benchmarks.figure import print_figure
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_user_file
from tests.planner.fleets import plan_for
from tests.planner.paper_examples import FOLDER, make_inventory

PAPER_SCHEDULE = {"tp": 1, "micro_batch_size": 4, "schedule": "1f1b"}
HEADINGS = ("what", "paper", "paper's schedule", "free")


class Row(NamedTuple):
    """One relative result: the paper's, ours under its schedule, ours with everything free."""

    name: str
    words: str
    paper: str
    scheduled: float
    free: float


def main() -> None:
    """The table and its figures."""
    rows = [*(ethernet_over_infiniband(hosts, paper) for hosts, paper in ((4, "0.62"), (8, "0.56"))), over_megatron()]
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| {row.words} | {row.paper} | {row.scheduled:.2f} | {row.free:.2f} |" for row in rows]
    print("\n".join(lines))
    for row in rows:
        print_figure(f"paper.{row.name}.scheduled", row.scheduled, "x")
        print_figure(f"paper.{row.name}.free", row.free, "x")
    if "--write-docs" in sys.argv:
        write_table("planning.md", "paper", ("", *lines, ""))


def ethernet_over_infiniband(hosts: int, paper: str) -> Row:
    """Throughput on hosts without RDMA over that on InfiniBand."""
    ratios = []
    for parallel in ({**PAPER_SCHEDULE, "pp": 2}, {}):
        ethernet, infiniband = (
            planned("gpt_3.6b", make_inventory((kind, hosts)), parallel) for kind in ("Ethernet", "InfiniBand")
        )
        ratios.append(infiniband.prediction.step_s / ethernet.prediction.step_s)
    return Row(f"ethernet_over_infiniband.{hosts}hosts", f"Ethernet / InfiniBand, {hosts} hosts", paper, *ratios)


def over_megatron() -> Row:
    """The plan's throughput over that of the usual rank order, at the best degrees it has."""
    ratios = []
    for parallel in ({**PAPER_SCHEDULE, "pp": 2}, {}):
        plan = planned("gpt_7.5b", make_inventory(("InfiniBand", 4), ("RoCE", 4)), parallel)
        assert plan.usual_order is not None
        ratios.append(plan.usual_order.step_s / plan.prediction.step_s)
    return Row("holmes_over_megatron", "Holmes / Megatron-LM, 4 InfiniBand + 4 RoCE hosts", "1.36 to 1.39", *ratios)


def planned(job: str, inventory: Inventory, parallel: dict[str, Any]) -> Plan:
    """The plan of one of the paper's jobs with those degrees fixed."""
    record = read_user_file(Job, FOLDER / f"{job}.yaml").model_dump(exclude_unset=True)
    return plan_for(inventory, Job.model_validate({**record, "parallel": parallel}))


if __name__ == "__main__":
    main()
