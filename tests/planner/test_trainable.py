"""Fine-tuning of a part of the parameters: counts and seconds by hand, and the placements that follow."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.best_simulated import all_modes, all_placements
from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_core.records.trainer_settings import TrainerName
from holmes_runtime.config.model_shape import ModelShape, expert_parameters, step_flops
from holmes_runtime.config.trainable import Lora, Matrix, Trainable, adapter_parameters, trained_step_flops
from launcher.prepare.prepare import run_config_of
from planner.advice.advise import advise
from planner.advice.engine_price import trained_sentence
from planner.cost import counts as cost
from planner.cost.compute_time import head_s, layer_s
from planner.cost.engines import engine_of
from planner.cost.gpu_speeds import constant_speed
from planner.cost.rank_memory import memory_bytes
from planner.cost.trained import ParameterCount, stage_of
from planner.layout.write_out import contender_step_s
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem, read_problem
from planner.problem.sharded_weights import WeightTraffic
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender
from planner.search.placement import Placement, PricedPlacement
from tests.planner.fleets import UNHURRIED, bed_job, gpu_inventory, plan_for
from tests.planner.test_any_schedule_bound import best_by_candidate
from tests.planner.test_counts import TINY, execution_of
from tests.planner.trainer_plans import trainer_job

LORA = {"lora": {"rank": 16, "targets": ["qkv", "projection", "up", "down"]}}
SMALL = {"num_layers": 8, "hidden_size": 4096, "num_heads": 32, "seq_length": 2048, "vocab_size": 32000}
LLAMA = ModelShape(
    family="llama", num_layers=2, hidden_size=4, num_heads=2, num_kv_heads=1, seq_length=6, vocab_size=10
)


def lora(*targets: Matrix, rank: int = 2) -> Trainable:
    """Adapters of those matrices."""
    return Trainable(lora=Lora(rank=rank, targets=targets))


def job_of(engine: TrainerName, trainable: dict[str, Any] | None = LORA, **changes: Any) -> Job:
    """A model of 1.9 billion parameters with `trainable` as given."""
    return trainer_job(engine, **{"model": SMALL, "global_batch_size": 32, "trainable": trainable} | changes)


def bundled(trainable: dict[str, Any] | None = LORA, **changes: Any) -> Job:
    """The same model under the bundled runtime."""
    return bed_job(
        **{"model": SMALL, "device": "cuda", "compute": {}, "parallel": {}, "trainable": trainable} | changes
    )


def test_adapters_are_counted_by_hand() -> None:
    # query 4 -> 4, key 4 -> 2, down 16 -> 4, of rank 2.
    assert adapter_parameters(LLAMA, Lora(rank=2, targets=("query", "key", "down"))) == 2 * (8 + 6 + 20)
    assert adapter_parameters(LLAMA, Lora(rank=2, targets=("qkv",))) == 2 * (4 + 8)
    # On two shards B of the query and A of down are split, A of the query and B of down whole.
    assert adapter_parameters(LLAMA, Lora(rank=2, targets=("query", "down")), tp=2) == 2 * (4 + 2) + 2 * (8 + 4)


def test_a_stage_has_trained_and_frozen_parameters() -> None:
    # TINY: 244 parameters a layer, 40 + 24 of the embedding, 40 + 8 of the head.
    assert stage_of(TINY, None, 2, (True, True)) == ParameterCount(2 * 244 + 64 + 48)
    assert stage_of(TINY, lora("query"), 1, (True, False)) == ParameterCount(2 * 8, 244 + 64)
    assert stage_of(TINY, Trainable(frozen_layers=1), 2, (True, True)) == ParameterCount(244 + 48, 244 + 64)
    both = Trainable(lora=Lora(rank=2, targets=("query",)), frozen_layers=1)
    assert stage_of(TINY, both, 2, (True, True)) == ParameterCount(2 * 8, 2 * 244 + 64 + 48)


@pytest.mark.parametrize(
    ("engine", "candidate", "trained", "frozen"),
    [
        # DDP: fp32 weights, sums and moments on every rank. Others: weights 2 and sums 2 or 4, states by replicas.
        ("torch", Candidate(1, 1, 4, 1), 4 + 4 + 8, 2),
        ("deepspeed", Candidate(1, 1, 4, 1), 2 + 2 + 12 / 4, 2),
        ("megatron", Candidate(1, 1, 4, 1), 2 + 4 + 12 / 4, 2),
        ("megatron", Candidate(1, 1, 8, 1, instances=2), 2 + 4 + 12 / 4, 2),
        ("accelerate", Candidate(1, 1, 4, 8, weight_shards=4), (4 + 4 + 8) / 4, 2 / 4),
        ("torchtitan", Candidate(1, 1, 8, 1, weight_shards=4), (4 + 4 + 8) / 4, 2 / 4),  # HSDP
        # A pipeline of ZeRO-3 keeps weights and sums whole until the last micro-batch.
        ("torchtitan", Candidate(1, 2, 4, 1, weight_shards=4), (4 + 4 + 8) / 4 + 2 + 4, 2 / 4 + 2),
    ],
)
def test_frozen_parameters_are_weights_alone(
    engine: TrainerName, candidate: Candidate, trained: float, frozen: float
) -> None:
    execution = candidate.execution(job_of(engine))
    assert cost.state_bytes(100, execution) == 100 * trained
    assert cost.state_bytes(100, execution, frozen=1000) == 100 * trained + 1000 * frozen


def test_memory_by_hand() -> None:
    # Last rank: 16 trained parameters of 18 bytes and 292 frozen ones of 2; two micro-batches of the activations below;
    # logits as ever.
    execution = execution_of(trainable=lora("query"))
    kept = 6 * 2 * (64 - 4 - 16 + 2)
    assert cost.layer_activation_bytes(TINY, execution) == kept
    assert memory_bytes(TINY, execution, [1], [2], False, True) == 18 * 16 + 2 * 292 + 2 * kept + 600


def test_frozen_matrices_keep_inputs_for_adapters_alone() -> None:
    def kept(trainable: Trainable | None, **changes: Any) -> int:
        """Values a token."""
        return cost.layer_activation_bytes(LLAMA, execution_of(trainable=trainable, **changes)) // (6 * 2)

    alone = kept(None)
    assert kept(lora("query", "gate", "down")) == alone + 3 * 2
    assert kept(lora("gate", "down")) == alone + 2 * 2 - 4  # not the input of queries, keys and values
    assert kept(lora("query", "down")) == alone + 2 * 2 - 4  # nor of the MLP
    assert kept(lora("query", "up")) == alone + 2 * 2 - 16  # nor of `down`
    assert kept(lora("query"), recompute="selective") == kept(None, recompute="selective") + 2
    assert kept(lora("query"), recompute="full") == 4
    # First layers without a backward keep nothing.
    half = execution_of(trainable=Trainable(frozen_layers=1))
    states = 18 * 292 + 2 * (244 + 64)
    assert memory_bytes(TINY, half, [2], [3], True, True) == states + 3 * 768 + 600


def test_weights_that_are_frozen_have_no_gradient_to_compute() -> None:
    speed, execution = constant_speed(1e6), execution_of()
    full, adapted = (layer_s(TINY, execution._replace(trainable=each), speed) for each in (None, lora("query", "down")))
    # 192 weights of matrices and 6 tokens; adapters of 16 and 40 weights. Attention has 4 b s^2 q = 576 FLOPs.
    assert full.forward_s == pytest.approx((2 * 6 * 192 + 576) / 1e6)
    assert adapted.forward_s == pytest.approx(full.forward_s + 2 * 6 * 56 / 1e6)
    assert adapted.backward_s == pytest.approx(2 * adapted.forward_s - 2 * 6 * 192 / 1e6)
    head, frozen = (head_s(TINY, execution._replace(trainable=each), speed) for each in (None, lora("query")))
    assert frozen.backward_s == pytest.approx(frozen.forward_s) == head.backward_s / 2


def test_only_trained_parameters_are_exchanged() -> None:
    fleet = gpu_inventory([1, 1], gpus_per_host=2)
    coeffs = read_problem(fleet, job_of("megatron")).coefficients(Candidate(1, 1, 4, 1))
    adapters = 16 * (4096 + 3 * 4096 + 2 * 4096 + 2 * (4096 + 16384))
    assert coeffs.layer_sync_bytes == (4 + 2) * adapters
    assert coeffs.sync_bytes(0, 8) == 8 * (4 + 2) * adapters
    whole = read_problem(fleet, job_of("megatron", None)).coefficients(Candidate(1, 1, 4, 1))
    assert whole.layer_sync_bytes > 100 * coeffs.layer_sync_bytes


def test_sharded_frozen_weights_are_gathered_and_not_reduced() -> None:
    # Two hosts of one GPU: a rank sends half of what is gathered in each of its two micro-batches, layers twice, and
    # half of the adapters' gradients in fp32.
    fixed = {"micro_batch_size": 8, "zero": 3, "dp": 2}
    plan = plan_for(gpu_inventory([2], gpus_per_host=1), job_of("torch", parallel=fixed))
    whole, layers = (stage_of(plan.job.model, plan.job.trainable, 8, (ends, ends)) for ends in (True, False))
    assert plan.microbatches == (2, 2)
    sent = (2 * 2 * (whole.whole + layers.whole) + 2 * 4 * layers.trained) // 2
    assert {traffic.sent_bytes for traffic in plan.prediction.traffic} == {sent}


def test_first_layers_are_gathered_for_forwards_alone() -> None:
    traffic = WeightTraffic(2.0, 1.0, 0.0, backward_share=0.25)
    nothing = layer_s(TINY, execution_of(), constant_speed(1e30))
    assert (traffic.under(nothing).forward_s, traffic.under(nothing).backward_s) == (2.0, 1.5)


def test_frozen_first_layers_take_a_forward_and_no_exchange() -> None:
    fleet, fixed = gpu_inventory([1], gpus_per_host=2), {"micro_batch_size": 4, "dp": 2, "tp": 1, "pp": 1}
    plans = [
        plan_for(fleet, job_of("megatron", trainable, parallel=fixed)) for trainable in (None, {"frozen_layers": 6})
    ]
    full, frozen = (plan.prediction for plan in plans)
    assert full.compute_s * (1 / 3 + 2 / 3 / 4) < frozen.compute_s < full.compute_s * 0.75
    assert frozen.memory_bytes[0] < 0.5 * full.memory_bytes[0]
    assert frozen.optimizer_s < 0.4 * full.optimizer_s
    free = plan_for(gpu_inventory([1, 1], gpus_per_host=2), job_of("megatron", {"frozen_layers": 6}))
    assert free.pp == 1


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "torch"])
def test_adapters_turn_the_placement_around(engine: TrainerName) -> None:
    fleet = gpu_inventory([1, 1], gpus_per_host=2, shared_gbps=10.0)
    full, adapted = (plan_for(fleet, job_of(engine, trainable)) for trainable in (None, LORA))
    crossing = {
        axis: [group for group in adapted.groups if group.axis.startswith(axis) and group.network == "shared"]
        for axis in ("pp", "dp")
    }
    assert (adapted.pp, adapted.dp) == (1, 4)
    assert crossing["dp"]
    assert not crossing["pp"]
    assert full.dp < adapted.dp
    assert full.pp > 1 or len({rank.cluster for rank in full.ranks}) == 1
    assert adapted.prediction.step_s < 0.6 * full.prediction.step_s
    if engine == "megatron":  # as docs/planning.md says
        assert [round(plan.prediction.step_s, 2) for plan in (full, adapted)] == [1.41, 0.67]
        assert (full.pp, full.dp) == (4, 1)
        (sentence,) = trained_sentence(fleet, adapted, 600.0)
        assert sentence == (
            "8,388,608 parameters train, 0.44% of all; training all would take 1.41 s per step at tp 1, pp 4, dp 1 "
            "instead of 669 ms at tp 1, pp 1, dp 4."
        )
        assert trained_sentence(fleet, full, 600.0) == ()
        (of_many,) = advise(gpu_inventory([65], gpus_per_host=2), adapted, {}, UNHURRIED).engine
        assert of_many == sentence.partition(";")[0] + "."


def fastest(problem: Problem) -> tuple[Candidate, float]:
    """Return the fastest placement's candidate and predicted step, over all schedules of the job's engine."""
    best: tuple[RunMode, Placement] | None = None
    for placement in all_placements(problem):
        simulator = PlacementSimulator(problem.job, problem.coefficients(placement.candidate), placement)
        for mode in all_modes(simulator, placement):
            if mode.schedule not in engine_of(problem.job).schedules:
                continue
            if best is None or simulator.lower_bound_s(mode) < best[0].step_s:
                timed = simulator.timed(mode)
                best = (timed, placement) if best is None or timed.step_s < best[0].step_s else best
    assert best is not None
    mode, placement = best
    contender = Contender(PricedPlacement(mode.step_s, placement), mode, placement.crossing(problem.fleet))
    return placement.candidate, contender_step_s(problem, contender)


@pytest.mark.slow
@pytest.mark.parametrize(("trainable", "pp", "dp"), [(None, 4, 1), (LORA, 1, 4)], ids=["all", "adapters"])
def test_on_one_fleet_pipelines_cross_or_replicas_and_nothing_is_faster(
    trainable: dict[str, Any] | None, pp: int, dp: int
) -> None:
    fleet = gpu_inventory([1, 1], gpus_per_host=2, shared_gbps=10.0)
    job = job_of("megatron", trainable, parallel={"tp": 1})

    plan = plan_for(fleet, job)

    assert {group.axis for group in plan.groups if group.network == "shared"} == (
        {"pp_forward", "pp_backward"} if pp > 1 else {"dp_across"}
    )
    candidate, step_s = fastest(read_problem(fleet, job))
    assert (plan.pp, plan.dp) == (candidate.pp, candidate.dp) == (pp, dp)
    assert plan.prediction.step_s == pytest.approx(step_s, rel=1e-3)
    assert plan.prediction.step_s <= step_s * (1 + 1e-6)


def test_frozen_weights_that_no_model_gives_are_noted() -> None:
    """The bundled runtime's; another engine's script reads its own weights, and a rehearsal none."""
    fleet = gpu_inventory([1, 1], gpus_per_host=2)
    emulate = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}
    lora = {"lora": {"rank": 16, "targets": ["qkv", "projection"]}}
    for job, is_noted in (
        (bundled(lora), True),
        (bundled(lora, weights="/models/gpt"), False),
        (bundled(lora, compute=emulate), False),
        (job_of("torch", lora), False),
        (bundled(None), False),
    ):
        said = trained_sentence(fleet, plan_for(fleet, job), 0.0)
        assert ("The frozen weights are random: the job has no `weights`." in said) == is_noted


def test_copies_of_shards_exchange_trained_gradients_between_clusters() -> None:
    # HSDP on two hosts of two: each rank's half of the adapters is all-reduced with its copy in fp32, in every
    # micro-batch, and both ranks of a host have one NIC.
    fixed = {"micro_batch_size": 4, "zero": 3, "dp": 4}
    plan = plan_for(gpu_inventory([1, 1], gpus_per_host=2), job_of("torch", parallel=fixed))
    trained = stage_of(plan.job.model, plan.job.trainable, 8, (True, True)).trained
    assert (plan.weight_shards, plan.microbatches) == (2, (2,) * 4)
    across = {traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == "shared"}
    assert across == {2 * 2 * (4 + 4) * (trained // 2) // 2}


@pytest.mark.parametrize("engine", ["megatron", "torchtitan"])
def test_no_way_to_train_adapters_comes_below_the_bound(engine: TrainerName) -> None:
    model = SMALL | {"num_layers": 4, "hidden_size": 2048, "num_heads": 16}
    job = job_of(engine, model=model, global_batch_size=4, parallel={"tp": 1})
    problem = read_problem(gpu_inventory([1, 1], gpus_per_host=2, shared_gbps=2.0), job)
    best, bounds = best_by_candidate(problem), AnyScheduleBounds(problem)
    assert {candidate.pp for candidate in best} == {1, 2, 3, 4}
    for candidate, step_s in best.items():
        assert max(bounds.candidate_s(candidate), bounds.across_s(candidate)) <= step_s
    assert plan_for(problem.inventory, job).prediction.step_s <= min(best.values()) * 1.001


def test_the_bundled_runtime_trains_adapters_on_whole_frozen_weights() -> None:
    """A run of the same settings, in which replicas exchange adapters alone; weights are never sharded."""
    fleet = gpu_inventory([1, 1], gpus_per_host=2)
    trainable = {"lora": {"rank": 16, "targets": ["qkv", "projection", "up", "down"], "alpha": 32}}
    full, adapted = (plan_for(fleet, bundled(each, parallel={"dp": 4})) for each in (None, trainable))
    assert adapted.zero == 1
    assert 50 * sum(t.sent_bytes for t in adapted.prediction.traffic) < sum(
        t.sent_bytes for t in full.prediction.traffic
    )
    assert run_config_of(adapted, "run").lora == Lora(rank=16, targets=("qkv", "projection", "up", "down"), alpha=32.0)
    assert run_config_of(full, "run").lora is None


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (bundled({"frozen_layers": 2}), "frozen_layers is 2 with the bundled runtime"),
        (bundled(LORA, parallel={"zero": 3}), "trainable.lora with parallel.zero 3"),
        (bundled(LORA, model=SMALL | {"factory": "m.py:build"}), "trainable.lora with model.factory"),
        (bundled(LORA, model=SMALL | {"family": "llama"}), "must name query, key and value instead of qkv in a llama"),
        (bundled({"lora": {"rank": 4, "targets": ["query"]}}), "must be of qkv, projection, up and down in a gpt"),
        (bundled(LORA, parallel={"pp": 2, "schedule": "zero-bubble"}), "schedule zero-bubble with trainable"),
        (job_of("megatron", {"frozen_layers": 8}), "frozen_layers is 8 and model.num_layers 8"),
        (job_of("megatron", {"frozen_layers": 2}, parallel={"pp": 2}), "frozen_layers is 2, parallel.pp 2"),
        (job_of("torch", {"lora": {"rank": 4, "targets": ["gate"]}}), "a gpt has no gate"),
        (
            job_of("megatron", {"frozen_layers": 2}, model=SMALL | {"tied_embeddings": True}),
            "frozen_layers is 2 with model.tied_embeddings",
        ),
        (
            job_of(
                "megatron",
                model=SMALL | {"family": "llama", "experts": 8, "experts_per_token": 2},
                parallel={"ep": 2},
            ),
            "trainable with model.experts",
        ),
    ],
)
def test_frozen_parameters_that_are_not_counted_are_refused(job: Job, named: str) -> None:
    with pytest.raises(HolmesError, match=named) as refused:
        read_problem(gpu_inventory([1], gpus_per_host=2), job)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("trainable", "part"),
    [
        # 2304 FLOPs of matrices and 576 of attention in each of two layers, 480 of the head; a backward has two more.
        (None, 1.0),
        (lora("query"), (2 * (2 * 2304 + 3 * 576) + 2 * 480) / (3 * (2 * (2304 + 576) + 480))),
        (Trainable(frozen_layers=1), (2880 + 3 * (2880 + 480)) / (3 * (2 * (2304 + 576) + 480))),
    ],
)
def test_utilisation_counts_needed_flops(trainable: Trainable | None, part: float) -> None:
    assert trained_step_flops(TINY, trainable, 4) == pytest.approx(part * step_flops(TINY, 4))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"lora": {"rank": 0, "targets": ["qkv"]}},
        {"lora": {"rank": 4, "targets": []}},
        {"lora": {"rank": 4, "targets": ["up", "up"]}},
        {"lora": {"rank": 4, "targets": ["qkv", "key"]}},
        {"lora": {"rank": 4, "targets": ["lm_head"]}},
        {"frozen_layers": -1},
        {"layers": 3},
    ],
)
def test_a_key_that_contradicts_itself_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trainable"):
        job_of("megatron", said)


def test_jobs_without_it_are_written_as_before() -> None:
    assert "trainable" not in job_of("megatron", None).model_dump(mode="json")
    assert job_of("megatron").model_dump(mode="json")["trainable"]["lora"]["rank"] == 16


def test_adapters_on_attention_leave_experts_frozen() -> None:
    model = {
        **{**SMALL, "family": "llama", "seq_length": 1024, "ffn_hidden_size": 8192},
        **{"experts": 16, "experts_per_token": 2, "expert_ffn": 2048},
    }
    only = {"lora": {"rank": 16, "targets": ["query", "value"]}}
    degrees = {"parallel": {"ep": 8, "tp": 1, "pp": 1, "dp": 16, "micro_batch_size": 1, "recompute": "none"}}
    some, all_of_them = (
        plan_for(gpu_inventory([2]), job_of("megatron", trainable, model=model, **degrees))
        for trainable in (only, None)
    )
    execution = Candidate(1, 1, 16, 1).execution(some.job)
    shape, trainable = some.job.model, some.job.trainable
    parameters = stage_of(shape, trainable, 8, (True, True), 1, 8)
    assert parameters.trained == 8 * 2 * 16 * (4096 + 4096)
    # Experts are weights of two bytes, with no gradient, state or exchange of their own.
    experts = 8 * expert_parameters(shape, 8)
    without = cost.state_bytes(0, execution, experts)
    assert without == 2 * experts
    whole = sum(some.prediction.memory_bytes), sum(all_of_them.prediction.memory_bytes)
    assert whole[1] - whole[0] > 4 * experts
    assert some.prediction.step_s < all_of_them.prediction.step_s
    candidate = Candidate(1, 1, 16, 1)
    assert candidate.weighed_parameters(some.job, (8,), 0, 0.5) == parameters.trained
    assert max(each.sent_bytes for each in some.prediction.traffic) < max(
        each.sent_bytes for each in all_of_them.prediction.traffic
    )


@pytest.mark.parametrize("trainable", [{"lora": {"rank": 16, "targets": ["query", "up"]}}, {"frozen_layers": 2}])
def test_adapters_on_experts_and_frozen_layers_of_a_mixture_are_refused(trainable: dict[str, Any]) -> None:
    model = SMALL | {"family": "llama", "experts": 8, "experts_per_token": 2}
    with pytest.raises(HolmesError, match=r"trainable with model\.experts 8"):
        plan_for(gpu_inventory([2]), job_of("megatron", trainable, model=model))
