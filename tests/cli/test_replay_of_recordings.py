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
