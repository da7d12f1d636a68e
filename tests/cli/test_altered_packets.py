"""A relay between the clusters that flips bits in packets is noticed in the step in which it does, and the run ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.journal.run_folder import read_run
from launcher.supervise.failure import first_cause
from tests.builders.bed_runs import launched
from tests.cli.test_three_commands import nothing_is_left
from tests.seeds import all_but
from tests.testbed.altered_packets import CUTS, LIMIT_S, altered, clean_losses, plan_across
from tests.testbed.bed_needs import missing_for_trunk
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, only_run

pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(missing_for_trunk()), reason="no trunk here")]


@pytest.fixture(scope="module")
def trunk_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two clusters with a relay between them."""
    with bed_site(tmp_path_factory.mktemp("site"), slow_mbps=1000, trunk_mbps=500) as site:
        yield site


@pytest.mark.parametrize("cut", all_but(["stages"], CUTS))
def test_flipped_bits_between_clusters_end_the_run_before_a_loss_is_wrong(
    trunk_site: Site, tmp_path: Path, cut: str
) -> None:
    plan = plan_across(trunk_site, tmp_path / cut, cut)
    expected = clean_losses(trunk_site, plan, tmp_path / "clean")
    assert read_run(only_run(tmp_path / "clean")).compared_steps == len(expected)
    (tmp_path / cut / "saved").rename(tmp_path / "saved-clean")
    seen = altered(trunk_site, plan, cut, tmp_path / "runs", expected, every=40)
    assert seen.exit_code != 0, seen
    assert seen.wrong_losses == []
    assert "was changed on the way" in seen.message
    (step,) = map(int, re.findall(r"step (\d+): ", seen.message)[:1])
    assert seen.safe_steps is None or seen.safe_steps < step
    assert trunk_site.bed is not None
    assert nothing_is_left(trunk_site.bed)
    print(json.dumps(seen._asdict()))


def test_flipped_bits_in_the_rendezvous_end_the_run_before_its_first_step(trunk_site: Site, tmp_path: Path) -> None:
    plan = plan_across(trunk_site, tmp_path / "replicas", "replicas")
    assert trunk_site.bed is not None
    trunk_site.bed.set_trunk(flip_every=1)
    try:
        process = launched(trunk_site, tmp_path / "runs", plan)
        said = process.communicate(timeout=LIMIT_S)[1]
    finally:
        process.kill()
        process.wait()
        trunk_site.bed.set_trunk(flip_every=0)
    assert process.returncode == 1, said
    run = read_run(only_run(tmp_path / "runs"))
    assert (run.steps_done, run.safe_steps) == (0, None)
    cause = first_cause(run.failures)
    assert re.search(r"data of the rendezvous or its store, from \S+ to \S+, was changed on the way", cause.message)
    assert "encrypt with `security: {between_clusters: wireguard}`" in str(cause.likely)
    assert nothing_is_left(trunk_site.bed)
