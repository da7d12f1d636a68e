"""The page of a plan: self-contained, folded when large, and drawn by a real browser where there is one."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import pytest

import templates
from holmes_cli.pages import plan_picture
from holmes_cli.pages.plan_page import plan_page
from holmes_cli.pages.plan_picture import draw_plan
from holmes_cli.screen.plan_tables import plan_sheets
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Trunk
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes
from planner.advice.explain import bottleneck, nic_loads
from planner.layout.reprice import plan_timeline
from tests.cli.browser import NEEDS_BROWSER, dumped, hidden_parts, screenshot
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.measured_links import measured, with_links

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
    return plan_page(plan, inventory, (bottleneck(plan), "<script>alert(1)</script>"), plan_sheets(plan, inventory))


def test_page_fetches_nothing_and_escapes_what_it_is_told(bed_plan: Plan) -> None:
    page = page_of(bed_plan, BED)
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_card_for_each_cluster_with_the_hosts_of_its_stage(bed_plan: Plan) -> None:
    cards = draw_plan(bed_plan, BED).cards
    assert [(card.name, [lane.name.stages for lane in card.lanes]) for card in cards] == [
        ("a", ["stage 0"]),
        ("b", ["stage 1"]),
    ]
    assert [[mark.label for mark in lane.marks] for card in cards for lane in card.lanes] == [
        ["a1", "a2"],
        ["b1", "b2"],
    ]
    assert all(mark.squares == 1 and not mark.more for card in cards for lane in card.lanes for mark in lane.marks)


def test_every_layer_replica_and_rank_is_in_a_lane(bed_plan: Plan) -> None:
    lanes = [lane for card in draw_plan(bed_plan, BED).cards for lane in card.lanes]
    layers = [lane.name.layers for lane in lanes]
    assert layers == [f"layers {stage.first_layer}-{stage.stop_layer - 1}" for stage in bed_plan.stages]
    assert sum(mark.squares + mark.more for lane in lanes for mark in lane.marks) == len(bed_plan.ranks)


def test_wire_carries_what_the_hosts_of_one_cluster_send_to_the_other(bed_plan: Plan) -> None:
    """By the hosts' own counts: in this plan nothing but edges is on the shared network."""
    upper, lower = draw_plan(bed_plan, BED).cards
    (wire,) = upper.wires
    shared = [port for port in bed_plan.prediction.traffic if port.network == "shared"]
    down, up = (
        sum(port.sent_bytes for port in shared if port.host.startswith(cluster)) for cluster in (upper.name, lower.name)
    )
    assert wire.value == f"a to b: activations {format_bytes(down)}; b to a: their gradients {format_bytes(up)}"
    assert lower.wires == ()
    busiest = max(load.busy_s or 0.0 for load in nic_loads(BED, bed_plan) if load.network == "shared")
    assert wire.percent is not None  # its rate is that of payload, in packets of the interfaces' MTU
    assert 1 <= wire.percent / (100 * busiest / bed_plan.prediction.step_s) <= 1.1


def test_slow_trunk_is_what_the_wire_waits_for(bed_plan: Plan) -> None:
    trunk = Trunk(clusters=("a", "b"), bandwidth_bytes_per_s=1e6, source="hosts.yaml", pairs=0)
    (wire,) = draw_plan(bed_plan, BED.model_copy(update={"trunks": (trunk,)})).cards[0].wires
    assert wire.label.startswith("the trunk a - b, 8 Mbit/s, busy ")
    assert (wire.percent, wire.heat) == (100.0, "hot")


def test_wire_of_a_pair_is_as_busy_as_its_own_rate_makes_it() -> None:
    """Each host reaches a1 a hundred times as fast, and one wire of the pipeline is without it."""
    rates = {ends: 1e8 if "a1" in ends else 1e6 for ends in combinations(("a1", "b1", "c1", "d1"), 2)}
    fleet = with_links(cpu_inventory([1, 1, 1, 1]), *(measured(ends, rate, streams=4) for ends, rate in rates.items()))
    plan = plan_for(fleet, bed_job(parallel={"pp": 4, "dp": 1, "micro_batch_size": 2}))
    wires = [wire for card in draw_plan(plan, fleet).cards for wire in card.wires]
    slow = [wire for wire in wires if ", 8 Mbit/s a host, busy " in wire.label]
    assert (len(wires), len(slow)) == (3, 1)
    assert slow[0].percent is not None
    assert slow[0].percent > 50 > max(wire.percent or 0.0 for wire in wires if wire is not slow[0])


def test_uplink_carries_all_that_leaves_its_cluster(bed_plan: Plan) -> None:
    uplink = Trunk(clusters=("b",), bandwidth_bytes_per_s=1e6, source="hosts.yaml", pairs=0)
    (wire,) = draw_plan(bed_plan, BED.model_copy(update={"trunks": (uplink,)})).cards[0].wires
    assert wire.label.startswith("the uplink of b, 8 Mbit/s, busy ")


