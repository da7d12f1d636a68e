"""`make demo` where there can be no bed: the same commands on local processes, to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.demo import run_demo
from tests.testbed.rehearsal import local_site


@pytest.mark.process
def test_demo_on_local_processes_ends_with_its_summary(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_demo(local_site(tmp_path), steps=2)
    shown = capfd.readouterr().out
    commands = [line.split()[2] for line in shown.splitlines() if line.startswith("$ holmes ")]
    assert commands == ["probe", "plan", "launch"]
    assert "Holmes" in shown[shown.index("Summary") :]
    assert "not told apart" in shown
