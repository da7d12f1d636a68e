"""Sentences with a number or a host in them say each once, and in the right number."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_cli.screen.show_run import show_run
from holmes_core.records.run import Failure
from tests.cli.conftest import Command
from tests.cli.screens import RUNS, bed_plan, finished


@pytest.mark.parametrize(("others", "said"), [(0, ""), (1, "; 1 more rank or node failed"), (2, "; 2 more ranks or")])
def test_those_that_failed_with_the_first_are_counted(
    capsys: pytest.CaptureFixture[str], others: int, said: str
) -> None:
    failures = tuple(
        Failure(host="b1", cluster="b", rank=rank, exit_code=1, message="x", last_lines=(), time_s=rank)
        for rank in range(1 + others)
    )
    show_run(bed_plan(), finished(bed_plan(), state="failed", exit_code=1, failures=failures), RUNS / "x")
    hint = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("hint: "))
    assert hint.endswith("/logs/b1-rank0.log") if not said else said in hint


def test_a_host_that_trust_does_not_reach_is_named_once(command: Command, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("hosts:\n  - {name: a2, address: 127.0.0.1, port: 1}\n", encoding="utf-8")
    done = command("trust", str(hosts))
    assert done.code == 1
    assert done.stderr.startswith("host a2: cannot connect to ")
    assert done.stderr.splitlines()[0].endswith("@127.0.0.1:1: connection refused")
