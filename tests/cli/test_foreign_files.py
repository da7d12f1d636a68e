"""A plan, inventory or run folder of somebody else runs and reads nothing before its user has seen what, and agreed."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holmes_cli.api import plan
from holmes_cli.screen.terminal import neutral, out
from holmes_cli.watch_in_background import watch_in_background
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Host, Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, read_signed, read_user_file, write_atomically, write_signed
from holmes_core.records.run import Controller, Run, Settings
from holmes_core.state_folder import state_folder
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE
from tests.builders.local_runs import environment, probed, write_inputs
from tests.cli.conftest import Command, Done
from tests.seeds import few_of

Planned = Callable[..., Plan]


@pytest.fixture
def planned(command: Command, tmp_path: Path) -> Planned:  # noqa: ARG001
    """Plans on local hosts that are probed once, signed by the user of `command`; `changes` are of the job."""

    def run(**changes: Any) -> Plan:
        write_inputs(tmp_path, **changes)
        inventory = read_file(Inventory, Path(probed().name) / "inventory.json")
        made = plan(inventory, read_user_file(Job, tmp_path / "job.yaml"))
        write_signed(tmp_path / "inventory.json", inventory)
        write_signed(tmp_path / "plan.json", made)
        return made

    return run


def with_shell_line(plan: Plan, line: str) -> Plan:
    nodes = (
        node.model_copy(update={"access": node.access.model_copy(update={"activate": line})}) for node in plan.nodes
    )
    return plan.model_copy(update={"nodes": tuple(nodes)})


def refused(done: Done, folder: Path, canary: Path) -> str:
    assert done.code == 2, done.stderr
    assert "not made here by you" in done.stderr
    assert not canary.exists()
    assert not (folder / "runs").exists()
    return done.stderr


def test_own_plan_is_launched_without_a_question(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    for arguments in (("probe", "hosts.yaml"), ("plan", "job.yaml")):
        done = command(*arguments)
        assert done.code == 0, done.stderr
    assert read_signed(Plan, tmp_path / "plan.json").is_own
    done = command("launch", "plan.json", "--dry-run")
    assert (done.code, done.stderr) == (0, "")


def test_shell_line_of_a_foreign_plan_is_shown_and_not_run(planned: Planned, command: Command, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    mailed = with_shell_line(planned(), f"touch {canary}")
    write_atomically(tmp_path / "mailed.json", mailed.to_json())
    text = refused(command("launch", "mailed.json"), tmp_path, canary)
    assert "shell line" in text
    assert "touch" in text
    assert f"--trust {mailed.digest()}" in text


def test_signature_of_another_content_is_none(planned: Planned, command: Command, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    changed = with_shell_line(planned(), f"touch {canary}")
    signature = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["signature"]
    write_atomically(tmp_path / "plan.json", changed.json_parts(signature))
    refused(command("launch", "plan.json"), tmp_path, canary)


def test_foreign_plan_is_launched_where_its_digest_is_trusted(
    planned: Planned, command: Command, tmp_path: Path
) -> None:
    plan = planned()
    write_atomically(tmp_path / "plan.json", plan.to_json())
    assert command("launch", "plan.json", "--dry-run").code == 2
    assert command("launch", "plan.json", "--dry-run", "--trust", plan.digest()).code == 0
    other = command("launch", "plan.json", "--dry-run", "--trust", "sha256:0")
    assert other.code == 2
    assert plan.digest() in other.stderr


@pytest.mark.parametrize("code", few_of(1, [None, "src"]))
def test_trust_in_a_foreign_plan_ends_where_the_code_beside_it_changes(
    planned: Planned, command: Command, tmp_path: Path, code: str | None
) -> None:
    source = tmp_path / (code or ".") / "mine.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text("def build(layers, job): ...\n", encoding="utf-8")
    model = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "vocab_size": 256,
        "seq_length": 16,
        "factory": "mine.py:build",
    }
    plan = planned(model=model, **({"launch": {"code": code}} if code else {}))
    write_atomically(tmp_path / "plan.json", plan.to_json())

    def launched(digest: str) -> Done:
        return command("launch", "plan.json", "--dry-run", "--trust", digest)

    def asked_for() -> str:
        found = re.search(r"plan\.json is (sha256:\w+)", launched("sha256:0").stderr.replace("\n", ""))
        assert found is not None
        return found[1]

    first = asked_for()
    assert launched(first).code == 0
    assert launched(plan.digest()).code == 2
    source.write_text("def build(layers, job): return 1\n", encoding="utf-8")
    assert launched(first).code == 2
    assert launched(asked_for()).code == 0


def test_secret_of_a_foreign_plan_is_named_and_not_read(planned: Planned, command: Command, tmp_path: Path) -> None:
    pipe = tmp_path / "id_rsa"
    os.mkfifo(pipe)  # who opens it waits for ever
    plan = planned(launch={"secrets": {"KEY": str(pipe)}, "environment": {"LD_PRELOAD": "/tmp/x.so"}})
    write_atomically(tmp_path / "plan.json", plan.to_json())
    text = refused(command("launch", "plan.json"), tmp_path, tmp_path / "none")
    assert "KEY = the text of" in text
    assert "LD_PRELOAD=/tmp/x.so" in text


def test_plan_on_a_foreign_inventory_is_not_signed(planned: Planned, command: Command, tmp_path: Path) -> None:
    """An access of unknown origin would else become this user's own by planning on it."""
    planned()
    inventory = read_file(Inventory, tmp_path / "inventory.json")
    access = inventory.hosts[0].access.model_copy(update={"activate": f"touch {tmp_path / 'canary'}"})
    hosts = tuple(host.model_copy(update={"access": access}) for host in inventory.hosts)
    foreign = inventory.model_copy(update={"hosts": hosts})
    write_atomically(tmp_path / "inventory.json", foreign.to_json())
    done = command("plan", "job.yaml")
    assert done.code == 0
    assert "inventory.json was not made here by you" in done.stderr
    assert "touch" in refused(command("launch", "plan.json"), tmp_path, tmp_path / "canary")


