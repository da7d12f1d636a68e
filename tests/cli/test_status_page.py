"""The page of a run: self-contained, escaped, and drawn by a real browser where there is one."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from holmes_cli.pages.chart import Series, draw_chart
from holmes_cli.pages.run_picture import Concern, cluster_parts, run_tiles
from holmes_cli.pages.run_traffic import traffic_of_run
from holmes_cli.pages.status_page import hosts_to_look_at, status_page
from holmes_core.records.plan import InterfaceTraffic, Plan
from holmes_core.records.run import Failure, Run
from holmes_core.units import format_bytes, format_seconds
from holmes_runtime.config.verdicts import HostIsSlow, LinkIsSlow
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics, StepTraffic
from tests.cli.browser import NEEDS_BROWSER, hidden_parts
from tests.launcher.plans import cpu_plan
from tests.seeds import few_of


def page(count: int = 5, last_lines: tuple[str, ...] = ("last words",)) -> str:
    plan = cpu_plan()
    failure = Failure(
        host="b1",
        cluster="b",
        rank=2,
        exit_code=-9,
        message="<script>alert(1)</script>",
        last_lines=last_lines,
        time_s=1.0,
        likely="memory",
    )
    run = Run(run_id="r", plan_digest=plan.digest(), state="failed", started_at_s=0.0, failures=(failure,))
    steps = [step(number) for number in range(count)]
    return status_page(StoredRun(Path("runs/r"), run), plan, steps, {"a1": "stepping"}, ["slow host b1"])


def step(number: int) -> StepMetrics:
    ports = tuple(StepTraffic(host, "eth0", 1000 * number, 1000) for host in ("a1", "b1"))
    return StepMetrics(
        step=number,
        loss=5.0 - number,
        eval_loss=None,
        grad_norm=1.0,
        learning_rate=1e-3,
        step_s=0.5,
        compute_s=0.3,
        exposed_s=0.1,
        tokens_per_s=100.0 + number,
        tflops_per_s=1.0,
        mfu=0.0,
        memory_bytes=1,
        verdicts=(),
        interfaces=ports,
    )


def large_run(
    num_hosts: int, num_steps: int = 200
) -> tuple[StoredRun, Plan, list[StepMetrics], dict[str, str], list[str]]:
    """A run that failed, of so many hosts in two clusters, or four of more than 64, as its folder tells it."""
    small = cpu_plan(steps=1000)
    clusters = "abcd" if num_hosts > 64 else "ab"
    names = [f"{cluster}{1 + number:03}" for cluster in clusters for number in range(num_hosts // len(clusters))]
    nodes = tuple(
        small.nodes[0].model_copy(update={"node_rank": rank, "host": name, "cluster": name[0]})
        for rank, name in enumerate(names)
    )
    ranks = tuple(
        small.ranks[0].model_copy(
            update={"rank": rank, "host": name, "cluster": name[0], "pp_rank": clusters.index(name[0]) % small.pp}
        )
        for rank, name in enumerate(names)
    )
    traffic = tuple(
        InterfaceTraffic(host=name, netdev=netdev, network=network, sent_bytes=size, received_bytes=size)
        for name in names
        for netdev, network, size in (("eth1", f"fabric {name[0]}", 40_000_000), ("eth0", "shared", 1_500_000))
    )
    plan = small.model_copy(
        update={"nodes": nodes, "ranks": ranks, "prediction": small.prediction.model_copy(update={"traffic": traffic})}
    )
    steps = []
    for number in range(0, 5 * num_steps, 5):
        wave = 1 + 0.08 * math.sin(number / 7)
        ports = tuple(
            StepTraffic(name, netdev, round(size * (wave + 0.001 * ord(name[0]))), size)
            for name in names
            for netdev, size in (("eth1", 40_000_000), ("eth0", 1_500_000), ("lo", 9_000_000_000))
        )
        loss, step_s = 3 + 7 * math.exp(-number / 150) + 0.05 * wave, plan.prediction.step_s * wave * 1.1
        steps.append(
            replace(
                step(number), loss=loss, eval_loss=loss + 0.1 if number % 50 == 0 else None, step_s=step_s,
                exposed_s=step_s * 0.2, tokens_per_s=plan.prediction.tokens_per_s / wave / 1.1, interfaces=ports,
            )
        )  # fmt: skip
    failed, slow, states = names[-1], names[1], dict.fromkeys(names, "stepping")
    failures = tuple(
        Failure(host=name, cluster=name[0], rank=rank, exit_code=1, message=words, last_lines=(words,), time_s=time_s)
        for rank, name, words, time_s in (
            (0, names[0], "RuntimeError: Connection closed by peer [10.0.0.1]:1234", 2.0),
            (3, failed, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1.0),
        )
    )
    notices = [HostIsSlow(slow, 2.5).sentence, LinkIsSlow(names[0], names[-2], 3.0, 0.3, 0.1).sentence]
    run = Run(run_id="20261123-120000-abcd", plan_digest="", state="failed", started_at_s=0.0, failures=failures)
    return StoredRun(Path("runs/r"), run), plan, steps, {**states, failed: "ranks up"}, notices


@pytest.mark.parametrize("num_hosts", few_of(1, [4, 64, 512]))
def test_page_of_any_size_says_first_what_is_sick_and_then_as_much_for_many_as_for_few(num_hosts: int) -> None:
    run = large_run(num_hosts, num_steps=50)
    text = status_page(*run)
    sick = {run[1].nodes[-1].host: "failed", run[1].nodes[1].host: "slow", run[1].nodes[-2].host: "slow"}
    sick[run[1].nodes[0].host] = "slow"
    before_charts = text[: text.index("<figure>")]
    for host, role in sick.items():
        assert f'<td class="name {role}">{host}</td>' in before_charts
        assert f'<i class="{role}" title="{host}: ' in text
    assert all(f">{node.host}</td>" in text for node in run[1].nodes)
    drawn = re.findall(r'<polyline class="curve (c\d)( planned)?"', text)
    clusters = 4 if num_hosts > 64 else 2
    assert len(drawn) == 2 + 2 + 3 + 2 * 2 * clusters  # sent over two networks by each cluster, and planned
    assert ">lo:" not in text
    assert "over lo " not in text
    assert "9.0 GB" not in text
    assert before_charts.index("CUDA out of memory") < before_charts.index("<details")
    assert len(text) < 30_000 + 550 * num_hosts


def test_hosts_of_a_stage_are_drawn_in_its_lane_once_each() -> None:
    stored, plan, steps, states, notices = large_run(64, num_steps=5)
    looks = hosts_to_look_at(stored, plan, states, notices)
    parts = cluster_parts(plan, states, looks, *traffic_of_run(plan, steps))
    assert [[lane.name.stages for lane in part.lanes] for part in parts] == [["stage 0"], ["stage 1"]]
    drawn = [row.host for part in parts for lane in part.lanes for row in lane.hosts]
    assert drawn == [node.host for node in plan.nodes]


@pytest.mark.parametrize(("factor", "heat"), [(1.0, "cool"), (1.5, "warm"), (3.0, "hot")])
def test_traffic_beyond_the_plan_has_a_warmer_colour(factor: float, heat: str) -> None:
    _, plan, steps, states, _ = large_run(4, num_steps=5)
    planned = {(port.host, port.netdev): port.sent_bytes for port in plan.prediction.traffic}
    sent = tuple(StepTraffic(host, netdev, round(factor * size), 0) for (host, netdev), size in planned.items())
    steps = [replace(one, interfaces=sent) for one in steps]
    part, *_ = cluster_parts(plan, states, (), *traffic_of_run(plan, steps))
    assert [nic.heat for nic in part.nics] == [heat] * 2
    assert all(f", {factor:.0%} of the planned " in nic.value for nic in part.nics)
    assert [nic.percent for nic in part.nics] == [100.0] * 2


def test_wire_of_a_run_tells_what_the_plan_sends_and_that_its_trunk_is_slow() -> None:
    plan = cpu_plan()
    (wire,) = cluster_parts(plan, {}, (), [], [])[0].wires
    assert (wire.value, wire.heat) == ("a - b: activations, their gradients", "cool")
    slow = Concern("trunk a - b", "", "slow", "the trunk a - b carries less")
    assert cluster_parts(plan, {}, (slow,), [], [])[0].wires[0].heat == "hot"


def test_head_of_the_page_has_measured_next_to_planned_figures() -> None:
    _, plan, steps, _, _ = large_run(4, num_steps=5)
    tiles = [(tile.value, tile.label) for tile in run_tiles(plan, "running", steps)]
    mean_s = sum(one.step_s for one in steps) / len(steps)
    assert (format_seconds(mean_s), f"a step, planned {format_seconds(plan.prediction.step_s)}") in tiles
    assert [tile.value for tile in run_tiles(plan, "failed", [])] == ["failed"]


def test_parts_of_the_measured_step_add_up_to_it() -> None:
    text = page()  # 0.3 s of compute and 0.1 s of waiting in 0.5 s
    measured = text[text.index("measured, mean of the last 5 steps: 500 ms") :]
    assert re.findall(r"</i>([^<]+)</span>", measured)[:3] == [
        "compute 300 ms",
        "waiting for networks 100 ms",
        "pipeline bubble, optimizer and the rest 100 ms",
    ]


def test_axes_have_round_ticks_with_units_and_planned_lines_lie_on_them() -> None:
    chart = draw_chart(
        "Sent", [0, 10, 99], [Series("a", [1e6, 2e6, 7e6]), Series("a", [5e6] * 3, is_planned=True)], format_bytes
    )
    assert [tick.label for tick in chart.values] == ["0 B", "2.00 MB", "4.00 MB", "6.00 MB", "8.00 MB"]
    assert [tick.percent for tick in chart.values] == [100.0, 75.0, 50.0, 25.0, 0.0]
    assert chart.curves[1].role == "curve c0 planned"
    assert {point.split(",")[1] for point in chart.curves[1].points.split()} == {"375.0"}
    assert [tick.label for tick in chart.steps] == ["20", "40", "60", "80", "100"]


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0], [-3.0, 4.0], [1e-9, 2e-9], [1e15, 1e15 + 1], [None, 2.0]])
def test_any_values_have_ticks_inside_the_plot(values: list[float | None]) -> None:
    for from_zero in (True, False):
        chart = draw_chart("t", [0, 1], [Series("a", values)], str, from_zero)
        assert 2 <= len(chart.values) <= 8
        assert all(0 <= tick.percent <= 100 for tick in (*chart.values, *chart.steps))


def test_one_step_is_drawn() -> None:
    assert status_page(*large_run(4, num_steps=1)).count("<polyline") > 3


def test_page_that_is_followed_loads_itself_anew_until_the_run_has_ended() -> None:
    run = large_run(4, num_steps=5)
    assert '<meta http-equiv="refresh" content="5">' in status_page(*run, followed=True)
    assert "refresh" not in status_page(*run)


def test_page_fetches_nothing_and_escapes_what_ranks_said() -> None:
    assert re.findall(r"(?:src|href)=|@import|url\(", page()) == []
    assert "<script>" not in page()
    assert "&lt;script&gt;alert(1)" in page()


def test_every_step_is_a_point_and_the_loss_falls() -> None:
    curve = re.findall(r'class="curve c0" points="([^"]+)"', page())[0]
    heights = [float(point.split(",")[1]) for point in curve.split()]
    assert len(heights) == 5
    assert re.findall(r'class="tick" style="left:[\d.]+%">(\d+)<', page())[:5] == ["1", "2", "3", "4", "5"]
    assert heights == sorted(heights)  # SVG counts downwards


def test_page_of_a_run_without_a_step_has_no_chart() -> None:
    assert "<svg" not in page(0)
    assert "last words" in page(0)


@pytest.mark.process
@NEEDS_BROWSER
@pytest.mark.parametrize("num_hosts", [4, 64, 512])
@pytest.mark.parametrize("width", [390, 500, 1000, 1600])
def test_browser_shows_all_of_the_page_at_any_width(tmp_path: Path, num_hosts: int, width: int) -> None:
    path = tmp_path / "run.html"
    path.write_text(status_page(*large_run(num_hosts, num_steps=50)), encoding="utf-8")
    assert hidden_parts(path, width) == ""


def test_a_failure_of_which_nothing_was_printed_has_no_box_of_lines() -> None:
    assert "<pre>last words" in page()
    assert "<pre>" not in page(last_lines=())


def test_a_slow_trunk_needs_a_look_and_the_hosts_at_its_ends_do_not() -> None:
    stored, plan, _, _, _ = large_run(4, num_steps=1)
    stored = replace(stored, run=stored.run.model_copy(update={"failures": ()}))
    ends = plan.nodes[0], plan.nodes[-1]
    trunk = (ends[0].cluster, ends[1].cluster)
    verdict = LinkIsSlow(ends[0].host, ends[1].host, 6.67, 0.3, 0.05, trunk, 2, 0.375e6, 2.5e6)

    (look,) = hosts_to_look_at(stored, plan, {}, [verdict.sentence])

    assert (look.host, look.role) == (f"trunk {' - '.join(trunk)}", "slow")
