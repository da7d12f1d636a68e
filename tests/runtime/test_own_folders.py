"""Hosts with folders of their own: what one has lost another has, and what is damaged is told and never mixed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import all_but

from .asked_for import asked_for
from .continuity_worker import STEPS, STOPPED_AFTER
from .own_folders_worker import HOSTS
from .test_continuity import WORKER_LIMIT_S, start

pytestmark = [pytest.mark.torch, pytest.mark.timeout(WORKER_LIMIT_S + 60)]


# Exhaustive: another host is lost, another file is damaged, and others are left.
COVERED = ("h1 lost", "h2 lost", "truncated", "on h1 h2")
LOST = ("nothing lost", *(f"{host} lost" for host in HOSTS), "h0 and h3 lost")
DAMAGED = {
    "truncated": "/h0/step-00000003/__0_0.distcp has 100 of ",
    "flipped": "/h0/step-00000003/__0_0.distcp: bytes ",
    "index flipped": "/h0/step-00000003/pieces.json is not as it was written",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-folders")


@pytest.fixture(scope="module")
def runs(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    needed = {value for parameters in asked_for(request) for value in parameters.values()}
    done = start("own_folders_worker", str(folder), *(name for name in COVERED if name not in needed))
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "own_folders.json").read_text())
    return results


def resumed(runs: dict[str, Any], name: str, after: int = STOPPED_AFTER) -> tuple[list[float], list[float], str]:
    """Losses after the stop, those of the run that was not stopped, and what was said."""
    run = runs[name]
    assert set(run["exit_codes"]) == {0}, run["said"]
    assert run["steps"][0] == after
    return run["losses"], runs["uninterrupted"]["losses"][after:], run["said"]


def test_each_host_has_its_own_files_and_those_of_one_host_of_the_other_cluster(
    runs: dict[str, Any], folder: Path
) -> None:
    assert set(runs["stopped"]["exit_codes"]) == {0}
    held = {
        host: {int(path.name[2]) for path in (folder / "saved-stopped" / host).glob("step-*/*.distcp")}
        for host in HOSTS
    }
    assert held == {"h0": {0, 2}, "h1": {1, 0}, "h2": {2, 3}, "h3": {3, 1}}


@pytest.mark.parametrize("lost", all_but(COVERED[:2], LOST))
def test_the_loss_goes_on_bit_equal_whichever_host_has_lost_its_folder(runs: dict[str, Any], lost: str) -> None:
    losses, expected, said = resumed(runs, lost)

    assert losses == expected
    for host in HOSTS:
        assert (f"/{host} holds nothing of step-00000003: read from another folder" in said) == (host in lost)


def test_a_run_goes_back_to_an_older_checkpoint_also_where_a_host_has_lost_its_part(
    runs: dict[str, Any], folder: Path
) -> None:
    losses, expected, said = resumed(runs, "gone back")

    assert losses == expected
    assert f"resumed after step {STOPPED_AFTER} of {STEPS} from" in said
    saved = folder / "saved-gone-back"
    assert {(saved / host / "latest").read_text() for host in HOSTS} == {f"step-{STEPS:08d}\n"}
    aside = {path.name for host in HOSTS[:3] for path in (saved / host).glob("*.aside-1")}
    assert aside == {f"step-{steps:08d}.aside-1" for steps in (4, STEPS)}


def test_a_checkpoint_to_go_back_to_that_no_host_has_is_refused_with_those_there_are(
    runs: dict[str, Any], folder: Path
) -> None:
    run = runs["gone back too far"]
    assert set(run["exit_codes"]) == {1}
    there = ", ".join(f"step-{steps:08d}" for steps in (2, STOPPED_AFTER, 4, STEPS))
    assert f"has no whole checkpoint of step 1; it has: {there}" in run["said"]
    for host in HOSTS:
        before, after = (folder / name / host for name in ("saved-nothing-lost", "saved-gone-back-too-far"))
        assert (after / "latest").read_text() == (before / "latest").read_text()


@pytest.mark.parametrize("left", all_but(["on h1 h2"], ["on h0 h1 h2", "on h1 h2"]))
def test_hosts_that_are_left_go_on_under_another_plan(runs: dict[str, Any], left: str) -> None:
    losses, expected, _ = resumed(runs, left)

    assert losses == pytest.approx(expected, abs=1e-6)


def test_hosts_that_have_nothing_whole_say_what_is_missing_and_who_had_it(runs: dict[str, Any]) -> None:
    run = runs["on h0 h1"]
    assert run["exit_codes"] == [1, 1]
    assert "h0, h1 hold no checkpoint that is whole: step-00000003: host h0: " in run["said"]
    assert "/h0/step-00000003/__3_0.distcp is missing; " in run["said"]
    assert "it was also on h3; it was also on h2" in run["said"]


@pytest.mark.parametrize("name", all_but(["truncated"], DAMAGED))
def test_a_damaged_file_is_told_and_its_copy_read(runs: dict[str, Any], name: str) -> None:
    losses, expected, said = resumed(runs, name)

    assert losses == expected
    assert any(line.startswith("host h0: ") and DAMAGED[name] in line for line in said.splitlines())


def test_where_every_copy_is_damaged_the_checkpoint_before_is_taken_whole(runs: dict[str, Any]) -> None:
    losses, expected, said = resumed(runs, "both flipped", after=2)

    assert losses == expected
    assert "checkpoint step-00000003 cannot be read and is left out: " in said
    for host in ("h0", "h1"):
        assert f"/{host}/step-00000003/__0_0.distcp: bytes " in said


def test_an_old_folder_that_comes_back_with_a_later_clock_is_not_taken_for_the_newest(runs: dict[str, Any]) -> None:
    run = runs["old folder"]
    assert set(run["exit_codes"]) == {0}, run["said"]
    assert run["steps"] == [STEPS, STEPS + 1]
    assert "/h3 holds nothing of step-00000006: read from another folder" in run["said"]


def test_a_folder_with_the_same_step_of_another_save_is_not_mixed_in(runs: dict[str, Any]) -> None:
    losses, expected, said = resumed(runs, "folder of same step")

    assert losses == expected
    assert "/h3 holds nothing of step-00000003: read from another folder" in said


def test_a_folder_of_another_run_is_refused_and_left_alone(runs: dict[str, Any], folder: Path) -> None:
    run = runs["folder of other run"]
    assert run["exit_codes"] == [1, 1, 1, 1]
    assert "checkpoints of different runs: host h0: " in run["said"]
    assert "/h3 of run other; empty the folders that you do not want" in run["said"]
    assert (folder / "saved-folder-of-other-run" / "h3" / "latest").read_text() == "step-00000003\n"


def test_a_host_that_cannot_write_is_named_before_anything_is_trained(runs: dict[str, Any]) -> None:
    run = runs["no folder"]
    assert run["exit_codes"] == [1, 1, 1, 1]
    assert "must be a folder that every host can write to: host h2: " in run["said"]
    assert run["steps"] == []


def test_a_full_disk_of_one_host_stops_all_and_leaves_what_was_saved(runs: dict[str, Any], folder: Path) -> None:
    run = runs["full"]
    assert run["exit_codes"] == [1, 1, 1, 1]
    assert "the checkpoint after 4 steps could not be written to" in run["said"]
    assert "those before it are whole: host h1, rank 1: OSError(27, 'File too large')" in run["said"]
    for host in HOSTS:
        assert (folder / "saved-full" / host / "latest").read_text() == "step-00000003\n"


@pytest.mark.parametrize("name", ["from memory", "from memory without h3"])
def test_ranks_started_again_read_no_disk_while_memory_has_the_newest_step(runs: dict[str, Any], name: str) -> None:
    run, after = runs[name], runs["kept"]["stopped_after"]
    assert set(run["exit_codes"]) == {0}, run["said"]
    assert run["steps"] == [after, after + 1]
    assert run["losses"] == runs["from disk"]["losses"]
    assert ".distcp" not in run["said"]  # every piece on a disk would have been told as damaged
    assert ("/h3 holds nothing of " in run["said"]) == (name == "from memory without h3")


def test_without_memory_disks_that_hold_zeros_are_told(runs: dict[str, Any]) -> None:
    assert set(runs["from zeros"]["exit_codes"]) == {1}
    assert ".distcp: bytes " in runs["from zeros"]["said"]


def test_a_run_that_has_taken_its_last_step_leaves_nothing_in_memory(runs: dict[str, Any]) -> None:
    assert runs["left in memory"]["paths"] == []


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        *(("own", 5), ("cluster", 4)),
        *(pytest.param(how, kills, marks=pytest.mark.exhaustive) for how, kills in (("own", 20), ("cluster", 10))),
    ],
)
def test_kills_in_the_midst_of_saves_each_with_folders_deleted_lose_nothing(
    tmp_path: Path, how: str, kills: int
) -> None:
    """That of a random host, or those of both hosts of a cluster; what was resumed is compared number by number."""
    done = start("killed_saves", str(tmp_path), str(kills), how)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["in_midst"] == kills
    assert max(found["lost"]) <= 0  # below zero: a save that was under way became whole before the kill
