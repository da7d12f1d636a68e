"""Without a shared folder: a host is lost with its disk, and the others go on from what they hold together."""

from __future__ import annotations

from pathlib import Path

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.builders.bed_runs import launched, losses_from, plan_that_saves
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.own_disks import hosts_that_remember, on_host, own_disks
from tests.testbed.rehearsal import Site, only_run, said_until

pytestmark = NEEDS_BED


def test_training_goes_on_from_the_other_hosts_disks(site: Site, tmp_path: Path) -> None:
    assert site.bed is not None
    disks = tmp_path / "disks"
    with own_disks(site.bed, disks):
        plan = plan_that_saves(site, tmp_path, checkpoint={"path": f"{disks}/saved", "every_steps": 10, "keep_last": 9})
        process = launched(site, tmp_path / "runs", plan, "--on-loss", "replan")
        try:
            said_until(process, "step 19/")  # the save after step 10 is whole by then, and not that after 20
            remembering = hosts_that_remember(site.bed, only_run(tmp_path / "runs").name)
            site.bed.set_link("b2", "eno1", up=False)
            said_until(process, "plan without b2: ")
            on_host(site.bed, "b2", "rm", "-r", f"{disks}/saved")
            first = said_until(process, "step ").splitlines()[-1]
            said = process.communicate(timeout=600)[1]
        finally:
            site.bed.set_link("b2", "eno1", up=True)
            process.kill()
        assert process.returncode == 0, said
        assert list(disks.iterdir()) == []  # nothing of it is on a disk that all see
        run = only_run(tmp_path / "runs")
        left = [node.host for node in read_file(Plan, run / "plan.json").nodes]
        newest = {on_host(site.bed, host, "cat", f"{disks}/saved/latest").strip() for host in left}
    assert remembering == ["a1", "a2", "b1", "b2"]
    assert hosts_that_remember(site.bed, run.name) == []
    assert "b2" not in left
    assert newest == {"step-00000040"}
    saved = int(first.removeprefix("step ").split("/")[0]) - 1  # steps that pass before the loss is seen may be saved
    assert saved in (10, 20, 30), first
    assert sorted(losses_from(run, after=saved)) == list(range(saved, 40))
