"""Other engines than the bundled runtime: what their settings change of a plan, and what they do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.published_steps.measurements import measurements
from benchmarks.published_steps.predict_row import plan_row, quick_s
from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import EngineName, Job, Parallel
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_runtime.config.model_shape import ModelShape, stage_parameters
from launcher.prepare.engine_arguments import engine_arguments
from launcher.prepare.prepare import run_config_of
from planner.cost.counts import Execution, layer_activation_bytes, state_bytes
from planner.cost.engines import ENGINES
from planner.problem.candidates import Candidate
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_anew, plan_for
from tests.planner.paper_examples import FOLDER
from tests.planner.test_metamorphic import NOT_PROVEN

FIXED = {"tp": 1, "pp": 2, "dp": 16, "micro_batch_size": 1, "schedule": "1f1b", "recompute": "full"}


def fixed_plan(engine: EngineName, **changed: Any) -> Plan:
    """Two clusters of two hosts, with all degrees fixed; planned anew, as tests change what is known of engines."""
    return plan_anew(gpu_inventory([2, 2]), gpt_7b(engine=engine, global_batch_size=256, parallel=FIXED, **changed))


def test_states_that_are_not_sharded_fill_memory_and_are_updated_whole() -> None:
    ours, theirs = fixed_plan("holmes").prediction, fixed_plan("megatron-2021").prediction
    # Moments and masters, 12 bytes a parameter: a sixteenth of them, or all. The runtime keeps 0.5 bytes more of what
    # is reduced; margin and reserve are its own as well.
    parameters = stage_parameters(gpt_7b().model, 18, True, False, 1)
    assert theirs.memory_bytes[0] - ours.memory_bytes[0] > 8 * parameters
    assert theirs.optimizer_s == pytest.approx(16 * ours.optimizer_s, rel=1e-6)


def test_an_exchange_after_the_last_backward_is_waited_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ENGINES["megatron-2021"]
    late_s = fixed_plan("megatron-2021").prediction.exposed_dp_s
    monkeypatch.setitem(ENGINES, "megatron-2021", replace(engine, overlaps_exchange=True))
    assert fixed_plan("megatron-2021").prediction.exposed_dp_s < late_s
    monkeypatch.setitem(ENGINES, "megatron-2021", replace(engine, exchange_share=engine.exchange_share / 2))
    assert fixed_plan("megatron-2021").prediction.exposed_dp_s == pytest.approx(2 * late_s, rel=0.01)


def test_torch_s_wrapper_exchanged_under_the_backward_in_2020_what_later_waited() -> None:
    later, then = fixed_plan("megatron-2021").prediction, fixed_plan("megatron-2020").prediction
    assert then.exposed_dp_s < 0.5 * later.exposed_dp_s
    assert then.compute_s == later.compute_s


def test_messages_take_longer_where_an_engine_gets_less_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    usual_s = fixed_plan("megatron-2021").prediction.exposed_edge_s
    monkeypatch.setitem(ENGINES, "megatron-2021", replace(ENGINES["megatron-2021"], edge_share=0.1))
    assert fixed_plan("megatron-2021").prediction.exposed_edge_s > 5 * usual_s


def test_sequences_are_split_with_selective_recomputation_alone() -> None:
    job = gpt_7b(engine="megatron-2021")
    assert Candidate(8, 1, 1, 1, "selective").execution(job).sequence_parallel
    assert not Candidate(8, 1, 1, 1, "full").execution(job).sequence_parallel


@pytest.mark.slow
def test_another_engine_runs_its_own_schedules_and_equal_replicas() -> None:
    plan = plan_for(gpu_inventory([3, 2]), gpt_7b(engine="megatron-2024", global_batch_size=96))
    assert plan.schedule in ("1f1b", "interleaved")
    assert len(set(plan.microbatches)) == 1
    assert plan.zero == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "layers", "hidden_size", "global_batch_size"),
    [
        ("two_clusters", 36, 4096, 768),
        ("two_clusters", 36, 4096, 1536),
        ("4_infiniband_4_roce", 30, 3072, 1536),
        ("4_infiniband_4_roce", 36, 4096, 768),
        ("4_infiniband_4_roce", 36, 4096, 1536),
        ("two_clusters", 30, 3072, 1536),
    ],
)
def test_fixing_pp_never_betters_an_engine_s_plan(
    setting: str, layers: int, hidden_size: int, global_batch_size: int
) -> None:
    """An engine's replicas exchange in one ring, also across clusters: the search must price them so."""
    inventory = read_file(Inventory, FOLDER / f"{setting}.json")
    model = {"num_layers": layers, "hidden_size": hidden_size, "num_heads": 32, "seq_length": 2048, "vocab_size": 51200}
    job = gpt_7b(engine="megatron-2024", model=model, global_batch_size=global_batch_size)
    free_s = plan_for(inventory, job).prediction.step_s
    for pp in (1, 2, 4):
        fixed = plan_for(inventory, job.model_copy(update={"parallel": Parallel(pp=pp)}))
        assert free_s <= fixed.prediction.step_s * (1 + NOT_PROVEN)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"parallel": {"schedule": "eager"}}, "does not have"),
        ({"parallel": {"zero": 3}}, "zero 3 with engine"),
        ({"parallel": {"optimizer_offload": True}}, "optimizer_offload with engine"),
        ({"parallel": {"dp": 3}}, "is not a multiple of dp x micro_batch_size = 3 x 1"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(HolmesError, match=what):
        plan_for(gpu_inventory([1]), gpt_7b(engine="megatron-2021", **changed))


def test_fsdp_shards_weights_always_and_keeps_no_rounded_copy() -> None:
    plan = plan_for(gpu_inventory([2]), gpt_7b(engine="fsdp", global_batch_size=192))
    assert (plan.zero, plan.job.parallel.zero) == (3, None)
    with pytest.raises(HolmesError, match="zero 1 with engine fsdp, which shards weights"):
        plan_for(gpu_inventory([2]), gpt_7b(engine="fsdp", parallel={"zero": 1}))
    for changed in (
        {"model": {"preset": "gpt-3.6b", "tied_embeddings": True}},
        {"parallel": {"schedule": "zero-bubble"}},
    ):
        with pytest.raises(HolmesError, match="engine fsdp, which shards weights, with") as refused:
            plan_for(gpu_inventory([2]), gpt_7b(engine="fsdp", **changed))
        assert "choose another engine" in str(refused.value.hint)
    states = [
        state_bytes(100, Candidate(1, 1, 8, 1, "none", weight_shards=8).execution(gpt_7b(engine=engine, **changed)))
        for engine, changed in (("fsdp", {}), ("fsdp", {"precision": "fp32"}), ("holmes", {}))
    ]
    assert states == [2 * 100, 2 * 100, pytest.approx(18 / 8 * 100, abs=1)]


def test_other_engines_are_known_on_gpus_alone() -> None:
    with pytest.raises(HolmesError, match="measured on GPUs"):
        plan_for(cpu_inventory([1]), bed_job(parallel={}, engine="sailor"))


def test_a_plan_for_another_engine_is_not_launched() -> None:
    with pytest.raises(HolmesError, match="no command to launch"):
        run_config_of(fixed_plan("megatron-2021"), "run")


def test_a_published_row_is_a_plan_with_all_that_it_fixes() -> None:
    row = next(row for row in measurements() if row.table == "V5" and row.pp == 4 and row.dp == 2)
    plan, fits = plan_row(row)
    assert fits
    assert (plan.tp, plan.pp, plan.dp, plan.micro_batch_size, plan.schedule) == (row.tp, row.pp, row.dp, 8, "1f1b")
    assert quick_s(row) == pytest.approx(plan.prediction.step_s, rel=1e-3)


@pytest.mark.parametrize("engine", ["fsdp", "megatron-2021"])
@pytest.mark.parametrize("preset", ["mixtral-8x7b", "deepseek-v3-like"])
def test_experts_are_refused_as_wrong_usage_where_an_engine_has_none(engine: EngineName, preset: str) -> None:
    with pytest.raises(HolmesError, match=f"model.experts with engine {engine}") as refused:
        plan_for(gpu_inventory([1]), gpt_7b(engine=engine, model={"preset": preset}))
    assert refused.value.exit_code == WRONG_USAGE


def test_latent_attention_without_experts_is_refused_likewise() -> None:
    model = {"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 2, "seq_length": 32}
    with pytest.raises(HolmesError, match=r"model\.latent_attention with engine holmes"):
        plan_for(gpu_inventory([1]), gpt_7b(model={**model, "latent_attention": {"kv_rank": 16}}))


def test_megatron_is_told_the_modules_whose_recomputation_is_priced() -> None:
    """Without them selective recomputation repeats attention's core, and keeps what the plan counts as let go."""
    dense = {"preset": "llama-3-8b"}
    for model, modules in ((dense, ("layernorm",)), ({"preset": "mixtral-8x7b"}, ("layernorm", "moe_act"))):
        fixed = {"tp": 1, "recompute": "selective", "micro_batch_size": 1} | ({"ep": 8} if model != dense else {})
        data = gpt_7b(engine="megatron", model=model, parallel=fixed).model_dump() | {"data": None}
        job = Job.model_validate(data | {"trainer": {"engine": "megatron", "command": ["x"]}})
        plan = plan_for(gpu_inventory([4, 4], memory_bytes=None), job)
        words = engine_arguments(plan)
        at = words.index("--recompute-modules")
        assert words[at - 2 : at + 1 + len(modules)] == (
            *("--recompute-granularity", "selective", "--recompute-modules"),
            *modules,
        )


def test_an_mlp_of_megatron_keeps_its_inside_under_selective_recomputation() -> None:
    shape, plain = (
        ModelShape(num_layers=2, hidden_size=64, num_heads=4, seq_length=32, vocab_size=64),
        Execution(1, 1, 1, 2, "none"),
    )
    selective = plain._replace(recompute="selective", repeats_activation=False)
    one, other = (layer_activation_bytes(shape, each) for each in (plain, selective))
    assert one - other == 2 * shape.seq_length * 2 * shape.hidden_size  # the norms' results alone
    told = layer_activation_bytes(shape, selective._replace(repeats_activation=True))
    assert other - told == 2 * shape.seq_length * shape.ffn_size
