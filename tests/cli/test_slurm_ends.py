"""However a launch inside a Slurm job ends by Slurm's doing: exit code and first message are right, nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seeds import all_but
from tests.testbed.launch_ends import Ending, end_so, saving
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.own_disks import hosts_that_remember
from tests.testbed.rehearsal import Site, only_run
from tests.testbed.slurm_ends import OWN_ENDINGS, inside_job, probed_by_ssh
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

MISSING = ", ".join(missing_for_slurm())
pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here: {MISSING}")]

# A cancelled job stands for these, whose states Slurm names otherwise; a node that is missed is down.
COVERED = ("slurmd killed", "job preempted", "time over", "step cancelled", "node down")


@pytest.fixture(scope="module")
def slurm(site: Site) -> Iterator[SlurmOnBed]:
    assert site.bed is not None
    with SlurmOnBed(site.bed) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def inventory(site: Site, slurm: SlurmOnBed) -> Path:
    return probed_by_ssh(site, slurm)


@pytest.mark.parametrize("ending", all_but(COVERED, OWN_ENDINGS))
def test_nothing_is_left_and_slurm_is_named_where_it_is_the_cause(
    site: Site, slurm: SlurmOnBed, inventory: Path, tmp_path: Path, ending: Ending
) -> None:
    assert site.bed is not None
    remembering: list[str] = []
    saves = ending.name == "job cancelled"
    ending = saving(ending, tmp_path, remembering) if saves else ending
    with inside_job(site, slurm) as way:
        assert end_so(way, ending, tmp_path, inventory, tmp_path) == []
    assert bool(remembering) is saves
    assert hosts_that_remember(site.bed, only_run(tmp_path / "runs").name) == []
