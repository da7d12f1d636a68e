"""What benchmarks/runtime.py makes of its measurements: figures, table, and its place in the docs."""

from __future__ import annotations

import pytest

from benchmarks.doc_table import DOCS
from benchmarks.runtime import (
    DDP,
    EVEN,
    FSDP2,
    HEADINGS,
    HOLMES,
    SLOW_MBPS,
    STOCK,
    TOKENS,
    UNEVEN,
    UNEVEN_MBPS,
    UNSHAPED_MBPS,
    USUAL,
    Row,
    busiest_mb,
    figures,
    loss_difference,
    table_lines,
)

STEP_S = {HOLMES: 1.25, USUAL: 5.0, DDP: 12.5, FSDP2: 20.0, STOCK: 2.5}


def row(compute: str, slow_mbps: int, system: str, step_s: float, losses: tuple[float, ...] = (1.0,)) -> Row:
    return Row(compute, slow_mbps, system, "-", step_s, losses, inside_mb=30.4, across_mb=2.9)


def measured() -> list[Row]:
    rows = [row("emulated", UNSHAPED_MBPS, HOLMES, 1.0)]
    rows += [row("emulated", mbps, system, step_s) for mbps in SLOW_MBPS for system, step_s in STEP_S.items()]
    rows += [row("half speed", UNEVEN_MBPS, EVEN, 2.1), row("half speed", UNEVEN_MBPS, UNEVEN, 1.4)]
    rows += [row("real", 500, HOLMES, 3.0, (5.5, 5.25)), row("real", 500, DDP, 6.0, (5.5, 5.125))]
    return rows


def test_figures_are_ratios_of_tokens_per_second() -> None:
    found = {name: value for name, value, _ in figures(measured())}
    for slow_mbps in (20, 50, 100, 500):
        assert found[f"runtime.over_usual_order.{slow_mbps}mbit"] == pytest.approx(4.0)
        assert found[f"runtime.over_ddp.{slow_mbps}mbit"] == pytest.approx(10.0)
        assert found[f"runtime.over_fsdp2.{slow_mbps}mbit"] == pytest.approx(16.0)
        assert found[f"runtime.over_stock_1f1b.{slow_mbps}mbit"] == pytest.approx(2.0)
        assert found[f"runtime.share_of_unshaped.{slow_mbps}mbit"] == pytest.approx(0.8)
    assert found["runtime.uneven_over_even.100mbit"] == pytest.approx(1.5)


def test_losses_are_compared_step_by_step_and_on_real_compute_alone() -> None:
    assert loss_difference(measured()) == pytest.approx(0.125)


def test_every_line_of_the_table_has_a_cell_for_every_heading() -> None:
    lines = table_lines(measured())
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}
    assert lines[2] == f"| emulated | unshaped | holmes | - | 1.000 | {TOKENS} |  | 30.4 | 2.9 |  |"
    assert "| emulated | 50 | ddp | - | 12.500 | 328 | 10.00 | 30.4 | 2.9 |  |" in lines
    assert lines[-1] == "| real | 500 | ddp | - |  |  |  | 30.4 | 2.9 | 5.125000 |"


def test_bytes_are_those_of_the_host_that_sends_most_over_the_network_asked_for() -> None:
    def line(fast: int, slow: int) -> dict[str, object]:
        counts = {"ib0": fast, "eth0": slow, "lo": 10**9}
        return {"interfaces": {nic: {"sent_bytes": count, "received_bytes": 0} for nic, count in counts.items()}}

    ranks = [[line(4_000_000, 0), line(2_000_000, 1_000_000)], [line(1_000_000, 0), line(1_000_000, 0)]]
    assert busiest_mb(ranks, {"ib0", "ens6"}) == pytest.approx(3.0)
    assert busiest_mb(ranks, {"eth0"}) == pytest.approx(0.5)


def test_the_docs_have_a_place_for_the_table() -> None:
    text = (DOCS / "runtime.md").read_text(encoding="utf-8")
    assert text.count("<!-- measured begins -->") == text.count("<!-- measured ends -->") == 1
