"""A checkpoint's folder from somebody else ends each command, and a rank that resumes, in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import ROOT


@pytest.mark.parametrize("mode", ["commands", "resume"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(60), marks=pytest.mark.process),
        pytest.param(range(60, 240), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_hostile_folders_end_in_a_sentence_within_time_and_memory_and_write_nothing_elsewhere(
    tmp_path: Path, mode: str, seeds: range
) -> None:
    words = [sys.executable, "-m", "tests.hostile_checkpoints", mode, str(tmp_path), str(seeds.start), str(len(seeds))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)

    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines == [{"cases": len(seeds)}], done.stderr[-2000:]
