"""Experts in groups of ranks: degrees, memory, tokens on their way, and what a plan for Megatron-Core says of them."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from math import comb
from typing import Any

import pytest

from holmes_cli.replan import Replanner
from holmes_core.errors import ANSWER_IS_NO, WRONG_USAGE, HolmesError
from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import (
    ModelShape,
    embedding_parameters,
    expert_parameters,
    layer_parameters,
    stage_parameters,
)
from launcher.prepare.engine_arguments import engine_arguments
from launcher.prepare.prepare import run_config_of
from planner.advice.assumed_speeds import dense_layers_sentence
from planner.cost.collectives import Path, Peers, expert_exchange_part, expert_parallel_s, routed_parts
from planner.cost.compute_time import layer_s
from planner.cost.counts import Execution, layer_activation_bytes, state_bytes
from planner.cost.gpu_speeds import Speed
from planner.cost.rank_memory import memory_bytes
from planner.cost.slot import dense_layer_s
from planner.cost.trained import stage_of
from planner.layout.verify import check_groups
from planner.problem.candidates import Candidate, candidate_of
from planner.problem.coefficients import slot_s
from planner.problem.group_places import misplaced_group
from planner.problem.problem import read_problem
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory, plan_for
from tests.planner.group_fleets import drawn_bundled_fleet, gap
from tests.seeds import few_of, seeds

MODEL = {
    **{"family": "llama", "num_layers": 6, "hidden_size": 1024, "num_heads": 16, "seq_length": 1024},
    **{"ffn_hidden_size": 2048, "vocab_size": 32000, "experts": 32, "experts_per_token": 4, "expert_ffn": 512},
}
SHAPE = ModelShape(**MODEL)  # type: ignore[arg-type]
PLAIN = Execution(1, 16, 1, 2, "none", ep=8)
TWO_HOSTS = gpu_inventory([2])


def job(model: dict[str, Any] = MODEL, **parallel: Any) -> Job:
    """A job of experts for Megatron-Core."""
    return gpt_7b(engine="megatron", model=model, global_batch_size=64, parallel=parallel)


def test_tokens_of_experts_on_the_host_never_meet_the_network() -> None:
    # 1024 tokens x 1024 x 2 bytes x 4 experts are 8 MiB, 7 of 8 parts to others; there and back.
    size = 8 * 2**20
    times = expert_parallel_s(SHAPE, PLAIN, Path(100e9, 1e-6), Peers(8, 1e9))
    assert times.forward_s == times.backward_s == pytest.approx(2 * (size * 7 / 8 / 100e9 + 1e-6))


def test_tokens_to_other_hosts_take_each_rank_s_share_of_the_network() -> None:
    size, wide = 8 * 2**20, PLAIN._replace(ep=16)
    times = expert_parallel_s(SHAPE, wide, Path(100e9), Peers(8, 1e9))
    assert times.forward_s == pytest.approx(2 * size * 8 / 16 / (0.7 * 1e9))
    again = expert_parallel_s(SHAPE, wide._replace(recompute="full"), Path(100e9), Peers(8, 1e9))
    assert again.backward_s == pytest.approx(2 * times.backward_s)


def test_tensor_shards_send_their_part_of_the_tokens() -> None:
    one, two = (expert_parallel_s(SHAPE, PLAIN._replace(tp=tp), Path(100e9), Peers(8, 1e9)) for tp in (1, 2))
    assert two.forward_s == pytest.approx(one.forward_s / 2)


def test_a_dispatcher_that_sends_once_sends_a_token_to_each_host_of_its_experts() -> None:
    # Two hosts of 16 experts each: a token's four are all on the own one for 1,820 of 35,960 choices.
    size, once = 8 * 2**20, PLAIN._replace(ep=16, sends_once=True)
    there_s = size / 4 * (1 - 1820 / 35960) / (0.88 * 1e9)
    assert expert_parallel_s(SHAPE, once, Path(100e9), Peers(8, 1e9)).forward_s == pytest.approx(2 * there_s)
    # On one host, eight ranks of four experts: none of them is chosen by 20,475 of 35,960.
    near_s = size / 4 * 8 * (1 - 20475 / 35960) * 7 / 8 / 100e9
    near = expert_parallel_s(SHAPE, PLAIN._replace(sends_once=True), Path(100e9), Peers(8, 1e9))
    assert near.forward_s == pytest.approx(2 * near_s)


def test_the_dispatcher_of_the_command_is_priced() -> None:
    command = {"trainer": {"engine": "megatron", "command": ["x", "--moe-token-dispatcher-type", "flex"]}}
    plain = job(ep=16, tp=1, pp=1).model_dump(exclude={"engine", "data", "compile"}, exclude_unset=True)
    once, copies = (Job.model_validate({**plain, **each}) for each in (command, {"trainer": {"engine": "megatron"}}))
    assert plan_for(TWO_HOSTS, once).prediction.step_s < plan_for(TWO_HOSTS, copies).prediction.step_s


def test_experts_are_exchanged_by_the_ranks_that_hold_the_same() -> None:
    # 16 replicas on two hosts, eight expert ranks: two hold the same experts, and each host has eight such pairs.
    assert expert_exchange_part(PLAIN, Peers(8, 1e9)) == pytest.approx((1 / 2) / (15 / 16) * 8)
    assert expert_exchange_part(PLAIN, Peers(16, 1e9)) == pytest.approx((1 / 2) / (15 / 16))
    assert expert_exchange_part(PLAIN._replace(ep=16), Peers(8, 1e9)) == 0


def test_memory_has_the_experts_and_states_of_one_group_member() -> None:
    experts = expert_parameters(SHAPE, 8)
    assert experts == 4 * 3 * 1024 * 512
    one, two = (memory_bytes(SHAPE, PLAIN, (count,), (0,), False, False) for count in (1, 2))
    whole = layer_parameters(SHAPE, 1, 8) - experts
    # Weights and sums; masters, moments and reduced gradients of two ranks together.
    assert two - one == state_bytes(whole, PLAIN) + experts * (2 + 4) + experts * (4 + 8 + 8) // 2


@pytest.mark.parametrize("ep", [4, 16])
def test_groups_of_experts_lie_on_whole_hosts_or_hosts_hold_whole_groups(ep: int) -> None:
    plan = plan_for(TWO_HOSTS, job(ep=ep, pp=1))
    assert plan.job.ep == ep
    blocks = [plan.ranks[at : at + ep] for at in range(0, len(plan.ranks), ep)]
    assert {len({rank.host for rank in block}) for block in blocks} == {-(-ep // 8)}


@pytest.mark.parametrize("parallel", [{"ep": 8}, {"ep": 16, "pp": 1}, {"ep": 8, "tp": 2, "pp": 1}])
def test_the_closed_form_and_the_simulations_agree(parallel: dict[str, Any]) -> None:
    plan = plan_for(TWO_HOSTS, job(**parallel))
    assert plan.solve.placement_s == pytest.approx(plan.prediction.step_s, rel=0.1)
    assert plan.prediction.exposed_tp_s > 0


def test_a_free_degree_is_the_fastest_of_all() -> None:
    free = plan_for(TWO_HOSTS, job(pp=1))
    each = {ep: plan_for(TWO_HOSTS, job(pp=1, ep=ep)).prediction.step_s for ep in (1, 2, 4, 8, 16)}
    assert free.prediction.step_s == min(each.values()) == each[free.job.ep]


def test_tokens_count_among_the_bytes_of_interfaces() -> None:
    inside, across = (plan_for(TWO_HOSTS, job(ep=ep, pp=1, tp=1, micro_batch_size=1)) for ep in (8, 16))
    # 4 times a layer half of 8 MiB, for 4 micro-batches of each of 8 replicas; and no expert is exchanged any more.
    routed = 4 * 6 * 4 * 2**20 * 4 * 8
    exchanged = 15 / 16 * (4 + 2) * expert_parameters(SHAPE, 8) * 6 * expert_exchange_part(PLAIN, Peers(8, None))
    sent = [max(each.sent_bytes for each in plan.prediction.traffic) for plan in (inside, across)]
    assert sent[1] - sent[0] == pytest.approx(routed - exchanged, rel=1e-3)


def test_first_layers_without_experts_make_a_step_shorter_by_what_they_cost_less() -> None:
    model = {**MODEL, "hidden_size": 4096, "expert_ffn": 1024}
    degrees = {"ep": 8, "pp": 1, "dp": 16, "tp": 1, "micro_batch_size": 1, "recompute": "none"}
    none, two = (plan_for(TWO_HOSTS, job({**model, "first_dense_layers": n}, **degrees)) for n in (0, 2))
    problem = read_problem(TWO_HOSTS, two.job)
    execution, slot = Candidate(1, 1, 16, 1).execution(problem.job), problem.fleet.classes[0].hardware.slot
    (expert, _), dense = slot_s(problem.job, slot, execution), dense_layer_s(problem.job, execution, slot)
    less_s = 4 * 2 * (expert.both_s - dense.both_s)  # of four micro-batches; the exchange and the update differ, too
    assert none.prediction.step_s - two.prediction.step_s == pytest.approx(less_s, rel=0.3)


def test_a_plan_tells_where_cuts_between_layers_without_experts_were_not_compared() -> None:
    model = {**MODEL, "first_dense_layers": 2}
    one, shallow, deep = (plan_for(TWO_HOSTS, job(model, ep=2, tp=1, dp=2, pp=pp)) for pp in (1, 2, 4))
    assert dense_layers_sentence(one) == ()
    (sentence,) = dense_layers_sentence(shallow)
    assert sentence.startswith("The first 2 layers have no experts.")
    assert dense_layers_sentence(deep) == (sentence,)


def test_parameters_of_first_layers_without_experts_are_their_own() -> None:
    for width in (64, 65536):
        shape = replace(SHAPE, ffn_hidden_size=width, first_dense_layers=2)
        more = layer_parameters(shape.dense) - layer_parameters(shape, 1, 8)
        first, other = (stage_of(shape, None, 3, (is_first, False), 1, 8, 2 * is_first) for is_first in (True, False))
        assert first.trained - other.trained == embedding_parameters(shape) + 2 * more


@pytest.mark.slow
def test_the_preset_like_deepseek_v3_is_planned() -> None:
    shape = gpt_7b(engine="megatron", model={"preset": "deepseek-v3-like"}, global_batch_size=1024)
    fixed = shape.with_parallel(ep=64, tp=1, pp=16, micro_batch_size=1)
    plan = plan_for(gpu_inventory([64, 64], gpu_name="NVIDIA H100 80GB HBM3", memory_bytes=None), fixed)
    assert (plan.pp, plan.job.ep) == (16, 64)
    assert misplaced_group(plan.job, plan.ranks) == ()


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"ep": 3}, "parallel.ep is 3, model.experts 32"),
        ({"ep": 2, "tp": 4}, "parallel.ep is 2, model.experts 32 and parallel.tp 4"),
        ({"ep": 32}, "no degrees fit parallel.ep 32"),
        ({"ep": 8, "dp": 4, "tp": 1}, "no degrees fit parallel.ep 8 and tp 1, dp 4"),
    ],
)
def test_degrees_that_do_not_go_together_are_refused(parallel: dict[str, Any], said: str) -> None:
    with pytest.raises(HolmesError, match=said):
        plan_for(TWO_HOSTS, job(**parallel))


def bundled(**parallel: Any) -> Job:
    """A job of experts for the bundled runtime."""
    return gpt_7b(model=MODEL, global_batch_size=64, parallel=parallel)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"parallel": {"ep": 2, "zero": 3}}, "parallel.zero 3"),
        ({"compute": {"emulate": {"forward_s_per_layer": 0.1, "backward_s_per_layer": 0.2}}}, "compute.emulate set"),
    ],
)
def test_the_bundled_runtime_says_where_replicas_cannot_share_experts(change: dict[str, Any], key: str) -> None:
    arguments: dict[str, Any] = {"model": MODEL, "global_batch_size": 64, "parallel": {"ep": 2}, **change}
    with pytest.raises(HolmesError, match=f"parallel.ep is 2 with {key}") as refused:
        plan_for(TWO_HOSTS, gpt_7b(**arguments))
    assert refused.value.exit_code == WRONG_USAGE


def test_a_plan_of_the_bundled_runtime_has_the_groups_in_which_replicas_share_experts() -> None:
    plan = plan_for(TWO_HOSTS, bundled(ep=8, tp=2, pp=1, dp=8))
    at = {(rank.dp_rank, rank.tp_rank): rank.rank for rank in plan.ranks}
    expected = {tuple(at[dp, tp] for dp in range(first, first + 4)) for tp in (0, 1) for first in (0, 4)}
    assert {group.ranks for group in plan.groups if group.axis == "ep"} == expected
    same = {(at[dp, tp], at[dp + 4, tp]) for tp in (0, 1) for dp in range(4)}
    assert {group.ranks for group in plan.groups if group.axis == "expert_dp"} == same
    assert all(len({plan.ranks[rank].host for rank in ranks}) == 1 for ranks in expected)
    left = [group for group in plan.groups if group.axis != "ep"]
    assert "ep/stage0/shard0/replica0" in " ".join(check_groups(plan.model_copy(update={"groups": tuple(left)})))
    assert run_config_of(plan, "run").ep == 8


def test_replicas_that_share_experts_run_equally_many_micro_batches() -> None:
    # With 6 replicas of the 7 batches there is no even share; two replicas, or four, have one.
    shape = gpt_7b(model=MODEL, global_batch_size=12, parallel={"ep": 2, "tp": 1, "pp": 1, "micro_batch_size": 1})
    assert len(set(plan_for(gpu_inventory([1]), shape).microbatches)) == 1


def test_each_shard_that_splits_experts_sends_the_rows_of_its_whole_replica() -> None:
    shared = PLAIN._replace(tp=2, dp=8, ep=8, splits_experts=True)
    # 1024 tokens x 1024 x 2 bytes x 4 experts are 8 MiB, 3 of 4 parts to other replicas; there and back.
    times = expert_parallel_s(SHAPE, shared, Path(100e9, 1e-6), Peers(8, 1e9))
    assert times.forward_s == pytest.approx(2 * (8 * 2**20 * 3 / 4 / 100e9 + 1e-6))
    # Of four hosts' slots, one replica in two is on another host.
    wide = expert_parallel_s(SHAPE, shared, Path(100e9), Peers(4, 1e9))
    assert wide.forward_s == pytest.approx(2 * 8 * 2**20 / 2 / (0.7 * 1e9))


def test_bytes_of_tokens_and_of_experts_gradients_are_counted_on_their_own_groups() -> None:
    plan = plan_for(TWO_HOSTS, bundled(ep=16, tp=1, pp=1, dp=16, micro_batch_size=1, recompute="none"))
    routed = 6 * 4 * 4 * 8 * 2**20 / 2  # layers, passes, micro-batches, half of the copies
    dense = stage_parameters(SHAPE, 6, True, True) - 6 * expert_parameters(SHAPE)
    exchanged = (2 + 4) * dense * 15 / 16  # a ring leaves each host once
    assert [each.sent_bytes for each in plan.prediction.traffic] == pytest.approx(
        [8 * routed + exchanged] * 2, rel=1e-3
    )


@pytest.mark.parametrize("seed", seeds(100, few=2, more=10))
def test_plans_of_shared_experts_are_as_fast_as_the_fastest_placement_by_brute_force(seed: int) -> None:
    found = gap(seed, drawn_bundled_fleet)
    assert found is not None
    assert found < 0.01  # of 48 fleets the farthest, where one more schedule than for others is to be chosen


@pytest.mark.slow
def test_a_run_goes_on_without_a_host_under_the_degree_that_is_fastest_then() -> None:
    three, two = (gpu_inventory([hosts], gpus_per_host=2, memory_bytes=16 * GIB) for hosts in (3, 2))
    model = {**MODEL, "hidden_size": 2048, "ffn_hidden_size": 5632, "num_kv_heads": 8, "seq_length": 4096}
    model |= {"experts": 16, "experts_per_token": 2, "expert_ffn": 2048}
    free = gpt_7b(model=model, global_batch_size=6)
    first = plan_for(three, free)
    assert (first.job.ep, first.free_degrees) == (2, ("ep",))
    second = Replanner(three).without(first, ("a3",))
    assert second.job.ep == plan_for(two, free).job.ep == 4


def test_a_degree_of_experts_that_job_yaml_fixes_is_kept_when_a_host_is_lost() -> None:
    first = plan_for(TWO_HOSTS, bundled(ep=16, tp=1, pp=1))
    assert "free_degrees" not in first.model_dump(mode="json")
    with pytest.raises(HolmesError, match=r"parallel\.ep 16"):
        Replanner(TWO_HOSTS).without(first, (first.nodes[1].host,))


@pytest.mark.slow
def test_a_free_degree_is_searched_for_the_bundled_runtime() -> None:
    free = plan_for(TWO_HOSTS, bundled(tp=1, pp=1))
    steps_s = [plan_for(TWO_HOSTS, bundled(tp=1, pp=1, ep=ep)).prediction.step_s for ep in (1, 2, 4, 8, 16)]
    assert free.prediction.step_s == pytest.approx(min(steps_s))
    assert free.job.ep > 1


def test_a_tensor_degree_that_does_not_divide_the_width_of_experts_is_refused() -> None:
    with pytest.raises(HolmesError, match=r"parallel\.tp 8 does not divide expert_ffn 516") as refused:
        plan_for(TWO_HOSTS, gpt_7b(model={**MODEL, "expert_ffn": 516}, global_batch_size=64, parallel={"tp": 8}))
    assert refused.value.exit_code == WRONG_USAGE


def test_tensor_shards_split_each_expert_and_compute_the_rows_of_all() -> None:
    one, two = (Candidate(tp, 1, 8, 1).execution(bundled()) for tp in (1, 2))
    assert (two.ep, two.expert_dp, one.row_shards, two.row_shards) == (2, 8, 1, 1)
    assert expert_parallel_s(SHAPE, two, Path(100e9), Peers(8, 1e9)).forward_s == 0
    assert expert_exchange_part(two, Peers(8, 1e9)) == 1
    assert Candidate(2, 1, 8, 1).rank_parameters(bundled(), (6,), 0) == stage_parameters(SHAPE, 6, True, True, 2, 2)
    # 1.1 x 4 copies of a token's 1024 values, and the gathered token, on both shards.
    halved = replace(SHAPE, experts=None, experts_per_token=None, expert_ffn=None, ffn_hidden_size=2253)
    rest = layer_activation_bytes(halved, two)
    assert layer_activation_bytes(SHAPE, two) - rest == pytest.approx(2 * 1024 * (4506 + 1024), rel=1e-3)


def test_the_closed_form_and_the_simulations_agree_where_shards_split_experts() -> None:
    plan = plan_for(TWO_HOSTS, bundled(tp=2, pp=1))
    assert plan.tp == 2
    assert plan.solve.placement_s == pytest.approx(plan.prediction.step_s, rel=0.1)


def test_layers_that_the_bundled_runtime_lacks_are_refused_by_key() -> None:
    with pytest.raises(HolmesError, match=r"model\.shared_experts with engine holmes") as refused:
        plan_for(TWO_HOSTS, gpt_7b(model={**MODEL, "shared_experts": 1}, global_batch_size=64))
    assert refused.value.exit_code == WRONG_USAGE


def test_the_bundled_runtime_exchanges_the_gradients_of_all_experts() -> None:
    plan = plan_for(TWO_HOSTS, bundled(pp=1, dp=16, ep=1))
    candidate = candidate_of(plan)
    assert (plan.job.ep, plan.tp) == (1, 1)
    assert candidate.execution(plan.job).expert_dp == 16
    # A bf16 run sends 4 bytes of each gradient and 2 of each weight of its 15/16, on each of a host's 8 NICs.
    exchanged = 15 / 16 * (4 + 2) * stage_parameters(SHAPE, 6, True, True)
    assert max(each.sent_bytes for each in plan.prediction.traffic) == pytest.approx(exchanged, rel=0.01)


def test_a_dense_model_has_no_expert_parallel_degree() -> None:
    with pytest.raises(HolmesError, match=r"parallel\.ep is 2, but the model has no experts") as refused:
        plan_for(TWO_HOSTS, gpt_7b(engine="megatron", parallel={"ep": 2}))
    assert refused.value.exit_code == WRONG_USAGE


@pytest.mark.parametrize(
    "parallel", few_of(1, [{"ep": 8, "pp": 2, "dp": 16}, {"ep": 16, "pp": 2, "dp": 16}, {"ep": 4}, {}])
)
def test_groups_of_experts_are_inside_clusters_and_pipelines_cross(parallel: dict[str, Any]) -> None:
    plan = plan_for(gpu_inventory([2, 2]), job(**parallel))
    assert misplaced_group(plan.job, plan.ranks) == ()
    assert {len(stage.clusters) for stage in plan.stages} == {1}
    if "dp" in parallel:
        assert {stage.clusters for stage in plan.stages} == {("a",), ("b",)}


@pytest.mark.parametrize(
    ("ep", "said"),
    [
        (8, "ranks 0 to 15, which share a stage's experts, on a1 of a and b1 of b"),
        (16, "no 1 stages of 16 tensor groups with enough memory, 16 of each kept together since they share experts"),
    ],
)
def test_stages_of_experts_over_clusters_are_refused(ep: int, said: str) -> None:
    with pytest.raises(HolmesError, match=said) as refused:
        plan_for(gpu_inventory([1, 1]), job(ep=ep, pp=1, dp=16, tp=1))
    assert refused.value.exit_code == ANSWER_IS_NO


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["x", "--tp", "{tp}"], r"it has no \{ep\}, --expert-tensor-parallel-size not set"),
        (["x", "--tp", "{tp}", "--ep={ep}", "--moe-token-dispatcher-type", "flex"], "it has {ep}, .* not set, .* flex"),
        (["x", "--tp", "{tp}", "--ep={ep}", "--expert-tensor-parallel-size=1"], "type not set"),
        (["x", "--moe-token-dispatcher-type=allgather"], "allgather, but experts are priced with alltoall"),
    ],
)
def test_commands_that_run_other_groups_or_another_dispatcher_are_refused(command: list[str], said: str) -> None:
    wrong = job(ep=8).model_dump() | {"data": None, "trainer": {"engine": "megatron", "command": command}}
    with pytest.raises(HolmesError, match=said) as refused:
        plan_for(TWO_HOSTS, Job.model_validate(wrong))
    assert refused.value.exit_code == WRONG_USAGE


def test_a_command_with_placeholders_is_given_the_degree() -> None:
    words = ["x", "{tp}", "{ep}", "--expert-tensor-parallel-size", "1", "--moe-token-dispatcher-type", "alltoall"]
    right = job(ep=8, tp=2).model_dump() | {"data": None, "trainer": {"engine": "megatron", "command": words}}
    assert plan_for(TWO_HOSTS, Job.model_validate(right)).job.ep == 8


def sharded(**fixed: Any) -> Job:
    """A job of Megatron-LM whose tensor shards split experts."""
    data = job(**{"ep": 2, "etp": 4, "tp": 4, **fixed}).model_dump() | {"data": None}
    return Job.model_validate(data | {"trainer": {"engine": "megatron", "command": ["x"]}})


def test_tensor_shards_of_experts_form_groups_of_both_degrees() -> None:
    plan = plan_for(TWO_HOSTS, sharded(pp=1, dp=4))
    words = engine_arguments(plan)
    at = words.index("--expert-model-parallel-size")
    assert words[at : at + 4] == ("--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "4")
    execution = Candidate(4, 1, 4, 1).execution(plan.job)
    assert (execution.ep, execution.etp, execution.expert_dp) == (8, 4, 2)


def test_ranks_that_share_an_expert_gather_rows_and_scatter_results() -> None:
    shared = PLAIN._replace(tp=4, dp=4, ep=8, etp=4)
    # 1024 tokens x 1024 x 2 bytes x 4 experts on 4 shards are 2 MiB: half go to the other part of the experts, and each
    # shard gets 2 MiB of each of three others; there and back.
    times = expert_parallel_s(SHAPE, shared, Path(100e9), Peers(8, 1e9))
    assert times.forward_s == pytest.approx(2 * (2 * 2**20 / 2 + 3 * 2 * 2**20) / 100e9)
    alone = expert_parallel_s(SHAPE, shared._replace(dp=1, ep=4), Path(100e9), Peers(8, 1e9))
    assert alone.forward_s == pytest.approx(2 * 3 * 2 * 2**20 / 100e9)
    # 1.1 x 4 copies of a token's 1024 values, of the rows of four shards instead of one's.
    whole, split = (layer_activation_bytes(SHAPE, shared._replace(etp=etp)) for etp in (1, 4))
    assert split - whole == pytest.approx(2 * 1024 * 4506 * 3 / 4, rel=1e-3)


def test_tokens_that_are_sent_once_go_to_every_shard_of_an_expert() -> None:
    few = replace(SHAPE, experts=8, experts_per_token=2)
    shared = PLAIN._replace(tp=4, dp=8, ep=32, etp=4, sends_once=True)
    chosen = 1 - comb(7, 2) / comb(8, 2)  # of one part in eight, on one host in four
    parts = routed_parts(few, shared, Peers(8, 1e9))
    assert parts.inside == pytest.approx(32 * chosen * 7 / 8 / 2)
    assert parts.outside == pytest.approx(3 * (1 - comb(6, 2) / comb(8, 2)) / 2)
    on_one = expert_parallel_s(few, shared._replace(dp=2, ep=8), Path(100e9), Peers(8, 1e9))
    copies = 1024 * 1024 * 2 * 2 / 4
    assert on_one.forward_s == pytest.approx(2 * copies * 8 * (1 - comb(4, 2) / comb(8, 2)) * 7 / 8 / 2 / 100e9)


def test_shards_of_experts_multiply_narrower_matrices_and_sort_more_rows() -> None:
    speed = Speed(1e15, half_size=3e5, memory_bytes_per_s=3e12)
    whole, split = (layer_s(SHAPE, PLAIN._replace(tp=4, dp=4, ep=8, etp=etp), speed).forward_s for etp in (1, 4))
    rows, width = 1024 / 4 * 8 * 4, SHAPE.expert_size  # of all experts of a group
    flops = 2 * 3 * 1024 * 1024 * width * 4 / 4
    longer = flops / (0.9 * 1e15) * 3e5 * (4 - 1) / (rows / 32 * width)
    sorted_s = 8 * 1024 * 4 * 1024 / 4 * 3 / 2 * 2 / 3e12  # four passes, read and written
    assert split - whole == pytest.approx(longer + sorted_s, rel=1e-6)


def test_a_free_degree_of_experts_on_tensor_shards_is_no_slower_than_fixed_ones() -> None:
    free = plan_for(TWO_HOSTS, sharded(ep=None, pp=1, dp=4))
    steps_s = {ep: plan_for(TWO_HOSTS, sharded(ep=ep, pp=1, dp=4)).prediction.step_s for ep in (1, 2, 4)}
    assert free.prediction.step_s == min(steps_s.values())
    assert steps_s[free.job.parallel.ep or 1] == free.prediction.step_s


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (sharded(etp=2), "parallel.etp is 2 and parallel.tp 4: an expert is whole, or split as"),
        (sharded(ep=3), "parallel.ep is 3, model.experts 32 and parallel.tp 4"),
        (bundled(etp=1), "parallel.etp is 1 with the bundled runtime, whose tensor shards always split experts"),
        (gpt_7b(parallel={"etp": 1}), "parallel.etp is 1, but the model has no experts"),
    ],
)
def test_other_tensor_shards_of_experts_are_refused(wrong: Job, said: str) -> None:
    with pytest.raises(HolmesError, match=said) as refused:
        plan_for(TWO_HOSTS, wrong)
    assert refused.value.exit_code == WRONG_USAGE


def test_groups_over_parts_of_hosts_are_found() -> None:
    plan = plan_for(TWO_HOSTS, job(ep=8, pp=1, dp=16, tp=1))
    first, rest = plan.ranks[0], plan.ranks[1:]
    turned = [*rest, first]
    moved = [rank.model_copy(update={"rank": number}) for number, rank in enumerate(turned)]
    assert misplaced_group(plan.job, plan.ranks) == ()
    assert [rank.rank for rank in misplaced_group(plan.job, moved)] == list(range(8))


@pytest.mark.slow
def test_the_certificate_in_the_file_and_the_bound_are_those_of_the_free_degree(tmp_path: pathlib.Path) -> None:
    free, file = plan_for(TWO_HOSTS, job(), lp=tmp_path / "free.lp"), tmp_path / "fixed.lp"
    fixed = [plan_for(TWO_HOSTS, job(ep=ep)) for ep in (1, 2, 4, 8, 16)]
    bounds_s = [plan.solve.step_bound_s for plan in fixed]
    plan_for(TWO_HOSTS, free.job, lp=file)
    assert (tmp_path / "free.lp").read_text() == file.read_text()
    assert free.prediction.step_s == min(plan.prediction.step_s for plan in fixed)
    assert free.solve.step_bound_s == min(bound_s for bound_s in bounds_s if bound_s is not None)


def test_megatron_is_given_the_groups_that_are_priced() -> None:
    data = job(ep=8, tp=2).model_dump() | {"data": None}
    for command, dispatcher in ((["x"], ["alltoall"]), (["x", "--moe-token-dispatcher-type", "flex"], [])):
        job_of_command = Job.model_validate(data | {"trainer": {"engine": "megatron", "command": command}})
        words = engine_arguments(plan_for(TWO_HOSTS, job_of_command))
        at = words.index("--expert-model-parallel-size")
        assert words[at : at + 5] == (
            *words[at : at + 1],
            "8",
            "--expert-tensor-parallel-size",
            "1",
            "--moe-grouped-gemm",
        )
        found = [words[i + 1] for i, word in enumerate(words) if word == "--moe-token-dispatcher-type"]
        assert found == dispatcher


def test_plans_of_dense_models_have_no_key_of_experts() -> None:
    said = json.loads(gpt_7b().model_dump_json())
    assert not {"ep", "experts", "first_dense_layers"} & {*said["model"], *said["parallel"]}
    assert json.loads(job(ep=8).model_dump_json())["model"]["experts"] == 32


def test_a_dense_layer_is_the_same_with_and_without_the_layers_around_it() -> None:
    dense = replace(SHAPE, experts=None, experts_per_token=None, expert_ffn=None)
    assert SHAPE.dense == dense


def test_the_bundled_loop_holds_a_layers_gradients_and_launches_each_expert() -> None:
    bundled = Execution(1, 16, 1, 2, "none", splits_experts=True)
    held, plain = (memory_bytes(SHAPE, each, (1,), (0,), False, False) for each in (bundled, PLAIN._replace(ep=1)))
    assert held - plain == 2 * expert_parameters(SHAPE) * 4 // 3
    speed, tiny = Speed(1e18, launch_s=1e-3), replace(SHAPE, seq_length=1)
    assert layer_s(tiny, bundled._replace(value_bytes=4), speed).forward_s == pytest.approx(1e-3 + 32 * 5e-4)
    assert layer_s(tiny, bundled, speed).forward_s == pytest.approx(1e-3)  # in bf16 all at once
    assert layer_s(tiny, PLAIN._replace(ep=1), speed).forward_s == pytest.approx(1e-3)
