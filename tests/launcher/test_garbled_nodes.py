"""A node that answers what is no message is a fault of that host, and holds up nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.records.access import Access
from holmes_runtime.config.messages import Alive, encode
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Preflight, remedy_of
from launcher.nodes.start import RunningNodes, start
from launcher.nodes.stop import stop
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, with_access
from tests.seeds import few_of

PLAN = cpu_plan()
OLDER = '{"event": "ready", "facts": {}}'
BANNER = "Welcome to $HOME!\n\n"
ALIVE = encode(Alive()).decode().strip()


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> tuple[Preflight, tuple[str, ...]]:
    """What the checks say when the first node's agent says that, the others' nothing; and what cannot be ended."""
    python = folder / "python3"
    python.write_text(
        '#!/bin/sh\ncase "$PWD $*" in *end_agent*) ;; */0-0\\ *) cat "$0.said"; read -r stopped;; esac\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    (folder / "python3.said").write_text(said, encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    plan = with_access(PLAN, Access(transport="local", python=str(python)))
    attempt = Attempt("20260101-000000-abcd")
    nodes = RunningNodes(prepare(plan, attempt, UserVariables({}, {})), False, Interrupts())
    preflight = start(nodes, plan, attempt, None, frozenset(), lambda host, state: None)  # noqa: ARG005
    return preflight, stop(nodes)


@pytest.mark.parametrize(
    ("said", "reason"),
    few_of(
        1,
        [
            (f"{OLDER}\n", "kind: expected one of "),
            (f"{BANNER}{OLDER}\n", "kind: expected one of "),
            (f"{BANNER}{ALIVE}\n{BANNER}", "Expecting value"),
            ('{"kind": "Ready"}\n', "Ready.facts: missing"),
            ("{" * 5000 + "\n", "Expecting property name"),
        ],
    ),
    ids=["older agent", "older agent after a banner", "words amid messages", "no facts", "garbage"],
)
def test_words_that_are_no_message_refuse_the_launch_by_their_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    preflight, stuck = launched(tmp_path, monkeypatch, said)
    fault = next(fault for fault in preflight.faults if fault.host == PLAN.nodes[0].host)
    assert fault.check == "agent"
    assert f"agent and controller do not understand each other: {reason}" in fault.evidence
    assert "standard output" in remedy_of(fault)
    assert stuck == ()
    assert list((tmp_path / ".cache" / "holmes" / "runs").glob("*")) == []
