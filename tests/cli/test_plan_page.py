"""The page of a plan: self-contained, folded when large, and drawn by a real browser where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holmes_cli.pages.placement_picture import SHARED_COLOUR, draw_placement
from holmes_cli.pages.plan_page import plan_page
from holmes_cli.pages.timeline_picture import LEFT, MAX_BARS, MAX_ROWS, WIDTH, draw_timeline
from holmes_cli.screen.plan_tables import plan_sheets
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_rate
from holmes_runtime.config.schedule import make_schedule
from planner.advice.explain import bottleneck
from planner.layout.reprice import plan_timeline
from planner.schedule.simulate import PipelineTimes, timeline
from tests.cli.browser import NEEDS_BROWSER, dumped, hidden_parts, screenshot
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

BED = cpu_inventory([2, 2])
LARGE = gpu_inventory([48, 48])


@pytest.fixture(scope="module")
def bed_plan() -> Plan:
    return plan_for(BED, bed_job())


@pytest.fixture(scope="module")
def large_plan() -> Plan:
    fixed = {"tp": 8, "pp": 2, "dp": 48, "micro_batch_size": 1, "schedule": "1f1b"}
    return plan_for(LARGE, gpt_7b(global_batch_size=480, parallel=fixed))


def page_of(plan: Plan, inventory: Inventory) -> str:
    spans = plan_timeline(inventory, plan)
    return plan_page(
        plan, inventory, spans, (bottleneck(plan), "<script>alert(1)</script>"), plan_sheets(plan, inventory)
    )


def test_page_fetches_nothing_and_escapes_what_it_is_told(bed_plan: Plan) -> None:
    page = page_of(bed_plan, BED)
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_every_rank_is_drawn_inside_its_host_and_every_host_inside_its_cluster(bed_plan: Plan) -> None:
    boxes = draw_placement(bed_plan).boxes
    of = {role: [box for box in boxes if box.role == role] for role in ("cluster", "host", "rank")}
    assert [len(of[role]) for role in ("cluster", "host", "rank")] == [2, 4, 4]
    for inner, outer in (("host", "cluster"), ("rank", "host")):
        for box in of[inner]:
            around = [o for o in of[outer] if o.x < box.x and box.x + box.width < o.x + o.width]
            assert any(o.y < box.y and box.y + box.height < o.y + o.height for o in around)


def test_groups_are_in_the_colour_of_their_network(bed_plan: Plan) -> None:
    picture = draw_placement(bed_plan)
    colours = dict(picture.networks)
    assert colours["shared"] == SHARED_COLOUR
    assert len(set(colours.values())) == 3
    assert sorted((wire.role, wire.stroke) for wire in picture.wires) == sorted(
        [("dp", colours["a"]), ("dp", colours["b"]), ("edges", SHARED_COLOUR), ("edges", SHARED_COLOUR)]
    )
    rate = format_rate(next(group.bandwidth_bytes_per_s for group in bed_plan.groups if group.network == "shared"))
    assert all(f"network shared, {rate} each" in wire.tip for wire in picture.wires if wire.role == "edges")


@pytest.mark.slow
def test_many_hosts_alike_are_one_box_with_their_groups_inside(large_plan: Plan) -> None:
    picture = draw_placement(large_plan)
    hosts = [box.label for box in picture.boxes if box.role == "host"]
    assert hosts == ["48 hosts from a1", "48 hosts from b1"]
    assert [(wire.role, wire.tip.partition(" x ")[0]) for wire in picture.wires] == [
        ("dp", "8"),
        ("dp", "8"),
        ("edges", "768"),
    ]


def test_bars_lie_in_their_row_from_start_to_end(bed_plan: Plan) -> None:
    spans = plan_timeline(BED, bed_plan)
    picture = draw_timeline(spans, bed_plan.prediction.step_s)
    assert len(picture.bars) == len(spans)
    assert {bar.y for bar in picture.bars} == {row.y for row in picture.rows}
    assert all(bar.x >= LEFT and bar.x + bar.width <= WIDTH for bar in picture.bars)
    assert picture.left_out == ""


def test_deep_and_long_timeline_is_cut_and_says_so() -> None:
    pp, num_microbatches = 40, 300
    times = PipelineTimes((1.0,) * pp, (2.0,) * pp, (0.0,) * (pp - 1), (0.0,) * (pp - 1))
    spans = timeline(make_schedule("1f1b", pp, num_microbatches), times)
    picture = draw_timeline(spans, max(span.end_s for span in spans))
    assert (len(picture.rows), len(picture.bars)) == (MAX_ROWS, MAX_BARS)
    assert "8 pipeline ranks in the middle are not drawn." in picture.left_out
    assert "Only the first " in picture.left_out


def test_page_of_a_large_plan_stays_small(large_plan: Plan) -> None:
    assert len(page_of(large_plan, LARGE).encode()) < 2_000_000


@pytest.mark.process
@NEEDS_BROWSER
def test_browser_draws_placement_and_timeline(tmp_path: Path, bed_plan: Plan) -> None:
    page = tmp_path / "plan.html"
    page.write_text(page_of(bed_plan, BED), encoding="utf-8")
    elements = dumped(page)
    assert screenshot(page).stat().st_size > 5000
    assert elements.count('<g class="host">') == 4
    assert elements.count('<g class="rank">') == 4
    backwards = elements.count('<rect class="b"') + elements.count('<rect class="i"')
    assert elements.count('<rect class="f"') == backwards == 2 * bed_plan.microbatches[0]
    assert elements.count('<path class="edges"') == 2


@pytest.mark.process
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [500, 1000, 1600])
def test_browser_shows_all_of_the_page_at_any_width(tmp_path: Path, large_plan: Plan, width: int) -> None:
    page = tmp_path / "plan.html"
    page.write_text(page_of(large_plan, LARGE), encoding="utf-8")
    assert hidden_parts(page, width) == ""
