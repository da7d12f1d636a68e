"""`holmes doctor --slurm` on a real Slurm: a task of an array, and a heterogeneous job whole and by component."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

pytestmark = [
    *NEEDS_BED,
    pytest.mark.skipif(bool(missing_for_slurm()), reason=f"needs {missing_for_slurm()}"),
]
ROOT = Path(__file__).parents[2]
RANK = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec sleep 3600"
HETEROGENEOUS = f"""#!/bin/sh
#SBATCH --nodes=1 --ntasks=1
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks=1
exec srun --het-group=0,1 sh -c '{RANK}'
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmOnBed]:
    with Bed() as bed, SlurmOnBed(bed) as slurm:
        yield slurm


def submitted(slurm: SlurmOnBed, text: str, *options: str, steps: int) -> str:
    """Submit a job and return its number once its steps run."""
    script = slurm.folder / "job.sh"
    script.write_text(text, encoding="utf-8")
    job = slurm.run("sbatch", "--parsable", "--output=/dev/null", *options, str(script)).strip()
    slurm.wait(lambda: slurm.run("squeue", "--steps", "--noheader", "--format=%i").count(".0") == steps, "steps")
    return job


def ended(slurm: SlurmOnBed) -> None:
    """End all jobs, and return once nodes have reported it: a slurmd that cannot report ends late."""
    slurm.release()
    slurm.wait(lambda: not slurm.run("squeue", "--noheader").strip(), "jobs")


def watched(slurm: SlurmOnBed, job: str) -> dict[int, str]:
    """The hosts of the ranks that the doctor sees."""
    words = [sys.executable, "-m", "holmes_cli", "doctor", "--slurm", job, "--seconds", "2", "--json"]
    said = slurm.run("sh", "-c", f"{shlex.join(words)} || :", cwd=ROOT)
    return {rank["number"]: rank["host"] for rank in json.loads(said)["ranks"]}


def test_component_and_whole_of_a_heterogeneous_job_are_watched(slurm: SlurmOnBed) -> None:
    job = submitted(slurm, HETEROGENEOUS, steps=2)
    try:
        every = watched(slurm, job)
        assert sorted(every) == [0, 1]
        assert set(watched(slurm, f"{job}+1").values()) == {every[1]}
    finally:
        ended(slurm)


def test_task_of_an_array_is_watched(slurm: SlurmOnBed) -> None:
    job = submitted(slurm, f"#!/bin/sh\nexec srun sh -c '{RANK}'\n", "--array=4-5", "--ntasks=1", steps=2)
    try:
        assert list(watched(slurm, f"{job}_4")) == [0]
    finally:
        ended(slurm)
