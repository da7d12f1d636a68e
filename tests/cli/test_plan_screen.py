"""What `holmes plan` prints and writes: in 100 columns, folded when large, with changes and another plan beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from holmes_cli.screen.change_tables import advice_sheet
from holmes_cli.screen.plan_tables import bar, plan_sheets
from holmes_cli.screen.show_plan import plan_sentences, show_plan
from holmes_core.records.advice import PlanAdvice
from holmes_core.records.plan import Alternative, Plan
from holmes_core.records.record_file import read_file
from holmes_core.units import format_seconds
from planner.advice.advise import advise
from planner.cost.codec_loss import loss_words
from tests.cli.conftest import Command
from tests.planner.fleets import UNHURRIED, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for


@pytest.fixture(autouse=True)
def bed_files(tmp_path: Path) -> None:
    """inventory.json and job.yaml of the bed's job."""
    job = bed_job().model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "inventory.json").write_text(cpu_inventory([2, 2], shared_gbps=0.02).to_json(), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")


def titles(text: str) -> Iterator[str]:
    """The lines above tables and trees."""
    for line, below in pairwise(text.splitlines()):
        if below.startswith(("┏", "├")):
            yield line.strip()


def test_screen_tells_placement_tables_bottleneck_usual_order_and_advice(command: Command) -> None:
    done = command("plan", "job.yaml")
    assert [title.partition(":")[0] for title in titles(done.stdout)] == [
        "Placement",
        "Stages",
        "Process groups",
        "Traffic a step",
        "Predicted step",
        "Runners-up",
        "What would help most",
    ]
    assert "│   ├── a1: rank 0 holds stage 0, replica 0" in done.stdout
    assert "Compute takes" in done.stdout
    assert "x as fast as the usual rank order on these hosts, " in done.stdout.splitlines()[2]
    sentence = " ".join(done.stdout.split())
    assert "Placement: by formula the best of " in sentence
    assert "(by an integer program, HiGHS)" in sentence
    assert "it is the fastest of" in sentence
    assert "link:a-b=40Mb/s" in done.stdout
    assert done.stdout.endswith("plan: plan.json\nnext: holmes launch plan.json\n")


@pytest.mark.slow
def test_tables_and_tree_fit_into_a_hundred_columns(command: Command) -> None:
    done = command("plan", "job.yaml", "--what-if", "link:a-b=1Gb/s", "--what-if", "-host:b2")
    assert max(len(line) for line in done.stdout.splitlines() if line.startswith(("┏", "│", "├", "└"))) <= 100


def test_json_is_the_plan_with_all_advice_whatever_is_asked(command: Command, tmp_path: Path) -> None:
    command("plan", "job.yaml", "-o", "other.json", "--usual-order")
    done = command("plan", "job.yaml", "--json", "--what-if", "link:a-b=1Gb/s", "--compare", "other.json")
    printed, written = json.loads(done.stdout), json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    advice = PlanAdvice.model_validate(printed.pop("advice"))
    assert printed == written
    assert [each.change for each in advice.what_ifs] == ["link:a-b=1Gb/s"]
    assert advice.helps[0].what_if == "link:a-b=40Mb/s"
    assert advice.bottleneck in advice.notes
    assert (advice.explain, advice.ablations) == ((), ())
    (tmp_path / "printed.json").write_text(done.stdout, encoding="utf-8")
    assert read_file(Plan, tmp_path / "printed.json") == read_file(Plan, tmp_path / "plan.json")
    assert "What if" in done.stderr
    assert "This plan and other.json" in done.stderr


@pytest.mark.slow
def test_changes_stand_side_by_side_with_the_plan_as_it_is(command: Command) -> None:
    changes = ("link:a-b=1Gb/s", "nic:a1/eth0=10Mb/s", "+host:a3=like:a1", "-host:b2")
    done = command("plan", "job.yaml", *(word for change in changes for word in ("--what-if", change)))
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for cells in (line.strip("│").split("│") for line in done.stdout.partition("What if")[2].splitlines())
        if len(cells) == 5 and cells[0].strip()
    }
    assert list(rows) == ["as it is", *changes]
    assert rows["as it is"][-1] == rows["+host:a3=like:a1"][-1] == "1.00x"
    assert float(rows["link:a-b=1Gb/s"][-1].strip("x")) > 1
    assert float(rows["nic:a1/eth0=10Mb/s"][-1].strip("x")) < 1
    assert rows["-host:b2"][0].startswith("no plan: the degrees fixed in job.yaml")


