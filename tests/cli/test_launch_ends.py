"""However a launch ends: the exit code and the first message are right, and nothing is left on any host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seeds import all_but
from tests.testbed.launch_ends import Ending, Way, end_so, endings_here, saving, small_disk
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.own_disks import hosts_that_remember
from tests.testbed.rehearsal import Site, bed_site, only_run

pytestmark = NEEDS_BED


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("disk") / "small") as folder:
        yield folder


@pytest.fixture(scope="module")
def site(full_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:  # noqa: ARG001
    with bed_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def inventory(site: Site) -> Path:
    path = site.folder / "inventory.json"
    subprocess.run(site.command("probe", str(site.hosts_yaml), "-o", str(path)), check=True, capture_output=True)
    return path


# These runs save after every step, the others nothing.
SAVING = (
    "Ctrl-C",
    "holmes stop",
    "rank killed",
    "controller killed",
    "controller killed, then a rank",
    "interface down",
)
# Other tests of the bed have runs that end well and leave nothing, agents that send no word ("interface down"),
# scripts that raise, and `holmes stop` (test_goes_on.py); those of training have full disks.
COVERED = ("normal end", "Ctrl-C twice", "agent stopped", "disk full", "exception in user code")


@pytest.mark.parametrize("ending", all_but(COVERED, [ending for ending in endings_here() if ending.name not in SAVING]))
def test_nothing_is_left_and_the_first_message_is_right(
    site: Site, inventory: Path, full_disk: Path, tmp_path: Path, ending: Ending
) -> None:
    assert end_so(Way(site), ending, tmp_path, inventory, full_disk) == []


@pytest.mark.parametrize(
    "ending", all_but(["holmes stop", "controller killed"], [each for each in endings_here() if each.name in SAVING])
)
def test_nothing_is_left_where_checkpoints_are_saved_in_the_memory_of_hosts_either(
    site: Site, inventory: Path, full_disk: Path, tmp_path: Path, ending: Ending
) -> None:
    assert site.bed is not None
    remembering: list[str] = []
    assert end_so(Way(site), saving(ending, tmp_path, remembering), tmp_path, inventory, full_disk) == []
    assert remembering
    assert hosts_that_remember(site.bed, only_run(tmp_path / "runs").name) == []
