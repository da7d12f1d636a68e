"""Seconds from `holmes launch` to the first step by steps of a Slurm job over those by SSH, alternating on one bed.

Slurm's daemons are real, the hosts network namespaces of this machine. Needs root and Slurm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks.figure import print_figure
from tests.testbed.rehearsal import Site, bed_site, standard_library_corpus
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

ROUNDS = 5
JOB = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
    "global_batch_size": 8,
    "steps": 3,
    "device": "cpu",
    "compute": {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}},
    "parallel": {"pp": 2, "dp": 2},
}


def main() -> None:
    """Plan once for each way, then launch in turns."""
    if missing_for_slurm():
        raise SystemExit(f"not installed: {', '.join(missing_for_slurm())}")
    seconds: dict[str, list[float]] = {"ssh": [], "slurm": []}
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name)) as site:
        assert site.bed is not None
        with SlurmOnBed(site.bed) as slurm:
            ways = {"ssh": dict(os.environ), "slurm": slurm.allocate()}
            for way, environ in ways.items():
                prepare(site, site.folder / way, way, environ)
            for _ in range(ROUNDS):
                for way, environ in ways.items():
                    seconds[way].append(first_step_s(site, site.folder / way, environ))
                    print(f"{way}: first step after {seconds[way][-1]:.2f} s", flush=True)
    by_slurm, by_ssh = (statistics.median(seconds[way]) for way in ("slurm", "ssh"))
    print_figure("emit.slurm_over_ssh", by_slurm / by_ssh, "x")


def prepare(site: Site, folder: Path, way: str, environ: Mapping[str, str]) -> None:
    """Inventory and plan of the hosts reached that way."""
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "data": standard_library_corpus()}), encoding="utf-8")
    hosts = ["--allocation"] if way == "slurm" else [str(site.hosts_yaml)]
    for arguments in (("probe", *hosts), ("plan", "job.yaml")):
        done = subprocess.run(
            site.command(*arguments), cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)


def first_step_s(site: Site, folder: Path, environ: Mapping[str, str]) -> float:
    """Launch the folder's plan; the seconds until its first step is told."""
    started_s, found_s = time.monotonic(), None
    with subprocess.Popen(
        site.command("launch", "plan.json", "--json"), cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as launch:
        assert launch.stdout is not None
        for line in launch.stdout:
            if found_s is None and line.startswith('{"event": "step"'):
                found_s = time.monotonic() - started_s
    if launch.returncode != 0 or found_s is None:
        raise SystemExit(f"the launch ended with {launch.returncode}")
    return found_s


if __name__ == "__main__":
    main()
