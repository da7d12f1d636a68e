"""First layers without experts: prices by stage, and bounds against every cut of small drawn fleets."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from holmes_cli.screen.show_plan import plan_sentences
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.model_shape import expert_parameters, layer_parameters
from planner.cost.collectives import PassTimes
from planner.cost.rank_memory import memory_bytes
from planner.cost.slot import dense_layer_s, first_dense
from planner.cost.trained import dense_layers
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients, slot_s
from planner.problem.problem import read_problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.schedule.placement_simulator import PlacementSimulator
from planner.search.branch_and_bound import search
from planner.search.closed_form import SiteBlock, blocks_step_s, site_stage_s
from planner.search.cluster_sets import ClusterSets
from planner.search.crossing_room import CrossingRoom
from planner.search.early_bounds import EarlyBounds
from planner.search.greedy import place_greedily
from planner.search.lower_bounds import LowerBounds
from planner.search.placement import Placement, even_shares
from planner.search.program_spec import ProgramSpec
from planner.search.solve import placement_of, solve
from planner.search.whole_replicas import _cut as common_cut
from tests.planner.enumerator import all_blocks, compositions, random_coefficients
from tests.planner.fleets import A100, GIB, gpt_7b, gpu_inventory, plan_for
from tests.planner.test_expert_groups import MODEL, TWO_HOSTS, job
from tests.planner.test_lower_bounds import slowest_stage_s
from tests.seeds import few_of

DEEP = {**MODEL, "hidden_size": 4096, "expert_ffn": 1024, "num_layers": 7}


def drawn(seed: int) -> Coefficients:
    """A drawn candidate; its one to three first layers are faster or slower, and smaller or larger, than others."""
    some, draw = random_coefficients(seed), random.Random(seed)
    number = draw.randint(1, 3)
    factor = draw.uniform(0.3, 1.6)
    return replace(
        some,
        num_layers=some.num_layers + number,
        capacity=tuple(tuple(most + number for most in row) for row in some.capacity),
        dense=tuple(PassTimes(factor * each.forward_s, factor * each.backward_s) for each in some.layer),
        first_dense=number,
        dense_sync_bytes=draw.randint(0, 5),
    )


@pytest.mark.parametrize("seeds", few_of(1, [range(12), range(12, 60)]), ids=["few", "more"])
@pytest.mark.parametrize("mixed", [False, True])
def test_no_cut_beats_the_bounds(mixed: bool, seeds: range) -> None:
    for seed in seeds:
        coeffs = drawn(seed)
        bounds = LowerBounds(coeffs, mixed)
        sets, room = None if mixed else ClusterSets(bounds), CrossingRoom(coeffs) if mixed else None
        for blocks in all_blocks(coeffs, mixed):
            pace_s, step_s = slowest_stage_s(coeffs, blocks), blocks_step_s(coeffs, blocks) * (1 + 1e-9)
            assert bounds.at_pace_s(pace_s) <= step_s, (seed, blocks)
            assert (bounds.full_bound_s or step_s + 1) <= step_s, (seed, blocks)
            assert sets is None or sets.least_s(pace_s, bounds.within(pace_s)) <= step_s, (seed, blocks)
            assert room is None or room.may_hold(pace_s, step_s), (seed, blocks)


@pytest.mark.parametrize("seeds", few_of(1, [range(20), range(20, 60)]), ids=["few", "more"])
def test_the_program_finds_the_best_cut(seeds: range) -> None:
    for seed in seeds:
        coeffs = drawn(seed)
        least_s = min((blocks_step_s(coeffs, blocks) for blocks in all_blocks(coeffs, False)), default=None)
        spec = ProgramSpec(coeffs, slowest_s=max(LowerBounds(coeffs).paces_s))
        found = placement_of(spec, solve(spec))
        assert (found is None) == (least_s is None), seed
        assert found is None or found.objective_s == pytest.approx(least_s), seed
        bounds = LowerBounds(coeffs)
        for pace_s in bounds.paces_s[bounds.first_pace :][:3]:
            greedy = place_greedily(bounds, pace_s)
            assert greedy is None or greedy.seconds >= (least_s or 0) * (1 - 1e-9), seed


def test_whole_replicas_have_the_cut_whose_slowest_stage_is_fastest() -> None:
    cuts = 0
    for seed in range(120):
        coeffs = drawn(seed)
        pp, classes = coeffs.candidate.pp, range(len(coeffs.group_slots))
        slowest = max(classes, key=lambda c: coeffs.layer_s[c])
        coeffs = replace(coeffs, dense=tuple(coeffs.dense[slowest] for _ in classes))
        paces_s = {
            layers: max(site_stage_s(coeffs, (slowest,), held, (s == 0, s == pp - 1)) for s, held in enumerate(layers))
            for layers in compositions(coeffs.num_layers, pp, 1)
            if layers[0] >= coeffs.first_dense and all(held <= min(coeffs.capacity[s]) for s, held in enumerate(layers))
        }
        cut = common_cut(coeffs, classes)
        assert (cut is None) == (not paces_s), seed
        if cut is not None:
            assert paces_s[cut] <= min(paces_s.values()) * (1 + 1e-9), seed
            cuts += 1
    assert cuts > 40


@pytest.mark.parametrize("first", few_of(1, range(0, 60, 20)))
def test_the_search_finds_the_best_cut_of_drawn_jobs_and_no_simulated_one_beats_the_bounds(first: int) -> None:
    for seed in range(first, first + 20):
        draw = random.Random(seed)
        model: dict[str, Any] = {**DEEP, "first_dense_layers": draw.randint(1, 3)}
        model["ffn_hidden_size"] = draw.choice((1024, 4096, 16384))
        ep, pp = draw.choice(((4, 2), (2, 2), (8, 1), (4, 4), (2, 4), (8, 2)))
        degrees = {"ep": ep, "pp": pp, "tp": 1, "dp": 16 // pp, "micro_batch_size": draw.choice((1, 2))}
        problem = read_problem(TWO_HOSTS, job(model, **degrees, schedule="1f1b", recompute="none"))
        candidate = Candidate(1, pp, 16 // pp, degrees["micro_batch_size"])
        coeffs, early = problem.coefficients(candidate), EarlyBounds(problem)
        any_s = AnyScheduleBounds(problem).least_s([candidate])
        found = []
        for layers in compositions(7, pp, 1):
            if any(held > room[0] for held, room in zip(layers, coeffs.capacity, strict=True)):
                continue
            placement = Placement(candidate, layers, ((0,) * candidate.dp,) * pp, (64 // candidate.dp,) * candidate.dp)
            shares = even_shares(coeffs.total_microbatches, candidate.dp)
            simulator = PlacementSimulator(problem.job, coeffs, replace(placement, microbatches=shares))
            (mode,) = simulator.modes()
            step_s = simulator.timed(mode).step_s * (1 + 1e-9)
            assert any_s <= step_s, (seed, layers)
            assert simulator.least_s <= step_s, (seed, layers)
            if layers[0] >= coeffs.first_dense:
                found.append(blocks_step_s(coeffs, [SiteBlock((0,), layers)]))
        assert early.compute_s(candidate) <= min(found) * (1 + 1e-9), seed
        assert (early.whole_layers_s(candidate, False) or 0) <= min(found) * (1 + 1e-9), seed
        result = search(problem, 60)
        assert result.found[0].objective_s == pytest.approx(min(found), rel=1e-6), seed
        assert result.bound_s <= min(found) * (1 + 1e-9), seed


def test_a_stage_is_priced_by_the_layers_that_it_holds() -> None:
    problem = read_problem(TWO_HOSTS, job({**DEEP, "first_dense_layers": 3}, ep=4, pp=4, tp=1, micro_batch_size=1))
    candidate = Candidate(1, 4, 4, 1)
    coeffs, execution, model = problem.coefficients(candidate), candidate.execution(problem.job), problem.job.model
    assert dense_layers(model, (2, 2, 2, 1)) == (2, 1, 0, 0)
    slot = problem.fleet.classes[0].hardware.slot
    (expert, _), dense = slot_s(problem.job, slot, execution), dense_layer_s(problem.job, execution, slot)
    assert dense.both_s < expert.both_s
    placement = Placement(candidate, (2, 2, 2, 1), ((0,) * 4,) * 4, (16,) * 4)
    (_, replica) = PlacementSimulator(problem.job, coeffs, placement)._lanes[0]
    seconds = [forward_s for forward_s, _ in replica.compute_s(placement.layers)]
    assert seconds[:3] == pytest.approx([2 * dense.forward_s, dense.forward_s + expert.forward_s, 2 * expert.forward_s])

    parameters = [candidate.rank_parameters(problem.job, placement.layers, rank) for rank in (1, 2)]
    assert parameters[0] - parameters[1] == layer_parameters(model.dense) - layer_parameters(model, 1, 4)
    weighed = [candidate.weighed_parameters(problem.job, placement.layers, rank, 0.0) for rank in (1, 2)]
    assert [size - less for size, less in zip(parameters, weighed, strict=True)] == [
        expert_parameters(model, 4),
        2 * expert_parameters(model, 4),
    ]
    held = [memory_bytes(model, execution, (2,), (3,), False, False, (dense,)) for dense in (0, 1, 2)]
    assert held[0] - held[1] == pytest.approx(held[1] - held[2], abs=8192)
    assert held[0] > held[1]


def test_a_deep_pipeline_takes_each_layer_to_be_of_the_faster_kind() -> None:
    some = job({**DEEP, "first_dense_layers": 2})
    assert [first_dense(some, pp) for pp in (1, 2, 3, 4, 7)] == [2, 2, 2, 0, 0]
    fixed = job({**DEEP, "first_dense_layers": 2}, layers=[1, 2, 2, 2])
    assert first_dense(fixed, 4) == 0
    problem = read_problem(TWO_HOSTS, job({**DEEP, "first_dense_layers": 2}, ep=4, pp=4, dp=4, tp=1))
    assert search(problem, 60).status == "near optimal"
    assert plan_for(TWO_HOSTS, problem.job).solve.status == "near optimal"
    coeffs = problem.coefficients(Candidate(1, 4, 4, 1))
    assert coeffs.layer_s[0] == min(coeffs.layer[0].both_s, coeffs.dense[0].both_s)


def test_pipelines_of_61_layers_are_planned_on_16_stages() -> None:
    model = {**MODEL, "num_layers": 61, "first_dense_layers": 3}
    plan = plan_for(TWO_HOSTS, job(model, pp=16, tp=1, dp=1, micro_batch_size=1, schedule="1f1b"))
    assert sum(stage.num_layers for stage in plan.stages) == 61
    assert plan.stages[0].num_layers >= 3


def small_memory_plan(gib: int, cut: tuple[int, ...] | None = None) -> Plan:
    """A plan of four wide layers without experts and four narrow ones with, on four A100 of that memory."""
    fleet = gpu_inventory([1], gpus_per_host=4, gpu_name=A100, memory_bytes=gib * GIB, rdma_gbps=400.0)
    model = {
        **{"family": "llama", "num_layers": 8, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8},
        **{"ffn_hidden_size": 32768, "vocab_size": 32000, "seq_length": 4096},
        **{"experts": 8, "experts_per_token": 2, "expert_ffn": 512, "first_dense_layers": 4},
    }
    parallel = {"ep": 2, "pp": 2, "tp": 1, "dp": 2, "layers": cut}
    return plan_for(fleet, gpt_7b(model=model, global_batch_size=8, parallel=parallel, trainer={"engine": "megatron"}))


@pytest.mark.parametrize("gib", few_of(1, [18, 20, 22, 26]))
def test_layers_without_experts_that_the_first_stage_has_no_room_for_go_to_the_next(gib: int) -> None:
    plan, fixed = small_memory_plan(gib), small_memory_plan(gib, (2, 6))
    assert plan.prediction.step_s <= fixed.prediction.step_s
    assert max(plan.prediction.memory_bytes) <= gib * GIB
    assert plan.solve.status == "near optimal"


def test_a_refusal_names_the_least_memory_of_cuts_between_layers_without_experts() -> None:
    for cut in (None, (2, 6)):
        with pytest.raises(HolmesError, match=r"needs 16\.7 GiB"):
            small_memory_plan(16, cut)


def unlike_clusters_job(cut: tuple[int, ...] | None = None, **parallel: Any) -> tuple[Inventory, Job]:
    """Two GPUs in each of two clusters, the first one faster, and two of four layers without experts."""
    fleet = gpu_inventory([1, 1], gpus_per_host=2, gpu_name=A100, memory_bytes=24 * GIB, rdma_gbps=400.0)
    hosts = list(fleet.hosts)
    fast = [gpu.model_copy(update={"name": "NVIDIA H100 80GB HBM3"}) for gpu in hosts[0].gpus]
    hosts[0] = hosts[0].model_copy(update={"gpus": tuple(fast)})
    model = {
        **{"family": "llama", "num_layers": 4, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 8},
        **{"ffn_hidden_size": 2048, "vocab_size": 32000, "seq_length": 4096},
        **{"experts": 8, "experts_per_token": 2, "expert_ffn": 512, "first_dense_layers": 2},
    }
    degrees = {"pp": 2, "tp": 1, "micro_batch_size": 1, "layers": cut, **parallel}
    some = gpt_7b(model=model, global_batch_size=4, parallel=degrees, trainer={"engine": "megatron"})
    return fleet.model_copy(update={"hosts": tuple(hosts)}), some


def test_cuts_between_layers_without_experts_are_tried_and_none_is_proven_best() -> None:
    plan = plan_for(*unlike_clusters_job(ep=2, recompute="none"))
    steps_s = [
        plan_for(*unlike_clusters_job((held, 4 - held), ep=2, recompute="none")).prediction.step_s for held in (1, 2, 3)
    ]
    assert plan.prediction.step_s == pytest.approx(min(steps_s))
    assert min(steps_s) == steps_s[0]
    assert plan.solve.status == "near optimal"
    assert not any("proven" in sentence for sentence in plan_sentences(plan, unlike_clusters_job()[0]))


@pytest.mark.parametrize("chunks", [None, 2])
def test_a_fixed_interleaved_schedule_runs_where_the_search_gives_a_stage_fewer_layers(chunks: int | None) -> None:
    unlike, some = unlike_clusters_job(schedule="interleaved", chunks=chunks, ep=2, recompute="none")
    for fleet in (unlike, gpu_inventory([1], gpus_per_host=4, gpu_name=A100, memory_bytes=80 * GIB)):
        plan = plan_for(fleet, some)
        assert (plan.schedule, [stage.num_layers for stage in plan.stages]) == ("interleaved", [1, 1, 1, 1])


def test_no_simulated_run_in_chunks_beats_its_bounds() -> None:
    runs = 0
    for seed in range(40):
        draw = random.Random(seed)
        model: dict[str, Any] = {**DEEP, "num_layers": draw.randint(4, 8), "first_dense_layers": draw.randint(1, 3)}
        model["ffn_hidden_size"] = draw.choice((1024, 4096, 16384))
        problem = read_problem(TWO_HOSTS, job(model, pp=2, tp=1, ep=draw.choice((1, 4)), micro_batch_size=1))
        candidate = Candidate(1, 2, draw.choice((4, 8)), 1)
        coeffs, layers = problem.coefficients(candidate), model["num_layers"]
        any_s = AnyScheduleBounds(problem).least_s([candidate])
        for held in range(2, layers - 1):
            shares = even_shares(coeffs.total_microbatches, candidate.dp)
            placement = Placement(candidate, (held, layers - held), ((0,) * candidate.dp,) * 2, shares)
            simulator = PlacementSimulator(problem.job, coeffs, placement)
            for mode in simulator.allowed_modes():
                step_s = simulator.timed(mode).step_s * (1 + 1e-9)
                bounds_s = any_s, simulator.least_s, simulator.lower_bound_s(mode)
                assert max(bounds_s) <= step_s, (seed, mode, bounds_s)
                runs += mode.chunks > 1
    assert runs > 60
