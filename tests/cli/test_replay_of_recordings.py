"""`holmes probe --replay` on recordings made by hand: any subset of outputs is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data" / "probe"


def replayed(folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and the inventory on standard output."""
    command = [sys.executable, "-m", "holmes_cli", "probe", "--replay", str(folder), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


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
def test_replay_of_one_tool_says_what_can_be_known_from_it(tmp_path: Path, scenario: str, code: int, rule: str) -> None:
    exit_code, inventory = replayed(recording(tmp_path, scenario))
    assert exit_code == code
    assert rule in {finding["rule"] for finding in inventory["findings"]}
    assert [host["name"] for host in inventory["hosts"]] == [scenario]
    fields = {"device", "port", "kind", "rate_gbps", "state", "phys_state", "netdev", "usable_by_nccl_ib", "why"}
    assert all(fields <= set(nic) for nic in inventory["hosts"][0]["nics"])
