"""A host's last state does not outlive its run."""

from __future__ import annotations

import pytest

from holmes_cli.commands.launched.status_command import state_now
from holmes_core.records.run import Failure
from tests.cli.screens import finished
from tests.launcher.plans import cpu_plan

PLAN = cpu_plan()
LOST = Failure(
    host="b1", cluster="b", rank=None, exit_code=1, message="no word", last_lines=(), time_s=0, host_lost=True
)


@pytest.mark.parametrize(
    ("run", "host", "last", "shown"),
    [
        ("running", "a1", "stepping", "stepping"),
        ("running", "gone", "connected again", "left out of the plan"),
        ("stopped", "a1", "stepping", "ended"),
        ("done", "a1", "ended", "ended"),
        ("failed", "b1", "connected again", "lost"),
        ("failed", "a1", "stepping", "ended"),
    ],
)
def test_state_of_a_host_is_that_of_now(run: str, host: str, last: str, shown: str) -> None:
    failures = (LOST,) if run == "failed" else ()
    assert state_now(finished(PLAN, state=run, failures=failures), PLAN, host, last) == shown
