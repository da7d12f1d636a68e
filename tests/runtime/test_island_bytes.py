"""Islands on a loopback that nothing else uses: what the kernel counts there is what a ring would move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.needs_bed import NEEDS_BED

from .launched_runs import REPOSITORY

pytestmark = [*NEEDS_BED, pytest.mark.timeout(1800)]


def test_five_islands_move_the_bytes_of_a_ring_over_the_wire(tmp_path: Path) -> None:
    program = f"ip link set lo up && exec {sys.executable} -m tests.runtime.island_bytes {tmp_path}"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert line["reported"] == pytest.approx(line["rings"], rel=0.05)
        assert line["wire"] == pytest.approx(line["rings"], rel=0.05)
