"""The test bed where there is no sshd, or no root: the same hosts and networks, with an SSH server of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.test_layers import ROOT
from tests.testbed.bed import Bed, missing_for_bed
from tests.testbed.bed_process import bed_environment
from tests.testbed.bed_ssh import make_key
from tests.testbed.demo import AS_ROOT, ENTER

pytestmark = pytest.mark.cluster

# Runs commands on the host that is named, as Holmes does, and prints what came of each.
ASK = """
import json, sys
from pathlib import Path
from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.remote.connect import connect
file = read_hosts_file(Path(sys.argv[1]))
host = connect("b1", file.access(file.hosts[0]))
done = host.run("cat; hostname; command -v ibstat; echo wrong >&2; exit 3", b"told ", 20.0)
stream = host.open("exec cat")
stream.send(b"one\\n")
first = next(iter(stream.lines()))
stream.close_input()
print(json.dumps([done.exit_code, done.stdout.decode(), done.stderr.decode(), first, stream.wait()[0]]))
"""
BED = f"""
import subprocess, sys
from tests.testbed.bed import Bed
with Bed(with_sshd=False) as bed:
    done = subprocess.run(bed.controller_command([sys.executable, "-c", {ASK!r}, str(bed.hosts_yaml)]))
    print(bed.folder, done.returncode)
"""


@pytest.fixture(autouse=True)
def able_machine() -> None:
    if missing := missing_for_bed(with_sshd=False):
        pytest.skip(f"no test bed here, missing: {', '.join(missing)}")


def holds(printed: str) -> None:
    """What came of the commands is what sshd would have given, and nothing of the bed is left."""
    answer, end = printed.splitlines()
    folder, code = end.split()
    expected = [3, f"told b1\n{folder}/b1/bin/ibstat\n", "wrong\n", "one\n", 0]
    assert json.loads(answer.replace('"one"', '"one\\n"')) == expected
    assert code == "0"


def test_hosts_without_sshd_run_commands_over_ssh() -> None:
    done = subprocess.run([sys.executable, "-c", BED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    holds(done.stdout)


def test_hosts_of_one_who_is_not_root_run_commands_over_ssh() -> None:
    nobody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    asked = "from tests.testbed.bed import missing_for_bed as m; print(*m(), '|', *m(None, False, True))"
    said = subprocess.run([*nobody, sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    without, _, inside = said.stdout.partition("|")
    assert "root" in without
    if inside.strip():
        pytest.skip(f"no user namespaces here: {inside}")
    command = [*nobody, *AS_ROOT, "sh", "-c", ENTER, "sh", sys.executable, "-c", BED]
    done = subprocess.run(command, cwd=ROOT, env=bed_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    holds(done.stdout)


def test_another_key_is_not_let_in() -> None:
    with Bed(with_sshd=False) as bed:
        shutil.copy(bed.folder / "client_key", bed.folder / "kept")
        make_key(bed.folder / "client_key")
        command = bed.controller_command([sys.executable, "-c", ASK, str(bed.hosts_yaml)])
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "refused login" in refused.stderr or "Authentication" in refused.stderr
        shutil.copy(bed.folder / "kept", bed.folder / "client_key")
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
