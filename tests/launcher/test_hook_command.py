"""The user's command is told of the end and of verdicts by JSON, and neither delays a run nor outlives its time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from holmes_core.records.access import LaunchSettings
from launcher.prepare.trusted_parts import brought_by_plan
from launcher.supervise.hook_command import LOG_FILE, HookCommand, cannot_run
from tests.eventually import eventually
from tests.launcher.plans import cpu_plan

KEEP = "import sys; open('heard', 'a').write(sys.stdin.read())"


def test_a_program_is_named_or_its_whole_path_given() -> None:
    assert LaunchSettings(on_end=("curl", "@-")).on_end == ("curl", "@-")
    for word in ("./mine", "", "a/b"):
        with pytest.raises(ValidationError, match="is neither a program's name nor an absolute path"):
            LaunchSettings(on_verdict=(word,))
    assert cannot_run(("no-such-program-here",)) == "no-such-program-here: no such program on this machine"
    assert cannot_run((sys.executable, "-c", "pass")) is None


def test_what_a_foreign_plan_would_run_here_is_shown_before() -> None:
    plan = cpu_plan(launch={"on_end": ["curl", "-d", "@-; rm x"], "on_verdict": ["true"]})
    shown = {(each.what, each.value, each.where) for each in brought_by_plan(plan)}
    assert ("command at the end", "curl -d '@-; rm x'", ("this machine",)) in shown
    assert ("command for what is slow", "true", ("this machine",)) in shown


@pytest.mark.process
def test_the_command_hears_json_in_the_run_s_folder_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    command = HookCommand((sys.executable, "-c", KEEP, "; touch shell", "$(touch shell)"), tmp_path)
    command.tell({"event": "end", "state": "döne"})
    heard = tmp_path / "heard"
    assert eventually(lambda: heard.exists() and heard.read_text(encoding="utf-8").endswith("\n"))
    assert json.loads(heard.read_text(encoding="utf-8")) == {"event": "end", "state": "döne"}
    assert not (tmp_path / "shell").exists()
    assert (tmp_path / LOG_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.process
def test_one_that_does_not_end_is_ended_with_its_children_and_holds_up_nobody(tmp_path: Path) -> None:
    hang = f"echo $$ > pid; echo said; {sys.executable} -c 'import time; time.sleep(600)' & sleep 600"
    command = HookCommand(("sh", "-c", hang), tmp_path, limit_s=2.0)
    command.tell({"event": "verdict"})
    command.tell({"event": "verdict"})  # while the first still runs
    log = tmp_path / LOG_FILE
    assert eventually(lambda: "sh: ended after 2 s" in log.read_text(encoding="utf-8"))
    group = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert eventually(lambda: not _group_lives(group))
    assert log.read_text(encoding="utf-8").count("said") == 1


@pytest.mark.process
def test_one_that_cannot_be_started_says_so_in_its_log(tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("not a program", encoding="utf-8")
    program.chmod(0o700)
    HookCommand((str(program),), tmp_path).tell({})
    log = tmp_path / LOG_FILE
    assert eventually(lambda: "mine: Exec format error" in log.read_text(encoding="utf-8"))


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
