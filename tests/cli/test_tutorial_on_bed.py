"""The tutorial of two real clusters, typed from its own text on a controller that reaches four hosts by SSH."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests import doc_session
from tests.cli.test_three_commands import nothing_is_left
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED

pytestmark = NEEDS_BED


def with_python(bed: Bed, folder: Path) -> tuple[str, ...]:
    """Name the interpreter that has torch `python3` on every host, and give what precedes a command there."""
    shutil.copy(bed.ssh_config, folder)
    for host in bed.hosts:
        (host.tools / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
        (host.tools / "python3").chmod(0o755)
    return tuple(bed.controller_command([]))


def test_run_of_the_tutorial_is_stopped_and_resumed_to_its_end(tmp_path: Path) -> None:
    with Bed() as bed:
        doc_session.check(doc_session.TUTORIALS / "two-clusters.md", tmp_path, with_python(bed, tmp_path))
        runs = [read_file(Run, path) for path in tmp_path.glob("runs/*/run.json")]
        assert sorted(run.state for run in runs) == ["done", "stopped"]
        assert sum(run.steps_done for run in runs) == 600
        assert nothing_is_left(bed)
