"""`holmes probe --script` and `--anonymize`: what a site runs by itself, and what it may give away."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command


def test_script_is_printed_alone(command: Command) -> None:
    done = command("probe", "--script")
    assert (done.code, done.stderr, done.stdout[:10]) == (0, "", "#!/bin/sh\n")
    refused = command("probe", "hosts.yaml", "--script")
    assert refused.code == 2
    assert "--script asks no host" in refused.stderr


def test_copy_without_names_is_written_and_read_again(command: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "falcon-1").mkdir(parents=True)
    (tmp_path / "own" / "falcon-1" / "x.txt").write_text("Linux falcon-1 6.8.0 x86_64\n")
    entries = [{"file": "x.txt", "command": "uname -a", "exit_code": 0}]
    (tmp_path / "own" / "falcon-1" / "recording.json").write_text(json.dumps(entries))
    copy = str(tmp_path / "copy")
    done = command("probe", "--replay", str(tmp_path / "own"), "--anonymize", copy)
    assert (done.code, done.stderr) == (0, "")
    assert copy in done.stdout
    read = command("probe", "--replay", copy, "--json")
    assert json.loads(read.stdout)["hosts"][0]["hostname"] == "host-0001"
    assert command("probe", "--replay", str(tmp_path / "own"), "--anonymize", copy).code == 2
    assert command("probe", "--anonymize", copy).code == 2
