"""A stage over several clusters comes with the reason."""

from __future__ import annotations

import pytest

from holmes_core.records.plan import Plan
from planner.advice.cluster_spans import cluster_spans
from tests.planner.fleets import bed_job, cpu_inventory, plan_for

UNEVEN = cpu_inventory([3, 1])
EVEN = cpu_inventory([2, 2])
LONG_SEQUENCES = {"num_layers": 10, "hidden_size": 64, "num_heads": 8, "seq_length": 2048}
TWO_BY_TWO = {"pp": 2, "dp": 2, "schedule": "1f1b"}


@pytest.fixture(scope="module")
def uneven() -> Plan:
    return plan_for(UNEVEN, bed_job(parallel=TWO_BY_TWO))


def test_stages_that_each_lie_in_one_cluster_need_no_words() -> None:
    assert cluster_spans(EVEN, plan_for(EVEN, bed_job())) == ()


def test_stage_that_fits_into_no_cluster_says_how_much_of_it_does(uneven: Plan) -> None:
    assert cluster_spans(UNEVEN, uneven) == (
        "Stage 1 spans clusters a and b: with the other stages placed, a has room for 1 and b for 1 of 2 replicas; "
        "its gradients cross on the shared network.",
    )


def test_cluster_with_room_for_a_whole_stage_is_named(uneven: Plan) -> None:
    (sentence,) = cluster_spans(cpu_inventory([4, 1]), uneven)
    assert "a alone has room, but the search found no faster step that way" in sentence


def test_all_stages_of_a_pipeline_rank_are_named() -> None:
    plan = plan_for(UNEVEN, bed_job(parallel={"pp": 2, "dp": 2, "schedule": "interleaved", "chunks": 5}))
    (sentence,) = cluster_spans(UNEVEN, plan)
    assert sentence.startswith("Stages 1, 3, 5, 7, 9 span clusters a and b: ")
    assert sentence.endswith("; their gradients cross on the shared network.")


def test_one_stage_for_all_clusters_counts_what_each_has_room_for() -> None:
    fleet = cpu_inventory([1, 1, 1])
    plan = plan_for(fleet, bed_job(global_batch_size=33, parallel={"pp": 1, "dp": 3}))
    (sentence,) = cluster_spans(fleet, plan)
    assert "clusters a, b and c: a has room for 1, b for 1 and c for 1 of 3 replicas; its gradients" in sentence


def test_replicas_that_are_whole_in_a_cluster_are_the_reason() -> None:
    plan = plan_for(EVEN, bed_job(model=LONG_SEQUENCES, global_batch_size=512, parallel=TWO_BY_TWO))
    (sentence,) = cluster_spans(EVEN, plan)
    assert sentence.startswith("Stages 0-1 span clusters a and b: each replica is entirely in one cluster")


def test_usual_order_is_named_as_the_reason() -> None:
    (sentence,) = cluster_spans(EVEN, plan_for(EVEN, bed_job(), order="usual"))
    assert sentence.startswith("Stages 0-1 span clusters a and b: the usual order numbers hosts without regard")
