"""A rank's error file is whole or missing, whatever ends the rank as it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
from holmes_runtime.train import WholeErrorFile
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    raise ValueError("a shape that cannot be")
except ValueError as error:
    WholeErrorFile().record_exception(error)
"""


@pytest.mark.process
def test_an_error_that_is_cut_short_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"

    def write(*arguments: str) -> int:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.run(
            command, env={"TORCHELASTIC_ERROR_FILE": str(path)}, capture_output=True, check=False
        ).returncode

    assert write("10") != 0
    assert not path.exists()
    assert write() == 0
    assert json.loads(path.read_text(encoding="utf-8"))["message"]["message"] == "ValueError: a shape that cannot be"
    assert [each.name for each in tmp_path.iterdir()] == ["error.json"]
