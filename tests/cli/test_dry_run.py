"""What `--dry-run` prints is what a launch sends: files byte for byte, commands word for word, and variables."""

from __future__ import annotations

import re
import shutil
import signal

import pytest

from launcher.prepare.bundle import Parcel
from tests.cli.test_lost_host import launched, planned, wait_for
from tests.cli.test_three_commands import OWN_MODEL, holmes
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rank_processes import rank_pids
from tests.testbed.rehearsal import Site, only_run

pytestmark = NEEDS_BED

# bash reads this file whenever sshd has it run a command.
REMEMBER_COMMANDS = "printf '%s\\0' \"$BASH_EXECUTION_STRING\" >> ~/commands-seen\n"
SECRET = "s3cr3t-word"


@pytest.fixture(scope="module")
def listing(site: Site, bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The dry run of a plan that was then launched for some steps. What arrived lies in each host's `arrived`."""
    folder = tmp_path_factory.mktemp("job")
    shutil.copy(OWN_MODEL, folder)
    (folder / "token").write_text(SECRET, encoding="utf-8")
    shape = {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32, "factory": "own_model.py:build"}
    launch = {"environment": {"MINE": "it's $(mine)"}, "secrets": {"TOKEN": str(folder / "token")}}
    plan = planned(site, folder, model=shape, launch=launch, steps=100000, checkpoint=None)
    dry_run = holmes(site, "launch", str(plan), "--dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    for host in bed.hosts:
        (host.home / ".bashrc").write_text(REMEMBER_COMMANDS, encoding="utf-8")
    process = launched(site, folder / "runs", plan)
    try:
        wait_for(process, "step 3/")
        for host in bed.hosts:
            (sent,) = (host.home / ".cache/holmes/runs").glob("*/*")
            shutil.copytree(sent, host.home / "arrived", ignore=shutil.ignore_patterns("commands", "tmp"))
            (rank,) = rank_pids(bed, host.name)
            shutil.copy(f"/proc/{rank}/environ", host.home / "environ")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
    return dry_run.stdout.replace("dry-run", only_run(folder / "runs").name)


def of_node(listing: str, host: str) -> str:
    """What the listing says of one node alone."""
    return next(part for part in listing.split("\n== node ")[1:] if part.splitlines()[0].endswith(f"/{host}"))


def test_files_arrive_as_they_are_shown(listing: str, bed: Bed) -> None:
    common = listing.split("\n== node ")[0]
    (names,) = re.findall(r"^-- of the runtime: (.*)$", common, re.MULTILINE)
    for host in bed.hosts:
        text = common + of_node(listing, host.name)
        shown = re.findall(r"^-- (\S+)$", text, re.MULTILINE)
        assert {"plan.json", "run_config.json", "own_model.py", "node.json", "secret-TOKEN"} < set(shown)
        for name in shown:
            arrived = (host.home / "arrived" / name).read_text(encoding="utf-8")
            assert f"-- {name}\n" + ("(not shown)\n" if name == "secret-TOKEN" else arrived) in text
        runtime = {name: (host.home / "arrived" / name).read_text(encoding="utf-8") for name in names.split(", ")}
        assert f"== parcel {Parcel(runtime).digest}: {len(runtime)} files" in common
    assert SECRET not in listing


def test_commands_run_as_they_are_shown(listing: str, bed: Bed) -> None:
    common = listing.split("\n== node ")[0]
    for host in bed.hosts:
        shown = re.findall(r"^\$ (.*?)(?:    \(.*\))?$", common + of_node(listing, host.name), re.MULTILINE)
        run = (host.home / "commands-seen").read_text(encoding="utf-8").split("\0")[:-1]
        assert sorted(run) == sorted(shown)
        assert len(run) == 5


def test_variables_reach_the_ranks_as_they_are_shown(listing: str, bed: Bed) -> None:
    for host in bed.hosts:
        section = of_node(listing, host.name)
        shown = dict(re.findall(r"^([A-Z_]+)=(.*?)    # (?!launch\.)", section, re.MULTILINE))
        environ = (host.home / "environ").read_text(encoding="utf-8").split("\0")
        found = dict(line.split("=", 1) for line in environ if line)
        assert {name: found.get(name) for name in shown} == shown
        assert "GLOO_SOCKET_IFNAME" in shown
        assert (found["MINE"], found["TOKEN"]) == ("it's $(mine)", SECRET)
        assert "\nMINE=it's $(mine)\n" in section
