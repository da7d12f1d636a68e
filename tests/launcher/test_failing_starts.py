"""A node whose agent does not start gives its shell's own words, and hides no other node's."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.records.access import Access
from holmes_runtime.config.messages import encode
from launcher.nodes.preflight import Preflight, remedy_of
from launcher.nodes.start import PREPARED, RunningNodes, start
from launcher.nodes.stop import stop
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, healthy_answers, with_access

PLAN = cpu_plan()
HOSTS = [node.host for node in PLAN.nodes]
RUN = "20260101-000000-abcd"


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, activate: str | None = None) -> Preflight:
    """What the checks say where `script` stands for every node's Python; node 1 is ready in a file beside it."""
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *end_agent*) exit;; esac\n{script}\n', encoding="utf-8")
    python.chmod(0o755)
    (folder / "python3.ready").write_bytes(encode(healthy_answers(PLAN)[1]))
    monkeypatch.setenv("HOME", str(folder))
    plan = with_access(PLAN, Access(transport="local", python=str(python), activate=activate))
    attempt = Attempt(RUN)
    nodes = RunningNodes(prepare(plan, attempt, UserVariables({}, {})), detached=False)
    preflight = start(nodes, plan, attempt, None, frozenset(), lambda host, state: None)  # noqa: ARG005
    stop(nodes)
    return preflight


def test_each_node_that_fails_gives_its_reason_though_the_first_is_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = 'case "$PWD" in */0-1) cat "$0.ready"; read -r stopped; exit;; esac'
    preflight = started(tmp_path, monkeypatch, f'{ready}\necho "bad luck in ${{PWD##*/}}" >&2; exit 3')
    seen = {fault.host: fault.evidence for fault in preflight.faults}
    assert seen.keys() == {HOSTS[0], *HOSTS[2:]}
    for number, host in enumerate(HOSTS):
        assert host == HOSTS[1] or seen[host].endswith(f"(exit code 3): bad luck in 0-{number}")


@pytest.mark.parametrize(
    "script",
    [
        "echo first >&2; echo 'sudo: a password is required' >&2; exit 1",
        "echo 'sudo: a password is required'; exit 1",
        "echo 'sudo: a password is required' >&2; echo >&2; echo \"See 'docker run --help'.\" >&2; exit 125",
    ],
    ids=["stderr", "stdout", "a hint after it"],
)
def test_wrapper_that_fails_is_shown_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    faults = started(tmp_path, monkeypatch, script).faults
    assert [fault.host for fault in faults] == HOSTS
    assert all("sudo: a password is required" in fault.evidence for fault in faults)


def test_activation_that_fails_is_named_with_the_shells_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activate = "source /opt/no-such-conda/bin/activate train"
    faults = started(tmp_path, monkeypatch, "exit 0", activate).faults
    assert [fault.host for fault in faults] == HOSTS
    for fault in faults:
        assert f"after `{activate}` could not start the node agent" in fault.evidence
        assert "/opt/no-such-conda/bin/activate: No such file or directory" in fault.evidence
        assert remedy_of(fault) == PREPARED
