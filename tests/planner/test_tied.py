"""Plans of models whose head is the table of tokens: who holds copies, what their sums send and take."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from launcher.prepare.prepare import run_config_of
from planner.layout.reprice import reprice
from planner.layout.verify import verify
from planner.problem.candidates import Candidate, with_sharded_weights
from tests.seeds import few_of

from .fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

BED = cpu_inventory([2, 2])
MODEL = {"num_layers": 10, "hidden_size": 352, "num_heads": 8, "seq_length": 128, "vocab_size": 4000}
TABLE_BYTES = 4 * 4000 * 352  # of gradients


def tied(parallel: dict[str, Any], is_tied: bool = True) -> Plan:
    return plan_for(BED, bed_job(model={**MODEL, "tied_embeddings": is_tied}, parallel=parallel))


def pairs(plan: Plan) -> list[tuple[int, ...]]:
    return [group.ranks for group in plan.groups if group.axis == "tied"]


def test_the_ends_of_a_pipeline_are_joined_by_the_piece_they_own() -> None:
    plan = tied({"pp": 2, "dp": 2})

    ends = [[rank.rank for rank in plan.ranks if rank.pp_rank == end] for end in (0, 1)]
    assert pairs(plan) == list(zip(*map(sorted, ends), strict=True))
    assert run_config_of(plan, "run").grid.tied(run_config_of(plan, "run").grid.rank(0)) in pairs(plan)


@pytest.mark.parametrize(("parallel", "is_tied"), few_of(1, [({"pp": 1, "dp": 4}, True), ({"pp": 2, "dp": 2}, False)]))
def test_one_stage_and_a_head_of_its_own_need_no_sum(parallel: dict[str, Any], is_tied: bool) -> None:
    assert pairs(tied(parallel, is_tied)) == []


def test_each_end_sends_its_piece_s_gradients_once() -> None:
    plan, plain = tied({"pp": 2, "dp": 2}), tied({"pp": 2, "dp": 2}, False)

    more = sum(t.sent_bytes for t in plan.prediction.traffic) - sum(t.sent_bytes for t in plain.prediction.traffic)
    assert more == 2 * 2 * TABLE_BYTES // 2  # two replicas, both ways, half of the table each


def test_the_sum_is_the_step_s_last_exchange() -> None:
    plan, plain = (tied({"pp": 2, "dp": 1, "layers": [5, 5]}, is_tied) for is_tied in (True, False))

    (group,) = (group for group in plan.groups if group.axis == "tied")
    assert group.rate_bytes_per_s == pytest.approx(0.1 * GBPS, rel=0.1) or group.network != "shared"
    assert group.rate_bytes_per_s is not None
    assert plan.prediction.step_s - plain.prediction.step_s == pytest.approx(TABLE_BYTES / group.rate_bytes_per_s)
    assert plan.prediction.exposed_dp_s - plain.prediction.exposed_dp_s == pytest.approx(
        TABLE_BYTES / group.rate_bytes_per_s
    )


@pytest.mark.parametrize(
    ("inventory", "job"),
    few_of(
        1,
        [
            (BED, bed_job(model={**MODEL, "tied_embeddings": True})),
            (cpu_inventory([3, 1]), bed_job(model={**MODEL, "tied_embeddings": True}, parallel={})),
            (gpu_inventory([2, 2]), gpt_7b(model={"preset": "llama-3.2-1b"}, parallel={"pp": 2, "tp": 2, "dp": 8})),
            (gpu_inventory([2, 1]), gpt_7b(model={"preset": "llama-3.2-1b"})),
        ],
    ),
    ids=["bed", "uneven", "shards", "free"],
)
def test_a_tied_plan_verifies_is_priced_again_alike_and_runs(inventory: Any, job: Any) -> None:
    plan = plan_for(inventory, job)

    assert verify(plan, inventory) == []
    assert reprice(inventory, plan).step_s == pytest.approx(plan.prediction.step_s)
    assert run_config_of(plan, "run").model.tied_embeddings


@pytest.mark.slow
def test_published_keys_reach_the_ranks() -> None:
    job = gpt_7b(model={"preset": "llama-3.2-1b", "head_dim": 64}, weights="/models/llama")
    config = run_config_of(plan_for(gpu_inventory([1, 1]), job), "run")

    assert config.weights == "/models/llama"
    assert config.model.in_full.head_dim is None  # as many as hidden_size / num_heads: said in one way
    assert config.model.rope_scaling is not None
    assert config.model.rope_scaling.factor == 32.0


def test_zero_3_is_refused_and_never_chosen_where_the_table_is_used_twice() -> None:
    with pytest.raises(HolmesError, match=r"parallel\.zero 3 with model\.tied_embeddings"):
        tied({"zero": 3})

    job = bed_job(model={**MODEL, "tied_embeddings": True}, parallel={})
    assert with_sharded_weights(job, Candidate(tp=1, pp=1, dp=4, micro_batch_size=1)) is None
