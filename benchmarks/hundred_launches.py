"""A hundred launches in a row on one bed, each ended in another way than the one before; nothing may be left by any."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figure import print_figure
from tests.testbed.launch_ends import end_so, endings_here, small_disk
from tests.testbed.rehearsal import bed_site

LAUNCHES = 100


def main(launches: int = LAUNCHES) -> int:
    """How many of them were not as they should be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job; launches inherit it
    faults = 0
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "small") as disk, bed_site(Path(name)) as site:
        inventory = site.folder / "inventory.json"
        subprocess.run(
            site.command("probe", str(site.hosts_yaml), "-o", str(inventory)), check=True, capture_output=True
        )
        for number, ending in zip(range(launches), itertools.cycle(endings_here()), strict=False):
            folder = site.folder / f"launch-{number}"
            folder.mkdir()
            wrong = end_so(site, ending, folder, inventory, disk)
            faults += bool(wrong)
            print(f"{number + 1}/{launches} {ending.name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
    print_figure("hundred_launches.faults", faults, "launches")
    return faults


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else LAUNCHES)))
