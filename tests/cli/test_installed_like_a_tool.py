"""What every tool of a shell has: a version, -h, completion, files to start from, variables for the usual."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_cli import VERSION
from holmes_cli.app import COMMANDS, HIDDEN, asked_command
from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.records.job import Job
from holmes_core.records.record_file import read_user_file
from tests.builders.local_runs import write_inputs
from tests.cli.conftest import Command
from tests.test_layers import ROOT


def test_version_is_printed(command: Command) -> None:
    done = command("--version")
    assert (done.code, done.stdout) == (0, f"holmes {VERSION}\n")


@pytest.mark.parametrize("words", [("-h",), ("plan", "-h")])
def test_h_is_help(command: Command, words: tuple[str, ...]) -> None:
    assert command(*words).stdout == command(*words[:-1], "--help").stdout


def test_the_manual_page_names_every_command_and_option_and_troff_reads_it(command: Command) -> None:
    page = command("--man").stdout
    assert page.startswith('.TH HOLMES 1 "" "holmes 0')
    plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    assert [name for name in COMMANDS if f".SS holmes {name}" not in plain] == sorted(HIDDEN)
    assert "\n--time-limit\n" in plain
    assert "Variable: HOLMES_RUNS." in plain
    if shutil.which("groff") is not None:
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [("holmes pl", "plan"), ("holmes plan --us", "--usual-order"), ("holmes launch --dry", "--dry-run")],
)
def test_shell_completes_commands_and_their_options(
    command: Command, monkeypatch: pytest.MonkeyPatch, line: str, offered: str
) -> None:
    monkeypatch.setenv("_HOLMES_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert command().stdout.split() == [offered]


def test_the_command_asked_for_is_the_first_word() -> None:
    assert asked_command(["holmes", "--help"], {}) is None
    assert asked_command(["holmes", "plan", "job.yaml"], {}) == "plan"
    zsh = {"_HOLMES_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "holmes probe --li"}
    assert asked_command(["holmes"], zsh) == "probe"


def test_init_writes_files_that_are_valid_and_never_over_others(command: Command, tmp_path: Path) -> None:
    done = command("init", "new/site")
    assert done.code == 0
    assert "holmes probe new/site/hosts.yaml" in done.stdout
    assert len(read_hosts_file(tmp_path / "new/site/hosts.yaml").hosts) == 3
    assert read_user_file(Job, tmp_path / "new/site/job.yaml").steps == 1000
    (tmp_path / "job.yaml").write_text("mine", encoding="utf-8")
    refused = command("init")
    assert refused.code == 2
    assert "job.yaml: already there; nothing was written" in refused.stderr
    assert (tmp_path / "job.yaml").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "hosts.yaml").exists()


def test_variables_say_where_the_inventory_and_the_file_for_prometheus_lie(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path)
    monkeypatch.setenv("HOLMES_INVENTORY", str(tmp_path / "site.json"))
    assert command("probe", "hosts.yaml").code == 0
    assert (tmp_path / "site.json").exists()
    assert not (tmp_path / "inventory.json").exists()
    assert command("plan", "job.yaml").code == 0
    monkeypatch.setenv("HOLMES_PROMETHEUS", str(tmp_path / "missing"))
    monkeypatch.setenv("HOLMES_RUNS", str(tmp_path / "elsewhere"))
    refused = command("launch", "plan.json")
    assert refused.code == 2
    assert f"HOLMES_PROMETHEUS: {tmp_path}{os.sep}missing is not a folder" in refused.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_another_probe_that_found_nothing_says_so(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert command("probe", "hosts.yaml").code == 0
    assert (
        "nothing has changed since inventory.json\n"
        in command("probe", "hosts.yaml", "--diff", "inventory.json").stdout
    )


def test_hosts_of_this_machine_use_the_python_that_runs_holmes(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(
        "transport: local\nhosts: [a1, {name: b1, activate: 'true'}]\n", encoding="utf-8"
    )
    file = read_hosts_file(tmp_path / "hosts.yaml")
    assert [file.access(entry).python for entry in file.hosts] == [sys.executable, "python3"]


def test_a_number_that_yaml_takes_for_text_is_said_to_be_one(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    job = (tmp_path / "job.yaml").read_text(encoding="utf-8")
    (tmp_path / "job.yaml").write_text(re.sub("steps: .*", "steps: 1e3", job), encoding="utf-8")
    assert command("probe", "hosts.yaml").code == 0
    done = command("plan", "job.yaml")
    assert done.code == 2
    assert "hint: YAML takes that for text: write 1000\n" in done.stderr


@pytest.mark.parametrize("ignored", [True, False])
def test_hang_up_ends_a_command_but_not_one_under_nohup(command: Command, ignored: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    assert command("--version").code == 0
    assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) is ignored
    assert signal.getsignal(signal.SIGHUP) != signal.SIG_DFL


@pytest.mark.process
def test_output_that_goes_nowhere_ends_in_a_line_or_none(tmp_path: Path) -> None:
    holmes = f"{sys.executable} -m holmes_cli ps"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for words, said in (
        (f"{holmes} > /dev/full", "error: cannot write: No space left on device\n"),
        (f"{holmes} >&-", ""),
        (f"{sys.executable} -m holmes_cli --man | true", ""),
        (f"PYTHONIOENCODING=ascii {sys.executable} -m holmes_cli --help", ""),  # whose boxes ASCII does not have
    ):
        done = subprocess.run(words, shell=True, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr.startswith(said)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
