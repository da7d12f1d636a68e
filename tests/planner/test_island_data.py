"""Data that stay on their cluster: whose islands read what, and what is refused."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.record import FileRecord
from holmes_runtime.config.strict_json import to_json
from launcher.islands.island_part import outer_sync_of
from launcher.prepare.prepare import inputs_of
from planner.islands.island_plans import plan_islands
from planner.islands.uniform_links import with_uniform_links
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.islands_jobs import SOURCES, planned_mode

FAST = with_uniform_links(cpu_inventory([1, 1, 1]), 10 * GBPS, 1e-4)  # on which hosts would train as one
SECTION = {"inner_steps": 10, "codec": "int8", "fragments": 1, "delay_steps": 0}


def job_of(data: dict[str, object], **changes: object) -> Job:
    return bed_job(parallel={}, steps=100, islands=SECTION | {"data": data}, **changes)


def planned(data: dict[str, object], inventory: Inventory = FAST) -> IslandsPlan:
    plan = planned_mode(inventory, job_of(data))
    assert isinstance(plan, IslandsPlan)
    return plan


def test_each_island_reads_the_data_of_its_cluster_and_knows_no_other() -> None:
    own = {"a": "/data/north", "b": "/data/south", "c": "/data/west"}
    plan = planned({**own})
    whole = plan.job.corpus
    for number, island in enumerate(plan.islands):
        (cluster,) = {rank.cluster for rank in island.ranks}
        assert island.job.corpus == type(whole)(**{**vars(whole), "path": own[cluster]})
        assert own[cluster] in inputs_of(island.job)  # which preflight looks for on the island's hosts
        others = [path for name, path in own.items() if name != cluster]
        told = island.job.to_json() + to_json(outer_sync_of(plan, number))
        assert not any(path in told for path in others)


def test_hosts_whose_data_stay_apart_do_not_train_as_one() -> None:
    plan = planned({"a": "/data/north"})
    assert plan.modes.prices[0].mode == "islands"
    refused = [price.why for price in plan.modes.prices[1:]]
    assert len(refused) == 4
    assert all("islands.data keeps the data of a there" in why for why in refused)


def test_a_cluster_with_data_of_its_own_is_neither_joined_nor_left_out() -> None:
    found = {grouping for grouping, _ in plan_islands(FAST, job_of({"a": "/x"}), SOURCES, 60.0, lambda _: None).found}
    assert found == {(("a",), ("b",), ("c",)), (("a",), ("b",)), (("a",), ("c",)), (("a",), ("b", "c"))}


def test_islands_of_the_same_data_share_its_samples_and_others_read_all_of_theirs() -> None:
    plan = planned({"b": "/data/south"}, with_uniform_links(cpu_inventory([1] * 4), 10 * GBPS, 1e-4))
    assert [plan.own_data(number) for number in range(4)] == [None, "b", None, None]
    samples = plan.round_samples
    syncs = [outer_sync_of(plan, number) for number in range(4)]
    assert [sync.samples_before for sync in syncs] == [0, 0, samples[0], samples[0] + samples[2]]
    common = samples[0] + samples[2] + samples[3]
    assert [sync.round_samples for sync in syncs] == [common, samples[1], common, common]


def test_data_of_a_cluster_that_is_not_there_are_refused() -> None:
    with pytest.raises(HolmesError, match=r"islands\.data is for cluster d, the inventory has a, b, c"):
        planned({"a": "/x", "d": "/y"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a": "south"}, r"islands\.data\.a\.path\n.*not an absolute path"),
        ({"a": []}, r"data\.a: must name a file or folder"),
        ({"a": [{"path": "/x", "weight": 1}, {"path": "/x/", "weight": 2}]}, r"data\.a: must name each once"),
        ({"a": [{"path": "/x", "weight": 0}]}, r"islands\.data\.a\.blend\.0\.weight"),
    ],
)
def test_paths_are_checked_as_those_of_the_job_are(data: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        job_of(data)


def test_text_of_an_island_needs_a_tokenizer_where_that_of_the_job_does() -> None:
    with pytest.raises(ValueError, match=r"data /data/north\.jsonl is text without a tokenizer"):
        job_of({"a": "/data/north.jsonl"}, weights="/models/llama")


def test_jobs_without_data_by_cluster_are_written_as_before() -> None:
    job: FileRecord = bed_job(parallel={}, steps=100, islands=SECTION)
    assert '"data": {}' not in job.to_json()
