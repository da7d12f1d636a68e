"""Whatever `--json` prints a program reads to the end, as `jq` would, also where colours are forced."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_cli.app import COMMANDS
from tests.builders.local_runs import environment, write_inputs
from tests.cli.test_help_texts import parameters

LOG = Path(__file__).parents[1] / "data" / "nccl_logs" / "sound_infiniband.log"
WATCHED = Path(__file__).parents[1] / "data" / "watched_runs" / "ddp_gloo"
# In this order each finds what it needs; RUN is the run's folder.
CALLS = (
    ("probe", "hosts.yaml", "--json", "-o", "inventory.json"),
    ("probe", "hosts.yaml", "--json", "--diff", "inventory.json"),
    ("sketch", "a: 2 x 8 H100, IB 8x400", "--json"),
    ("plan", "job.yaml", "--json"),
    ("plan", "job.yaml", "--json", "--what-if", "link:a-b=1Gb/s", "--compare", "plan.json", "--html", "plan.html"),
    ("doctor", "--log", "nccl.log", "--json"),
    ("doctor", "--replay", str(WATCHED), "--json"),
    ("launch", "plan.json", "--dry-run", "--json"),
    ("launch", "plan.json", "--json"),
    ("ps", "--all", "--json"),
    ("ps", "--json"),
    ("ps", "--hosts", "hosts.yaml", "--json"),
    ("status", "RUN", "--json"),
    ("status", "RUN", "--json", "--html", "run.html", "--tensorboard", "events"),
    ("attach", "RUN", "--json"),
)


def documents(text: str) -> Iterator[object]:
    """One after the other, with nothing but space between them."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()


@pytest.mark.process
def test_a_program_reads_all_that_json_prints(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    shutil.copy(LOG, tmp_path / "nccl.log")
    variables = {**environment(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "FORCE_COLOR": "1"}
    variables.pop("NO_COLOR", None)
    counts: dict[tuple[str, ...], int] = {}
    for call in CALLS:
        folders = [str(each) for each in (tmp_path / "runs").glob("*")]
        words = [folders[0] if word == "RUN" else word for word in call]
        command = [sys.executable, "-m", "holmes_cli", *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (call, done.stderr)
        found = list(documents(done.stdout))
        assert all(isinstance(each, dict) for each in found), call
        counts[call] = len(found)
    none_now = {("ps", "--json"), ("ps", "--hosts", "hosts.yaml", "--json")}
    assert {call for call, count in counts.items() if count == 0} == none_now
    assert list((tmp_path / "events").iterdir()) != []


def test_every_command_that_prints_json_is_called() -> None:
    able = {name for name in COMMANDS if any(each.name == "as_json" for each in parameters(name))}
    assert able == {call[0] for call in CALLS}
