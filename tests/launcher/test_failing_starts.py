"""A node whose agent does not start gives its shell's own words, and hides no other node's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holmes_core.records.access import Access
from holmes_runtime.config.messages import AgentEnded, encode
from launcher.nodes import start as start_module
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Fault, Preflight, remedy_of
from launcher.nodes.start import PREPARED, RunningNodes, start
from launcher.nodes.stop import stop
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, healthy_answers, with_access
from tests.seeds import few_of

PLAN = cpu_plan()
HOSTS = [node.host for node in PLAN.nodes]
RUN = "20260101-000000-abcd"
UNTIL_STOPPED = 'while read -r word && [ -z "$word" ]; do :; done; cat "$0.ended"; exit'
READY = f'case "$PWD" in */0-1) cat "$0.ready"; {UNTIL_STOPPED};; esac'


def started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, activate: str | None = None, first: Access | None = None
) -> Preflight:
    """What the checks say where `script` stands for every node's Python; node 1 is ready in a file beside it.

    `first`: how to reach the first node, where that is another way.
    """
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *end_agent*) exit;; esac\n{script}\n', encoding="utf-8")
    python.chmod(0o755)
    (folder / "python3.ready").write_bytes(encode(healthy_answers(PLAN)[1]))
    (folder / "python3.ended").write_bytes(encode(AgentEnded()))
    monkeypatch.setenv("HOME", str(folder))
    plan = with_access(PLAN, Access(transport="local", python=str(python), activate=activate))
    if first is not None:
        plan = plan.model_copy(update={"nodes": (plan.nodes[0].model_copy(update={"access": first}), *plan.nodes[1:])})
    attempt = Attempt(RUN)
    nodes = RunningNodes(prepare(plan, attempt, UserVariables({}, {})), False, Interrupts())
    preflight = start(nodes, plan, attempt, None, frozenset(), lambda host, state: None)  # noqa: ARG005
    stop(nodes)
    return preflight


def test_each_node_that_fails_gives_its_reason_though_the_first_is_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preflight = started(tmp_path, monkeypatch, f'{READY}\necho "bad luck in ${{PWD##*/}}" >&2; exit 3')
    seen = {fault.host: fault.evidence for fault in preflight.faults}
    assert seen.keys() == {HOSTS[0], *HOSTS[2:]}
    for number, host in enumerate(HOSTS):
        assert host == HOSTS[1] or seen[host].endswith(f"(exit code 3): bad luck in 0-{number}")


def test_first_host_that_is_not_reached_is_named_though_another_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    faults = started(tmp_path, monkeypatch, READY, first=Access(transport="slurm")).faults
    assert [fault.host for fault in faults if "Slurm" in fault.evidence] == [HOSTS[0]]


@pytest.mark.process
def test_first_host_that_is_not_ready_in_time_is_named_though_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_module, "READY_TIMEOUT_S", 5.0)
    faults = started(tmp_path, monkeypatch, f"{READY}\n{UNTIL_STOPPED}").faults
    assert Fault("agent", HOSTS[0], "not ready after 5 s") in faults


@pytest.mark.slow
def test_of_a_host_that_floods_standard_error_the_last_words_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = "yes 'a warning of a library' | head -c 50000000 >&2; echo >&2; echo 'the reason' >&2; exit 7"
    faults = started(tmp_path, monkeypatch, flood).faults
    assert [fault.host for fault in faults] == HOSTS
    assert all(fault.evidence.endswith("| the reason") and "(exit code 7)" in fault.evidence for fault in faults)


def test_of_words_without_an_end_a_message_shows_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = started(tmp_path, monkeypatch, "head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 3").faults
    assert [fault.host for fault in faults] == HOSTS
    assert all(len(fault.evidence) < len(str(tmp_path)) + 500 for fault in faults)


def test_host_that_sends_a_line_without_an_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = started(tmp_path, monkeypatch, f"{READY}\nexec tr '\\0' x </dev/zero").faults
    assert [fault.host for fault in faults] == [HOSTS[0], *HOSTS[2:]]
    assert all("it sent more than 16 MiB without a line break" in fault.evidence for fault in faults)


def test_host_that_answers_the_sending_of_files_without_an_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    tar = tmp_path / "bin" / "tar"
    tar.write_text("#!/bin/sh\nexec cat /dev/zero\n", encoding="utf-8")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
    faults = started(tmp_path, monkeypatch, "exit 0").faults
    assert [fault.host for fault in faults] == HOSTS
    assert all("16 MiB without a line break" in fault.evidence for fault in faults)


@pytest.mark.parametrize(
    "script",
    few_of(
        1,
        [
            "echo first >&2; echo 'sudo: a password is required' >&2; exit 1",
            "echo 'sudo: a password is required'; exit 1",
            "echo 'sudo: a password is required' >&2; echo >&2; echo \"See 'docker run --help'.\" >&2; exit 125",
        ],
    ),
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