def test_other_plan_is_compared_figure_by_figure_and_host_by_host(command: Command) -> None:
    command("plan", "job.yaml", "-o", "other.json", "--usual-order")
    done = command("plan", "job.yaml", "--compare", "other.json")
    text = done.stdout.partition("This plan and other.json")[2]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    figures = {row[0]: row[1:] for row in rows if row[0]}
    assert figures["stages"][:2] == ["0: 5 layers on a", "0-1: 5 layers on a + b"]
    assert figures["dp groups use"][:2] == ["a (1), b (1)", "shared (2)"]
    assert figures["tokens/s"][2].endswith("x")
    assert "Hosts that hold other tasklets: 2 of 4" in text
    assert figures["a2"] == ["stage 0, replica 1", "stage 1, replica 0"]


@pytest.mark.slow
def test_plan_compared_with_itself_has_moved_nothing(command: Command) -> None:
    command("plan", "job.yaml", "-o", "other.json")
    done = command("plan", "job.yaml", "--compare", "other.json")
    assert "Hosts that hold other tasklets: 0 of 4" in done.stdout


@pytest.mark.slow
def test_questions_and_features_are_answered_on_screen_and_in_json(command: Command) -> None:
    asked = ("plan", "job.yaml", "--explain", "--without", "overlap,uneven")
    shown = command(*asked).stdout
    assert "Why this plan" in titles(shown)
    assert "The same plan without" in titles(shown)
    advice = PlanAdvice.model_validate(json.loads(command(*asked, "--json").stdout)["advice"])
    assert [each.without for each in advice.ablations] == [("uneven",), ("overlap",), ("uneven", "overlap")]
    assert {"what fits into a week?", "which rate of link:a-b changes the plan?"} <= {
        each.question for each in advice.explain
    }


