"""`holmes doctor` on the bed's two clusters: the order of the hosts, which a narrow wire between them makes dear."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.builders.bed_trainings import HSDP, diagnosed, training, verdict
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site

pytestmark = [*NEEDS_BED, pytest.mark.exhaustive]
ALL = ("a1", "a2", "b1", "b2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("orders"), slow_mbps=400, trunk_mbps=60) as site:
        words = site.command("probe", str(site.hosts_yaml), "--links", "-o", str(site.folder / "inventory.json"))
        done = subprocess.run(words, cwd=site.folder, capture_output=True, text=True, timeout=900, check=False)
        assert (site.folder / "inventory.json").exists(), done.stderr
        yield site


def test_shards_in_two_clusters_are_named_with_the_order_that_keeps_them_in_one(site: Site) -> None:
    with training(site, HSDP, dict.fromkeys(("a1", "b1", "a2", "b2"), 1), 29541, is_wide=True):
        record = diagnosed(site, "--seconds", "20", hosts=ALL)
    found = verdict(record)
    assert found["cause"] == "rank-order", (record["says"], record["paths"])
    better = ("Start the hosts in the order a1, a2, b1, b2", "Start the hosts in the order b2, b1, a2, a1")
    assert found["remedy"].startswith(better)


def test_shards_inside_clusters_are_in_the_right_order(site: Site) -> None:
    with training(site, HSDP, dict.fromkeys(ALL, 1), 29542, is_wide=True):
        record = diagnosed(site, "--seconds", "20", hosts=ALL)
    assert "rank-order" not in [record["cause"], *record["also"]]
    assert not any("in another order" in note for note in record["notes"])
