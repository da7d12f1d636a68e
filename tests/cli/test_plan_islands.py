"""What `holmes plan` prints and writes of a job that allows islands: the modes, and which is best where."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.pages.modes_picture import COLOURS, draw_modes
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import BestMode, Mode
from holmes_core.records.link import Security
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record_file import read_file, write_signed
from holmes_train.api import HolmesError, plan
from planner.islands.uniform_links import with_uniform_links
from tests.cli.conftest import Command
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.test_calibration import islands_folder
from tests.seeds import few_of

ISLANDS = {"inner_steps": 10, "fragments": 2, "delay_steps": 2}
SLOW = with_uniform_links(cpu_inventory([1, 1]), 0.002 * GBPS, 0.02)
JOB = bed_job(parallel={}, steps=100)


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """The bed's job on two hosts far apart, with islands."""
    (tmp_path / "inventory.json").write_text(SLOW.to_json(), encoding="utf-8")
    write_job(tmp_path, ISLANDS)


def write_job(folder: Path, islands: dict[str, Any], **changes: Any) -> None:
    job = JOB.model_dump(mode="json", exclude_defaults=True) | {"islands": islands} | changes
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")


def test_islands_are_planned_and_all_modes_told(command: Command, tmp_path: Path) -> None:
    done = command("plan", "job.yaml")
    assert done.stdout.startswith("2 islands, a, b: 10 and 10 inner steps a round\n")
    assert "x as fast as the best mode that trains as one; what islands exchange is" in done.stdout
    shown = [line for line in done.stdout.splitlines() if re.fullmatch(r"(Islands?|Modes|Best mode)\b.*", line)]
    assert [line.partition(" by")[0] for line in shown] == ["Island 0", "Island 1", "Islands", "Modes", "Best mode"]
    assert re.search(r"│ 1 Gbit/s +│ (data|pipeline) 1\.\d\dx +│", done.stdout)
    assert done.stdout.endswith("plan: plan.json\nnext: holmes launch plan.json\n")
    assert max(len(line) for line in done.stdout.splitlines() if line.startswith(("┏", "│", "├", "└"))) <= 100
    written = read_file(IslandsPlan, tmp_path / "plan.json")
    assert [[node.host for node in island.nodes] for island in written.islands] == [["a1"], ["b1"]]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "warned"), few_of(1, [(1e-3, False), (3e-3, True)]))
def test_learning_rate_at_which_islands_jumped_is_warned_of_with_their_batch(
    command: Command, tmp_path: Path, rate: float, warned: bool
) -> None:
    write_job(tmp_path, ISLANDS, optimizer={"learning_rate": rate})
    done = command("plan", "job.yaml")
    batches = [island.job.global_batch_size for island in read_file(IslandsPlan, tmp_path / "plan.json").islands]
    whole = f"batches of {min(batches)}, not {JOB.global_batch_size}:"
    assert done.code == 0
    assert ("optimizer.learning_rate 0.003 is high for islands" in done.stdout) is warned
    assert (whole in done.stdout) is warned


def test_settings_that_are_left_open_are_chosen_and_shown(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"max_loss_penalty": "2%"})
    done = command("plan", "job.yaml")
    chosen = re.search(r"^inner_steps (\d+), codec (\w+), fragments (\d), delay_steps (\d+): loss", done.stdout, re.M)
    assert chosen is not None
    assert "\nSettings of islands\n" in done.stdout
    assert "chosen: " in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if line.startswith(("┏", "│", "├", "└"))) <= 100
    islands = read_file(IslandsPlan, tmp_path / "plan.json").job.islands
    assert islands is not None
    settings = (islands.inner_steps, islands.codec, islands.fragments, islands.delay_steps)
    assert tuple(map(str, settings)) == chosen.groups()


def test_quorum_that_rules_out_islands_is_the_first_line(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {**ISLANDS, "quorum": 3})
    first = command("plan", "job.yaml").stdout.splitlines()[0]
    assert re.match(r"`islands.quorum: 3` rules out islands that would read \d+ tokens/s, \d\.\d\dx", first)