@pytest.mark.slow
def test_search_that_is_cut_short_tells_how_far_from_the_best_its_plan_may_be(command: Command, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(gpu_inventory([5, 3]).to_json(), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(gpt_7b().model_dump(mode="json", exclude_defaults=True)))
    done = command("plan", "job.yaml", "--time-limit", "0")
    gap = read_file(Plan, tmp_path / "plan.json").solve.gap
    assert gap > 0
    assert f"(time limit: at most {gap:.2%} above the bound)" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_stage_over_two_clusters_comes_with_the_reason_on_screen_and_page(command: Command, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(cpu_inventory([3, 1]).to_json(), encoding="utf-8")
    done = command("plan", "job.yaml", "--html", "plan.html")
    reason = "with the other stages placed, a has room for 1 and b for 1 of 2 replicas; its gradients cross on"
    assert reason in " ".join(done.stdout.split())
    assert reason in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_is_written_beside_the_plan(command: Command, tmp_path: Path) -> None:
    done = command("plan", "job.yaml", "--html", "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "page: plan.html" in done.stdout
    assert all(
        f"<h2>{title}" in page
        for title in ("Placement and timeline", "Stages", "Traffic a step", "What would help most")
    )


@pytest.mark.slow
def test_large_plan_takes_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = gpu_inventory([12, 12])
    fixed = {"tp": 8, "pp": 6, "dp": 4, "micro_batch_size": 1, "schedule": "1f1b"}
    plan = plan_for(fleet, gpt_7b(global_batch_size=480, parallel=fixed))
    show_plan(plan, fleet)
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 90  # of 192 ranks
    assert "a1 to a4 (4): ranks 0-31 on GPUs 0-7 hold stage 0, replicas 0-3, shards 0-7" in text
    assert "│ 24 x tp " in text


def test_runners_up_are_listed_with_their_distance_and_reason() -> None:
    fleet = cpu_inventory([2, 2])
    plan = plan_for(fleet, bed_job())
    second = Alternative(
        tp=1,
        pp=1,
        dp=4,
        micro_batch_size=2,
        schedule="1f1b",
        recompute="full",
        crossing="data",
        step_s=1.25 * plan.prediction.step_s,
        why="gradients cross",
    )
    solve = plan.solve.model_copy(update={"alternatives": (second,)})
    sheet = plan_sheets(plan.model_copy(update={"solve": solve}), fleet)[-1]
    assert sheet.title == "Runners-up"
    seconds = format_seconds(second.step_s)
    degrees = "tp=1 pp=1 dp=4, micro-batch 2, 1f1b, full recomputation"
    assert sheet.rows == ((degrees, "data", seconds, "+25.0%", "gradients cross"),)


def test_rows_alike_are_one_only_in_long_tables() -> None:
    fleet = gpu_inventory([1, 1])
    plan = plan_for(fleet, gpt_7b(global_batch_size=64, parallel={"tp": 2, "pp": 2, "dp": 4, "micro_batch_size": 1}))
    groups = next(sheet for sheet in plan_sheets(plan, fleet) if sheet.title == "Process groups")
    assert [row[:3] for row in groups.rows] == [
        ("4 x dp", "4 each", "inside the host"),
        ("8 x forward", "2 each", "shared (Socket)"),
        ("8 x backward", "2 each", "shared (Socket)"),
        ("8 x tp", "2 each", "inside the host"),
    ]


def test_bar_has_eighths_and_never_hides_what_is_there() -> None:
    assert bar(1.0, 2.0, 4) == "██"
    assert bar(0.3, 1.0, 2) == "▋"
    assert bar(1e-9, 1.0, 10) == "▏"
    assert bar(0.0, 1.0, 10) == bar(1.0, 0.0, 10) == ""
    assert bar(3.0, 1.0, 2) == "██"


@pytest.mark.slow
def test_hosts_that_are_left_out_stand_at_the_top_of_screen_and_page(command: Command, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(cpu_inventory([3, 2]).to_json(), encoding="utf-8")
    done = command("plan", "job.yaml", "--html", "plan.html")
    sentence = "Left out: 1 of 5 slots, on a3: job.yaml fixes pp 2 and dp 2."
    assert sentence in done.stdout.splitlines()[:6]
    assert sentence in (tmp_path / "plan.html").read_text(encoding="utf-8").partition("<svg")[0]


@pytest.mark.slow
def test_a_plan_that_packs_or_could_says_what_that_costs_in_loss() -> None:
    fleet = cpu_inventory([2, 2], fabric_gbps=0.5, shared_gbps=0.01)
    emulate = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}
    parallel = {"pp": 2, "dp": 2, "micro_batch_size": 2, "recompute": "none"}

    def planned(codec: str) -> Plan:
        return plan_for(fleet, bed_job(compute=emulate, parallel=parallel, wire={"edges": codec}))

    (packs,) = [each for each in plan_sentences(planned("int4"), fleet) if each.startswith("Packing as")]
    assert packs == f"Packing as int4 on 1 cut between stages changes training: {loss_words('int4')}."
    exact = planned("none")
    assert not any("Packing" in sentence for sentence in plan_sentences(exact, fleet))
    offers = {row[1]: row[0] for row in advice_sheet(exact, advise(fleet, exact, {}, UNHURRIED)).rows}
    for codec in ("bf16", "int8", "int4"):
        assert offers[f"job.yaml: wire: {{edges: {codec}}}"].endswith(loss_words(codec))
