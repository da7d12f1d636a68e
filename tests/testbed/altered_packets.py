"""Trainings between whose clusters a relay flips bits of packets, and what became of them.

`python -m tests.testbed.altered_packets FOLDER TIMES [EVERY]` starts that many on a bed, by turns with replicas and
with stages in two clusters, flips a bit of every EVERYth large packet (40) from some step on, and prints a line of JSON
for each: what ended it, after how many more steps, and which steps were taken with another loss than without flips.
With an EVERY of 0 it flips none.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from launcher.journal.run_folder import read_run
from launcher.supervise.failure import first_cause
from tests.builders.bed_runs import launched, losses_from, plan_that_saves
from tests.testbed.rehearsal import Site, bed_site, only_run, said_until

CUTS: dict[str, dict[str, Any]] = {"replicas": {"pp": 1, "dp": 4}, "stages": {"pp": 4, "dp": 1}}
STEPS = 60
LIMIT_S = 300.0


class Altered(NamedTuple):
    """How a launch ended: after `taken` more steps than were known when flips began, its last a whole checkpoint at
    `safe_steps`; `wrong_losses` are the steps whose loss is not that of the same run without flips."""

    cut: str
    exit_code: int
    began_after: int
    taken: int
    wrong_losses: list[int]
    safe_steps: int | None
    message: str
    likely: str | None


def plan_across(site: Site, folder: Path, cut: str) -> Path:
    """A plan whose replicas, or whose stages, are in both clusters."""
    folder.mkdir(parents=True)
    parallel = {**CUTS[cut], "micro_batch_size": 1}
    return plan_that_saves(
        site,
        folder,
        steps=STEPS,
        parallel=parallel,
        checkpoint={"path": str(folder / "saved"), "every_steps": 5, "keep_last": 20},
    )


def altered(site: Site, plan: Path, cut: str, folder: Path, expected: dict[int, float], every: int) -> Altered:
    """A launch of `plan` in which a bit of every so manieth packet is flipped from a random step on."""
    assert site.bed is not None
    began_after = random.randint(2, 20)
    process = launched(site, folder, plan, "--force", "plan-current")
    try:
        said_until(process, f"step {began_after}/")
        site.bed.set_trunk(flip_every=every)
        said = process.communicate(timeout=LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        said = "it hangs"
    finally:
        process.kill()
        process.wait()
        site.bed.set_trunk(flip_every=0)
    run, found = read_run(only_run(folder)), losses_from(only_run(folder), 0)
    cause = first_cause(run.failures) if run.failures else None
    return Altered(
        cut,
        process.returncode,
        began_after,
        len(found) - began_after,
        [step for step, loss in found.items() if loss != expected[step]],
        run.safe_steps,
        cause.message if cause else said[-300:] if process.returncode else "",
        cause.likely if cause else None,
    )


def clean_losses(site: Site, plan: Path, folder: Path) -> dict[int, float]:
    """The losses of the plan without flips. Raises AssertionError where it does not end well."""
    process = launched(site, folder, plan)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 0, said
    return losses_from(only_run(folder), 0)


def main() -> None:
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    with bed_site(folder, slow_mbps=1000, trunk_mbps=500) as site:
        plans = {cut: plan_across(site, folder / cut, cut) for cut in CUTS}
        expected = {cut: clean_losses(site, plan, folder / cut / "clean") for cut, plan in plans.items()}
        for number in range(times):
            cut = list(CUTS)[number % len(CUTS)]
            for saved in (folder / cut).glob("saved"):
                saved.rename(folder / cut / f"saved-before-{number}")
            runs = folder / cut / f"runs-{number}"
            print(json.dumps(altered(site, plans[cut], cut, runs, expected[cut], every)._asdict()), flush=True)


if __name__ == "__main__":
    main()
