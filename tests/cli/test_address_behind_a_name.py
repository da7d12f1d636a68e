"""`CheckHostIP yes`: Holmes believes whom `ssh` believes where another key is known of the address a name leads to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED

pytestmark = NEEDS_BED

FROM, TO = "a2", "a1"  # hosts know one another by name, and their addresses are not loopback, of which ssh checks none
OTHER_AT_ADDRESS = "to which it leads, "
LOG_IN = """
import sys
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
connect(sys.argv[1], Access(ssh_config=sys.argv[2])).close()
"""


@dataclass(frozen=True)
class Cell:
    """What is known, in whose text `{ip}` and `{key}` stand for the host's own, and `{other}` for another key."""

    name: str
    known: str
    accepted: bool
    name_of_host: str = TO
    more: str = "CheckHostIP yes"


CELLS = (
    Cell("nothing of the address", "a1 {key}", True),
    Cell("the same", "a1 {key}\n{ip} {key}", True),
    Cell("another", "a1 {key}\n{ip} {other}", False),
    Cell("another beside it", "a1 {key}\n{ip} {other}\n{ip} {key}", True),
    Cell("another that is revoked", "a1 {key}\n@revoked {ip} {other}", True),
    Cell("another, not asked for", "a1 {key}\n{ip} {other}", True, more="CheckHostIP no"),
    Cell("another, by default", "a1 {key}\n{ip} {other}", True, more=""),
    Cell("the address is the name", "{ip} {key}", True, name_of_host="10.9.0.1"),
    Cell("another, alias", "compute {key}\n{ip} {other}", False, more="CheckHostIP yes\nHostKeyAlias compute"),
    Cell("another, pattern", "a1 {key}\n10.9.* {other}", False),
    Cell("another, by a jump", "*,!{ip} {key}\n{ip} {other}", True, more="CheckHostIP yes\nProxyJump b1"),
)


def public_key(bed: Bed, host: str) -> str:
    return " ".join((bed.folder / host / "host_key.pub").read_text(encoding="utf-8").split()[:2])


def on_bed(bed: Bed, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bed.on_host_command(FROM, command), input="", capture_output=True, text=True, timeout=600, check=False
    )


def written(bed: Bed, folder: Path, cell: Cell) -> tuple[Path, Sequence[str]]:
    """The cell's SSH configuration, and the first words of `ssh` with it."""
    words = {"ip": "10.9.0.1", "key": public_key(bed, TO), "other": public_key(bed, "b1")}
    known, config = folder / "known_hosts", folder / "ssh_config"
    jump = f"b1,10.9.0.3 {words['other']}\n"
    known.write_text(cell.known.format(**words) + "\n" + jump * ("ProxyJump" in cell.more), encoding="utf-8")
    config.write_text(
        f"Host {TO}\nHostName {cell.name_of_host}\n{cell.more}\n"
        f"Host *\nUser root\nIdentityFile {bed.folder}/client_key\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {known}\nGlobalKnownHostsFile none\n",
        encoding="utf-8",
    )
    return config, ("ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_holmes_believes_whom_ssh_believes(bed: Bed, tmp_path: Path, cell: Cell) -> None:
    config, ssh = written(bed, tmp_path, cell)
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(yaml.safe_dump({"ssh_config": str(config), "hosts": [TO]}), encoding="utf-8")

    by_ssh = on_bed(bed, *ssh, TO, "true")
    asked = on_bed(bed, sys.executable, "-m", "holmes_cli", "trust", str(hosts))
    logged_in = on_bed(bed, sys.executable, "-c", LOG_IN, TO, str(config))

    assert (by_ssh.returncode == 0) is cell.accepted, by_ssh.stderr
    for done in (asked, logged_in):
        said = done.stdout + done.stderr
        assert (done.returncode == 0) is cell.accepted, said
        assert (OTHER_AT_ADDRESS in said) is not cell.accepted
