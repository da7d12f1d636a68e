"""`holmes probe --replay` on recordings made by hand: any subset of outputs is one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SAMPLES = Path(__file__).parents[1] / "data" / "probe"


def recording(folder: Path, scenario: str) -> Path:
    place = folder / "recordings" / scenario
    place.mkdir(parents=True)
    expected = json.loads((SAMPLES / scenario / "expected.json").read_text(encoding="utf-8"))
    entries = []
    for file, about in expected["files"].items():
        shutil.copy(SAMPLES / scenario / file, place / file)
        entries.append({"file": file, "command": about["command"], "exit_code": about["exit_code"]})
    (place / "recording.json").write_text(json.dumps(entries), encoding="utf-8")
    return place.parent


def test_the_table_says_of_every_port_whether_it_is_a_rail_and_why(command: Command, tmp_path: Path) -> None:
    folder = recording(tmp_path, "h100-ndr-8rail-bf3-bond")
    done = command("probe", "--replay", str(folder), "-o", str(tmp_path / "inventory.json"))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    kinds = {row[2]: row[3] for row in rows if len(row) == 5 and row[3]}
    assert kinds == {"InfiniBand 400 Gbit/s": "0-7", "RoCE 200 Gbit/s": "out"}
    assert "a BlueField's host port" in " ".join(row[4] for row in rows if len(row) == 5)


def test_rails_stated_for_a_recording_are_those_of_its_replay(command: Command, tmp_path: Path) -> None:
    folder = recording(tmp_path, "h100-ndr-8rail-bf3-bond")
    notes = folder / "h100-ndr-8rail-bf3-bond" / "host.json"
    notes.write_text(json.dumps({"rails": ["mlx5_bond_0"]}), encoding="utf-8")
    done = command("probe", "--replay", str(folder), "--json", "-o", str(tmp_path / "inventory.json"))
    (host,) = json.loads(done.stdout)["hosts"]
    assert [nic["device"] for nic in host["nics"] if nic.get("rail") is not None] == ["mlx5_bond_0"]


@pytest.mark.parametrize(
    ("scenario", "code", "rule"),
    [
        ("h100-roce-400g-8rail", 0, "NIC-RATE-OUTLIER"),
        ("h100-roce-two-rails-disabled", 1, "NIC-PORT-DOWN"),
        ("driver-library-mismatch", 1, "GPU-DRIVER-MISMATCH"),
    ],
)
def test_replay_of_one_tool_says_what_can_be_known_from_it(
    command: Command, tmp_path: Path, scenario: str, code: int, rule: str
) -> None:
    done = command("probe", "--replay", str(recording(tmp_path, scenario)), "--json")
    inventory = json.loads(done.stdout)
    assert done.code == code
    assert rule in {finding["rule"] for finding in inventory["findings"]}
    assert [host["name"] for host in inventory["hosts"]] == [scenario]
    fields = {"device", "port", "kind", "rate_gbps", "state", "phys_state", "netdev", "usable_by_nccl_ib", "why"}
    assert all(fields <= set(nic) for nic in inventory["hosts"][0]["nics"])


LIVE = "what a live probe wrote"


@pytest.mark.parametrize("options", [[], ["--html", "page.html"]])
def test_a_replay_does_not_write_over_another_inventory(command: Command, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "inventory.json").write_text(LIVE)
    done = command("probe", "--replay", str(recording(tmp_path, "h100-roce-400g-8rail")), *options)
    assert (done.code, done.stdout) == (2, "")
    assert "inventory.json" in done.stderr
    assert "-o" in done.stderr
    assert (tmp_path / "inventory.json").read_text() == LIVE
    assert not (tmp_path / "page.html").exists()


def test_a_replay_that_is_told_where_to_write_writes_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(LIVE)
    folder = str(recording(tmp_path, "h100-roce-400g-8rail"))
    assert command("probe", "--replay", folder, "-o", "other.json").code == 0
    assert (tmp_path / "inventory.json").read_text() == LIVE
    assert command("probe", "--replay", folder, "-o", "inventory.json").code == 0
    assert (tmp_path / "inventory.json").read_text() == (tmp_path / "other.json").read_text() != LIVE


def test_the_same_replay_again_is_no_other_inventory(command: Command, tmp_path: Path) -> None:
    folder = str(recording(tmp_path, "h100-roce-400g-8rail"))
    first = command("probe", "--replay", folder)
    written = (tmp_path / "inventory.json").read_text()
    again = command("probe", "--replay", folder)
    assert (first.code, again.code, again.stdout) == (0, 0, first.stdout)
    assert (tmp_path / "inventory.json").read_text() == written


def test_a_replay_as_json_writes_only_the_file_it_is_told(command: Command, tmp_path: Path) -> None:
    folder = str(recording(tmp_path, "h100-roce-400g-8rail"))
    printed = command("probe", "--replay", folder, "--json")
    assert (printed.code, (tmp_path / "inventory.json").exists()) == (0, False)
    (tmp_path / "inventory.json").write_text(LIVE)
    assert command("probe", "--replay", folder, "--json").stdout == printed.stdout
    assert (tmp_path / "inventory.json").read_text() == LIVE
    assert command("probe", "--replay", folder, "--json", "-o", "inventory.json").stdout == printed.stdout
    assert (tmp_path / "inventory.json").read_text() == printed.stdout
