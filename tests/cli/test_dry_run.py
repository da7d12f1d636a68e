"""What `--dry-run --json` prints is what a launch sends: files byte for byte, commands word for word, variables."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import pytest

from tests.builders.bed_runs import launched, plan_that_saves
from tests.cli.test_three_commands import OWN_MODEL, holmes
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rank_processes import rank_pids
from tests.testbed.rehearsal import Site, only_run, said_until

pytestmark = NEEDS_BED

# bash reads this file whenever sshd has it run a command.
REMEMBER_COMMANDS = "printf '%s\\0' \"$BASH_EXECUTION_STRING\" >> ~/commands-seen\n"
SECRET = "s3cr3t-word"


Listing = list[dict[str, Any]]
"""What the dry run prints: the parcels, then the nodes."""


@pytest.fixture(scope="module")
def listing(site: Site, bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Listing:
    """The dry run of a plan that was then launched for some steps. What arrived lies in each host's `arrived`."""
    folder = tmp_path_factory.mktemp("job")
    shutil.copy(OWN_MODEL, folder)
    (folder / "token").write_text(SECRET, encoding="utf-8")
    shape = {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32, "factory": "own_model.py:build"}
    launch = {"environment": {"MINE": "it's $(mine)"}, "secrets": {"TOKEN": str(folder / "token")}}
    on_all_hosts = {"pp": 2, "dp": 2}
    plan = plan_that_saves(
        site, folder, model=shape, launch=launch, steps=100000, checkpoint=None, parallel=on_all_hosts
    )
    dry_run = holmes(site, "launch", str(plan), "--dry-run", "--json")
    assert dry_run.returncode == 0, dry_run.stderr
    assert SECRET not in dry_run.stdout
    for host in bed.hosts:
        (host.home / ".bashrc").write_text(REMEMBER_COMMANDS, encoding="utf-8")
    process = launched(site, folder / "runs", plan)
    try:
        said_until(process, "step 3/")
        for host in bed.hosts:
            (sent,) = (host.home / ".cache/holmes/runs").glob("*/*")
            shutil.copytree(sent, host.home / "arrived", ignore=shutil.ignore_patterns("commands", "tmp", "waking"))
            (rank,) = rank_pids(bed, host.name)
            shutil.copy(f"/proc/{rank}/environ", host.home / "environ")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
    text = dry_run.stdout.replace("dry-run", only_run(folder / "runs").name)
    return [json.loads(line) for line in text.splitlines()]


def of_node(listing: Listing, host: str) -> Listing:
    """The parcels, which all nodes have, and the node."""
    return [line for line in listing if line.get("node") in (None, host)]


def test_files_arrive_as_they_are_shown(listing: Listing, bed: Bed) -> None:
    for host in bed.hosts:
        shown = {name: text for line in of_node(listing, host.name) for name, text in line["files"].items()}
        assert {"plan.json", "run_config.json", "own_model.py", "node.json", "secret-TOKEN"} < set(shown)
        assert shown.pop("secret-TOKEN") is None
        arrived = {name: (host.home / "arrived" / name).read_text(encoding="utf-8") for name in shown}
        assert arrived == shown


def test_commands_run_as_they_are_shown(listing: Listing, bed: Bed) -> None:
    for host in bed.hosts:
        shown = [command for line in of_node(listing, host.name) for command in line["commands"]]
        run = (host.home / "commands-seen").read_text(encoding="utf-8").split("\0")[:-1]
        assert sorted(run) == sorted(shown)
        assert len(run) == 5


def test_variables_reach_the_ranks_as_they_are_shown(listing: Listing, bed: Bed) -> None:
    for host in bed.hosts:
        *_, node = of_node(listing, host.name)
        environ = (host.home / "environ").read_text(encoding="utf-8").split("\0")
        found = dict(line.split("=", 1) for line in environ if line)
        assert {name: found.get(name) for name in node["environment"]} == node["environment"]
        assert "GLOO_SOCKET_IFNAME" in node["environment"]
        assert (found["MINE"], found["TOKEN"]) == ("it's $(mine)", SECRET)
        (env_file,) = [text for name, text in node["files"].items() if name.endswith(".env")]
        assert "MINE=it's $(mine)\n" in env_file