def test_fragments_that_no_round_has_are_the_first_line_with_what_they_cost(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"fragments": 64})
    first = command("plan", "job.yaml").stdout.replace("\n", " ")
    assert re.match(
        r"`islands.fragments: 64` rules out islands that would read \d+ tokens/s, \d\.\d\dx as many as this plan: "
        r"no round of up to half of the job's 100 steps fits what `islands` fixes\. ",
        first,
    )


def test_dry_run_of_encrypted_islands_has_the_agents_of_their_tunnel(command: Command, tmp_path: Path) -> None:
    inventory = SLOW.model_copy(update={"security": Security(between_clusters="wireguard")})
    write_signed(tmp_path / "inventory.json", inventory)
    assert command("plan", "job.yaml").code == 0
    done = command("launch", "plan.json", "--dry-run")
    assert done.code == 0, done.stderr
    said = done.stdout
    assert said.startswith("tunnel: holmes-wg on 2 hosts")
    assert "UDP from 51820 open" in said
    lines = map(json.loads, command("launch", "plan.json", "--dry-run", "--json").stdout.splitlines())
    nodes = [line for line in lines if "node" in line]
    configs = [json.loads(line["files"]["node.json"]) for line in nodes]
    assert [(line["node"], config["tunnel"] is None) for line, config in zip(nodes, configs, strict=True)] == [
        *(("a1", False), ("b1", False)),
        *(("a1", True), ("b1", True)),
    ]


def test_a_longer_round_than_the_fixed_one_is_named_with_its_loss(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"inner_steps": 2, "codec": "none", "fragments": 1, "delay_steps": 0})
    said = " ".join(command("plan", "job.yaml").stdout.split())
    assert re.search(r"Islands with `inner_steps: \d+` would read \d+ tokens/s, \d+\.\d\dx as many; loss over", said)


def test_json_is_the_plan_with_its_modes_and_nothing_else(command: Command, tmp_path: Path) -> None:
    done = command("plan", "job.yaml", "--json")
    data = json.loads(done.stdout)
    assert done.stdout == (tmp_path / "plan.json").read_text(encoding="utf-8")
    assert data["kind"] == "islands_plan"
    assert data["modes"]["prices"][0]["mode"] == "islands"
    assert {"bandwidth_bytes_per_s", "latency_s", "mode", "tokens_per_s"} <= set(data["modes"]["by_network"][0])