def test_nics_of_a_card_are_the_busiest_of_each_network(bed_plan: Plan) -> None:
    for card in draw_plan(bed_plan, BED).cards:
        loads = [load for load in nic_loads(BED, bed_plan) if load.cluster == card.name]
        assert len(card.nics) == len({load.network for load in loads}) == 2
        for network in {load.network for load in loads}:
            most = max(load.busy_s or 0.0 for load in loads if load.network == network)
            (nic,) = [nic for nic in card.nics if f"busiest on {network}:" in nic.label]
            assert nic.percent == pytest.approx(100 * most / bed_plan.prediction.step_s, abs=0.06)


@pytest.mark.slow
def test_many_hosts_alike_are_one_mark(large_plan: Plan) -> None:
    cards = draw_plan(large_plan, LARGE).cards
    assert [mark.label for card in cards for lane in card.lanes for mark in lane.marks] == [
        "48 hosts like this, a1 to a48",
        "48 hosts like this, b1 to b48",
    ]


def test_bars_are_the_actions_of_the_simulated_step(bed_plan: Plan) -> None:
    spans = plan_timeline(BED, bed_plan)
    picture = draw_plan(bed_plan, BED)
    bars = [bar for card in picture.cards for lane in card.lanes for bar in lane.bars]
    assert len(bars) == len(spans)
    assert all(bar.start >= 0 and bar.start + bar.length <= 1000.1 for bar in bars)
    assert min(bar.start for bar in bars) == pytest.approx(
        1000 * min(span.start_s for span in spans) / bed_plan.prediction.step_s, abs=0.01
    )
    assert picture.left_out == ()


def test_a_cluster_with_whole_pipelines_shows_a_replica_of_its_own() -> None:
    fixed = {"pp": 2, "dp": 2, "micro_batch_size": 2}
    plan = plan_for(BED, bed_job(parallel=fixed), order="usual")
    cards = draw_plan(plan, BED).cards
    assert [[lane.details[0] for lane in card.lanes] for card in cards] == [["replica 0"] * 2, ["replica 1"] * 2]
    assert all(lane.bars for card in cards for lane in card.lanes)


def test_deep_pipeline_and_long_timeline_are_cut_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(cpu_inventory([4, 4]), bed_job(parallel={"pp": 8, "dp": 1, "micro_batch_size": 2}))
    monkeypatch.setattr(plan_picture, "MAX_LANES", 4)
    monkeypatch.setattr(plan_picture, "MAX_BARS", 20)
    picture = draw_plan(plan, cpu_inventory([4, 4]))
    assert [lane.name.stages for card in picture.cards for lane in card.lanes] == [
        "stage 0",
        "stage 1",
        "stage 6",
        "stage 7",
    ]
    assert picture.left_out[0] == "4 lanes in the middle are not drawn."
    assert picture.left_out[1] == f"Only the first {picture.ticks[-1].partition(' of ')[0]} of the step are drawn."
    assert sum(len(lane.bars) for card in picture.cards for lane in card.lanes) <= 20


def test_stacked_parts_fill_the_longer_of_both_steps(bed_plan: Plan) -> None:
    page = page_of(bed_plan, BED)
    sums = [
        sum(float(width) for width in re.findall(r'<i class="s\d" style="width:([\d.]+)%"', stack))
        for stack in re.findall(r'<div class="stack">(.*?)</div>', page)
    ]
    usual = bed_plan.usual_order
    assert usual is not None
    longest = max(bed_plan.prediction.step_s, usual.step_s)
    assert sums == pytest.approx([100 * bed_plan.prediction.step_s / longest, 100 * usual.step_s / longest], abs=0.1)


def test_page_of_a_large_plan_stays_small(large_plan: Plan) -> None:
    assert len(page_of(large_plan, LARGE).encode()) < 2_000_000


@pytest.mark.process
@NEEDS_BROWSER
def test_browser_draws_placement_and_timeline(tmp_path: Path, bed_plan: Plan) -> None:
    page = tmp_path / "plan.html"
    page.write_text(page_of(bed_plan, BED), encoding="utf-8")
    elements = dumped(page)
    assert screenshot(page).stat().st_size > 5000
    assert elements.count('<span class="host"') == 4
    backwards = elements.count('<rect class="b"') + elements.count('<rect class="i"')
    assert elements.count('<rect class="f"') == backwards == 2 * bed_plan.microbatches[0]
    assert elements.count('<section class="card">') == 2


@pytest.mark.process
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [390, 500, 1000, 1600])
def test_browser_shows_all_of_the_page_at_any_width(tmp_path: Path, large_plan: Plan, width: int) -> None:
    page = tmp_path / "plan.html"
    page.write_text(page_of(large_plan, LARGE), encoding="utf-8")
    assert hidden_parts(page, width) == ""


def test_every_colour_of_a_page_is_defined_for_light_and_dark() -> None:
    """The variables of a style sheet are defined in its first block, and again where the screen is dark."""
    base = files(templates).joinpath("page.html.j2").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", base, re.DOTALL)
    names = set(re.findall(r"(--[a-z0-9-]+):", light))
    assert names == set(re.findall(r"(--[a-z0-9-]+):", dark))
    pages = [page.read_text(encoding="utf-8") for page in files(templates).iterdir() if page.name.endswith(".html.j2")]
    named = {name for page in pages for name in re.findall(r"(--[a-z0-9-]+):", page)}
    assert {name for page in pages for name in re.findall(r"var\((--[a-z0-9-]+)[,)]", page)} <= named