def test_inventory_of_a_replay_is_foreign(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert command("probe", "hosts.yaml", "--record", "recording").code == 0
    assert command("probe", "--replay", "recording", "-o", "replayed.json").code == 0
    live, replayed = (read_signed(Inventory, tmp_path / name) for name in ("inventory.json", "replayed.json"))
    assert live.record.digest() == replayed.record.digest()
    assert (live.is_own, replayed.is_own) == (True, False)
    assert command("probe", "--replay", "recording").code == 0
    assert read_signed(Inventory, tmp_path / "inventory.json").is_own


def with_kernel(inventory: Inventory, release: str) -> Host:
    return inventory.hosts[0].model_copy(update={"kernel": release})


def test_forced_inventory_of_somebody_else_is_shown_too(planned: Planned, command: Command, tmp_path: Path) -> None:
    planned()
    inventory = read_file(Inventory, tmp_path / "inventory.json")
    other = inventory.model_copy(update={"hosts": (with_kernel(inventory, "6.99"), *inventory.hosts[1:])})
    write_atomically(tmp_path / "inventory.json", other.to_json())
    text = refused(command("launch", "plan.json", "--force", "plan-current"), tmp_path, tmp_path / "none")
    assert f"--trust {other.digest()}" in text


def test_key_is_made_once_and_is_this_user_s_alone(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    command("probe", "hosts.yaml")
    key = state_folder() / "key"
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    before = key.read_bytes()
    command("probe", "hosts.yaml")
    assert key.read_bytes() == before
    assert sorted(path.name for path in state_folder().iterdir()) == ["key"]
    key.chmod(0o644)
    done = command("probe", "hosts.yaml")
    assert done.code == 2
    assert "others may use it (mode 0644)" in done.stderr


def test_foreign_run_folder_ends_no_process(planned: Planned, command: Command, tmp_path: Path) -> None:
    plan, folder = planned(), tmp_path / "mailed"
    folder.mkdir()
    with subprocess.Popen(["sleep", "60"]) as bystander:
        controller = Controller(pid=bystander.pid, start_ticks=_start_ticks(bystander.pid))
        run = Run(run_id="1", plan_digest=plan.digest(), state="running", controller=controller, started_at_s=0.0)
        write_atomically(folder / RUN_FILE, run.to_json())
        write_atomically(folder / PLAN_FILE, plan.to_json())
        done = command("stop", "mailed")
        assert (done.code, bystander.poll()) == (2, None)
        assert "not written here by you" in done.stderr
        bystander.kill()
    write_atomically(
        folder / RUN_FILE, run.model_copy(update={"controller": None, "settings": Settings(detached=True)}).to_json()
    )
    for name in ("stop", "attach", "control"):
        assert command(name, "mailed").code == 2
    assert command("status", "mailed", "--json").code == 2


@pytest.mark.process
def test_controller_in_the_background_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at once, as there is no run in its folder; that it got so far shows that it runs our own code."""
    for name in ("launcher", "holmes_cli", "typer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("open('canary', 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HolmesError, match=r"ended: error: .*run\.json: cannot be read"):
        watch_in_background(tmp_path)
    log = tmp_path / "controller.log"
    assert not (tmp_path / "canary").exists()
    assert log.stat().st_mode & 0o077 == 0


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


@pytest.mark.process
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2)])
def test_in_a_terminal_a_foreign_plan_is_asked_about(tmp_path: Path, answer: bytes, code: int) -> None:
    write_inputs(tmp_path)
    holmes, settings = [sys.executable, "-m", "holmes_cli"], environment(tmp_path)
    for arguments in (["probe", "hosts.yaml"], ["plan", "job.yaml"]):
        subprocess.run([*holmes, *arguments], cwd=tmp_path, env=settings, check=True, capture_output=True)
    plan = read_file(Plan, tmp_path / "plan.json")
    write_atomically(tmp_path / "plan.json", plan.to_json())
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [*holmes, "launch", "plan.json", "--dry-run"],
        cwd=tmp_path,
        env=settings,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        check=False,
        timeout=600,
    )
    os.close(theirs)
    assert done.returncode == code
    assert b"Is all of that yours to run?" in os.read(ours, 1 << 20)
    os.close(ours)


@pytest.mark.parametrize("unseen", ["\u200b", "\u3164", "\ufeff", "\u2060", "\u00ad", "\U000e0041", "\u202e"])
def test_letters_that_nobody_sees_are_written_out(unseen: str) -> None:
    assert neutral(f"touch{unseen}x") == f"touch\\x{ord(unseen):02x}x"


def test_letters_of_any_script_and_emoji_stay() -> None:
    text = "Größe 大きさ размер حجم ✔️ 👍"
    assert neutral(text) == text


def test_a_name_between_colons_is_no_picture() -> None:
    with out.capture() as shown:
        out.print("cluster:b: is not known", end="")
    assert shown.get() == "cluster:b: is not known"