@pytest.mark.slow
def test_page_draws_the_best_modes(command: Command, tmp_path: Path) -> None:
    command("plan", "job.yaml", "--html", "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.count('<g class="mode">') == 24
    assert "<h2>Islands</h2>" in page
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []


@pytest.mark.slow
def test_hosts_train_as_one_where_that_is_faster_and_the_modes_are_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(cpu_inventory([1, 1], shared_gbps=5.0).to_json(), encoding="utf-8")
    write_job(tmp_path, {**ISLANDS, "delay_steps": 0})
    done = command("plan", "job.yaml", "--html", "plan.html")
    assert "\nModes\n" in done.stdout
    assert "Best mode by what joins clusters" in done.stdout
    written = read_file(Plan, tmp_path / "plan.json")
    assert written.job.islands is None
    assert written.modes is not None
    assert '<svg id="modes"' in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_of_an_ordinary_plan_draws_no_modes(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, ISLANDS)
    job = yaml.safe_load((tmp_path / "job.yaml").read_text(encoding="utf-8"))
    del job["islands"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    command("plan", "job.yaml", "--html", "plan.html", "--json")
    assert '<svg id="modes"' not in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_islands_are_compared_with_other_islands_and_with_hosts_that_train_as_one(command: Command) -> None:
    command("plan", "job.yaml", "-o", "short.json")
    assert command("plan", "job.yaml", "--set", "islands=null", "-o", "one.json").code == 0
    longer = ("plan", "job.yaml", "--set", "islands.inner_steps=50")
    figures = compared(command(*longer, "--compare", "short.json").stdout, "short.json")
    assert [text.splitlines()[0] for text in figures["mode"][:2]] == ["islands: a, b"] * 2
    assert ["50 inner steps" in figures["mode"][0], "10 inner steps" in figures["mode"][1]] == [True, True]
    assert float(figures["tokens/s"][2].strip("x")) > 1
    assert float(figures["all steps"][2].strip("x")) < 1
    figures = compared(command(*longer, "--compare", "one.json").stdout, "one.json")
    assert figures["mode"][1] == "as one: a"
    assert figures["job"][1] == "another one"
    as_json = command(*longer, "--compare", "one.json", "--json")
    assert compared(as_json.stderr, "one.json").keys() == figures.keys()
    figures = compared(
        command("plan", "job.yaml", "--set", "islands=null", "--compare", "short.json").stdout, "short.json"
    )
    assert figures["mode"][0] == "as one: a"
    assert figures["mode"][1].startswith("islands: a, b")


def compared(shown: str, name: str) -> dict[str, list[str]]:
    """The rows of the table that compares with that plan, with lines of one cell joined."""
    figures, heading = dict[str, list[str]](), ""
    for line in shown.partition(f"This plan and {name}")[2].splitlines():
        if line.startswith("│"):
            first, *cells = (cell.strip() for cell in line.strip("│").split("│"))
            heading = first or heading
            before = figures.get(heading, [""] * len(cells))
            figures[heading] = ["\n".join(filter(None, pair)) for pair in zip(before, cells, strict=True)]
    return figures


@pytest.mark.parametrize("options", [["--usual-order"], ["--what-if", "link:a-b=1Gb/s"]])
def test_options_about_one_plan_are_refused(command: Command, tmp_path: Path, options: list[str]) -> None:
    done = command("plan", "job.yaml", *options)
    assert done.code == 2
    assert f"{options[0]}: job.yaml has `islands`" in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_a_run_of_islands_calibrates_the_next_plan_of_islands(command: Command, tmp_path: Path) -> None:
    command("plan", "job.yaml")
    (tmp_path / "run").mkdir()
    islands_folder(tmp_path / "run", read_file(IslandsPlan, tmp_path / "plan.json"), (1.25, 1.5))
    for run, factor in (("run", 1.5), ("run/island-0", 1.25)):
        done = command("plan", "job.yaml", "--calibrate", run, "-o", "again.json")
        assert done.code == 0, done.stderr
        assert f"calibrated with {run}: compute takes {factor:.2f} times the model's seconds" in done.stderr
        calibration = read_file(IslandsPlan, tmp_path / "again.json").job.compute.calibration
        assert calibration is not None
        assert calibration.compute_factor == pytest.approx(factor)


def test_wrong_section_is_refused_by_its_key(command: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"inner_step": 10})
    done = command("plan", "job.yaml")
    assert done.code == 2
    assert "islands.inner_step" in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_api_does_not_take_islands_for_one_plan() -> None:
    job = JOB.model_validate(JOB.model_dump(mode="json") | {"islands": ISLANDS})
    with pytest.raises(HolmesError, match="call `plan_any_mode`"):
        plan(Inventory.model_validate(SLOW.model_dump()), job)


def test_picture_has_a_square_for_each_rate_and_latency() -> None:
    best: list[tuple[float, Mode]] = [(1e6, "islands"), (1e9, "data")]
    cells = [
        BestMode(bandwidth_bytes_per_s=rate, latency_s=latency_s, mode=mode, tokens_per_s=5.0)
        for rate, mode in best
        for latency_s in (1e-3, 1e-1)
    ]
    picture = draw_modes(cells)
    assert [(box.label, box.fill) for box in picture.boxes[::2]] == [
        ("islands", COLOURS["islands"]),
        ("data", COLOURS["data"]),
    ]
    assert len({(box.x, box.y) for box in picture.boxes}) == 4
    assert all(box.x + box.width <= picture.width and box.y + box.height <= picture.height for box in picture.boxes)
    assert [label.text for label in picture.labels] == ["8 Mbit/s", "8 Gbit/s", "1 ms", "100 ms"]
