"""A hundred launches on one bed, ended in every way by turns; nothing may be left by any.

`--via slurm`: each inside a job of its own on a Slurm of the bed, with Slurm's own ways to end among them.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.figure import print_figure
from tests.testbed.launch_ends import Ending, Way, end_so, endings_here, small_disk
from tests.testbed.rehearsal import Site, bed_site
from tests.testbed.slurm_ends import inside_job, probed_by_ssh, slurm_endings_here
from tests.testbed.slurm_on_bed import SlurmOnBed

LAUNCHES = 100
SEED = 1


def main(launches: int, via: str) -> int:
    """How many of them were not as they should be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job; launches inherit it
    counts, faults = Counter[str](), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(Path(name) / "small") as disk,
        bed_site(Path(name)) as site,
        slurm_of(site, via) as slurm,
    ):
        inventory = probed(site) if slurm is None else probed_by_ssh(site, slurm)
        for number, ending in enumerate(by_turns(endings_here() if slurm is None else slurm_endings_here(), launches)):
            folder = site.folder / f"launch-{number}"
            folder.mkdir()
            with way_of(site, slurm) as way:
                wrong = end_so(way, ending, folder, inventory, disk)
            counts[ending.name] += 1
            faults[ending.name] += bool(wrong)
            print(f"{number + 1}/{launches} {ending.name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
    for way_to_end, count in sorted(counts.items()):
        print(f"{way_to_end}: {count - faults[way_to_end]} of {count} as they should be")
    print_figure(f"hundred_launches.{'' if via == 'ssh' else 'slurm_'}faults", faults.total(), "launches")
    return faults.total()


def by_turns(endings: Sequence[Ending], launches: int) -> Iterator[Ending]:
    """Every ending equally often, as far as that goes, in an order that is always the same and never repeats itself."""
    dice = random.Random(SEED)
    for start in range(0, launches, len(endings)):
        yield from dice.sample(endings, len(endings))[: launches - start]


def probed(site: Site, name: str = "inventory.json") -> Path:
    """The inventory of the site's hosts."""
    path = site.folder / name
    subprocess.run(site.command("probe", str(site.hosts_yaml), "-o", str(path)), check=True, capture_output=True)
    return path


def slurm_of(site: Site, via: str) -> AbstractContextManager[SlurmOnBed | None]:
    """Slurm on the site's hosts, where launches go by it."""
    assert site.bed is not None
    return SlurmOnBed(site.bed) if via == "slurm" else contextlib.nullcontext()


def way_of(site: Site, slurm: SlurmOnBed | None) -> AbstractContextManager[Way]:
    """The way of one launch."""
    return contextlib.nullcontext(Way(site)) if slurm is None else inside_job(site, slurm)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("launches", nargs="?", type=int, default=LAUNCHES)
    parser.add_argument("--via", choices=("ssh", "slurm"), default="ssh")
    asked = parser.parse_args()
    sys.exit(bool(main(asked.launches, asked.via)))
