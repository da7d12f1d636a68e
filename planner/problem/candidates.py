"""Enumerate the candidates: every choice of degrees, micro-batch size and recomputation that slots and batch allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import PublishedName
from holmes_runtime.config.model_shape import expert_parameters
from holmes_runtime.config.run_settings import Recompute
from planner.cost.batch_shares import BatchShares, ClassRoom
from planner.cost.counts import Execution, keeps_selectively, make_execution
from planner.cost.engines import engine_of, expert_shards
from planner.cost.fill import Fill, check_whole_backwards, fills
from planner.cost.fp8 import check_fp8
from planner.cost.trained import dense_layers, stage_of
from planner.problem.context_groups import check_context, takes_sequence
from planner.problem.expert_groups import check_layers, no_expert_degrees
from planner.problem.fleet import Fleet
from planner.problem.frozen_parameters import check_trainable
from planner.problem.group_places import check_groups_fit, has_whole_groups, is_aligned, takes_groups

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
NO_INSTANCES = "--reduce-scatter-with-fp32-accumulation"  # with this, Megatron-Core asserts that there is one instance
NEED_A_PIPELINE = ("interleaved", "zero-bubble")  # schedules that need pp of 2 or more


class Candidate(NamedTuple):
    """Tensor, pipeline and data parallel degrees, the samples per micro-batch, and the recomputation.

    `dp` counts all ranks with the same weights as replicas, including those that share a sequence (context_groups.py).
    `fill` is the schedule whose bubble and memory the closed form assumes. `weight_shards` is the number of replicas
    that shard a stage's weights: under ZeRO-3 all, or all in one cluster; otherwise 1. With `optimizer_offload` (ZeRO-1
    only), masters and moments are in host memory. Each of the optimizer's `instances` (ZeRO-1 only) holds all states,
    and its replicas are in a cluster of their own.
    """

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    recompute: Recompute = "none"
    fill: Fill = "1f1b"
    weight_shards: int = 1
    optimizer_offload: bool = False
    instances: int = 1

    @property
    def copies(self) -> int:
        """The number of clusters that each hold equally many replicas and all weights or states; 1: any clusters."""
        return self.dp // self.weight_shards if self.weight_shards > 1 else self.instances

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp

    def num_microbatches(self, batch_parts: int) -> int:
        """Return the micro-batches per step of the busiest replica when they are shared as evenly as possible."""
        return -(-batch_parts // (self.dp * self.micro_batch_size))

    def divides(self, batch_parts: int) -> bool:
        """Return True if all replicas can run the same number of micro-batches."""
        return batch_parts % (self.dp * self.micro_batch_size) == 0

    def execution(self, job: Job) -> Execution:
        """Return the settings with which every tasklet of `job` runs."""
        degrees = self.tp, self.pp, self.dp, self.micro_batch_size
        states = self.weight_shards, self.optimizer_offload, self.instances
        return make_execution(job, *degrees, self.recompute, *states)

    def rank_parameters(self, job: Job, layers: Sequence[int], pp_rank: int) -> int:
        """Return the number of trained parameters per tensor shard on a pipeline rank; `layers` are by stage."""
        held, ends = sum(layers[pp_rank :: self.pp]), (pp_rank == 0, pp_rank == self.pp - 1)
        dense = sum(dense_layers(job.model, layers)[pp_rank :: self.pp])
        return stage_of(job.model, job.trainable, held, ends, self.tp, expert_shards(job, self.tp), dense).trained

    def weighed_parameters(self, job: Job, layers: Sequence[int], pp_rank: int, expert_part: float) -> int:
        """Return `rank_parameters` with each parameter of a routed expert counted as only `expert_part` of one."""
        size = self.rank_parameters(job, layers, pp_rank)
        if job.model.experts is None or job.trainable is not None:  # adapters are on attention alone
            return size
        held = sum(layers[pp_rank :: self.pp]) - sum(dense_layers(job.model, layers)[pp_rank :: self.pp])
        return size - round(held * expert_parameters(job.model, expert_shards(job, self.tp)) * (1 - expert_part))


def candidate_of(plan: Plan) -> Candidate:
    """Return the candidate of `plan`, with the simplest fill."""
    return Candidate(
        *(plan.tp, plan.pp, plan.dp, plan.micro_batch_size, plan.recompute),
        weight_shards=plan.weight_shards,
        optimizer_offload=plan.optimizer_offload,
        instances=plan.optimizer_instances,
    )


def check_job(job: Job) -> None:
    """Raise HolmesError (wrong usage) for fixed values that no fleet can meet or the runtime cannot run."""
    fixed, model = job.parallel, job.model
    tp, pp, chunks = fixed.tp or 1, fixed.pp or (len(fixed.layers or ()) // (fixed.chunks or 1)), fixed.chunks or 1
    if pp * chunks > model.num_layers:
        raise HolmesError(
            f"job: parallel.pp is {pp}{f' with {chunks} chunks' if chunks > 1 else ''}, num_layers is "
            f"{model.num_layers}: a stage would have no layer",
            f"set parallel.pp to at most {model.num_layers // chunks}, or leave it out",
        )
    for name, value in job.model.sharded_sizes.items():
        if value % tp:
            raise HolmesError(
                f"job: parallel.tp {tp} does not divide {name} {value}",
                f"set parallel.tp to a divisor of {name}, or leave it out",
            )
    if tp > 1 and model.factory is not None:
        raise HolmesError(
            f"job: parallel.tp is {tp} and model.factory is {model.factory}: a user's own model is cut only between "
            "layers, since Holmes does not know how to split its matrices",
            "leave parallel.tp out, or train a model of family gpt or llama",
        )
    if tp > 1 and job.compute.emulate is not None:
        raise HolmesError(
            f"job: parallel.tp is {tp} and compute.emulate is set: layers that sleep have nothing to split",
            "leave parallel.tp out",
        )
    if fixed.layers is not None and len(fixed.layers) % chunks:
        raise HolmesError(
            f"job: parallel.layers has {len(fixed.layers)} stages, not a multiple of chunks {chunks}",
            "give each of the pp x chunks stages its layers, or leave chunks out",
        )
    if fixed.schedule == "zero-bubble" and fixed.recompute == "full":
        raise HolmesError(
            "job: parallel.schedule zero-bubble with parallel.recompute full: each delayed weight gradient would run "
            "its layer's forward once more",
            "set parallel.recompute to none or selective, or choose another schedule",
        )
    check_layers(job)
    check_context(job)
    check_trainable(job)
    _check_zero(job)
    check_whole_backwards(job)
    check_fp8(job)
    _check_engine(job)


def _check_zero(job: Job) -> None:
    fixed, always = job.parallel, not job.is_bundled and engine_of(job).shards_weights
    shards = f"engine {job.engine}, which shards weights," if always else "parallel.zero 3"
    other = "choose another engine" if always else "set parallel.zero to 1"
    if job.model.tied_embeddings and job.zero == 3 and not engine_of(job).shards_tied:
        raise HolmesError(
            f"job: {shards} with model.tied_embeddings: the table is used twice in a micro-batch but would be "
            "freed after the first use",
            f"{other}, or leave model.tied_embeddings out",
        )
    if fixed.schedule == "zero-bubble" and job.zero == 3:
        raise HolmesError(
            f"job: {shards} with parallel.schedule zero-bubble: half a backward would run without the weights",
            f"{other}, or choose another schedule",
        )
    if job.zero == 3 and fixed.optimizer_offload:
        raise HolmesError(
            f"job: {shards} with parallel.optimizer_offload: its weights are made from masters on the device",
            f"{other}, or leave optimizer_offload out",
        )


def _check_engine(job: Job) -> None:
    """Raise HolmesError (wrong usage) for fixed values that the engine does not have."""
    if job.is_bundled:
        return
    fixed, engine = job.parallel, engine_of(job)
    if job.device == "cpu" and job.engine in get_args(PublishedName):
        raise HolmesError(
            f"job: trainer.engine is {job.engine} and device cpu: its steps were measured on GPUs",
            "leave trainer out, or set `device: cuda`",
        )
    schedule = "interleaved" if (fixed.chunks or 1) > 1 else fixed.schedule
    if schedule is not None and schedule not in engine.schedules:
        raise HolmesError(
            f"job: parallel.schedule is {schedule}, which engine {job.engine} does not have",
            f"set it to {' or '.join(engine.schedules)}, or leave it out",
        )
    for key, size in (("tp", fixed.tp), ("pp", fixed.pp or len(fixed.layers or ()))):
        if (size or 1) > 1 and key not in engine.degrees:
            where = " with model.tied_embeddings" if job.engine == "torchtitan" else ""  # it has all others
            raise HolmesError(
                f"job: parallel.{key} is {size}, which engine {job.engine} does not have{where}",
                f"leave parallel.{'layers' if fixed.layers and key == 'pp' else key} out",
            )
    if engine.cuts == "even" and (len(set(fixed.layers or ())) > 1 or job.model.num_layers % (fixed.pp or 1)):
        raise HolmesError(
            f"job: parallel.layers is {fixed.layers}, parallel.pp {fixed.pp} and num_layers {job.model.num_layers}: "
            f"engine {job.engine} gives every stage the same number of layers",
            "set parallel.pp to a divisor of num_layers, and leave parallel.layers out",
        )
    if job.zero == 3 and fixed.zero == 1:
        raise HolmesError(f"job: parallel.zero 1 with engine {job.engine}, which shards weights", "leave zero out")
    if (fixed.optimizer_offload and not engine.host_states) or (job.zero == 3 and not engine.shards_weights):
        what = "optimizer_offload" if fixed.optimizer_offload else "zero 3"
        raise HolmesError(
            f"job: parallel.{what} with engine {job.engine}: the planner does not know how this engine does that",
            f"leave {what} out, or choose another engine",
        )
    if not engine.unequal_replicas and job.global_batch_size % ((fixed.dp or 1) * (fixed.micro_batch_size or 1)):
        raise HolmesError(
            f"job: global_batch_size {job.global_batch_size} is not a multiple of dp x micro_batch_size = "
            f"{fixed.dp or 1} x {fixed.micro_batch_size or 1}, but replicas of engine {job.engine} run equally many",
            "choose a dp that divides the batch, or another engine",
        )


def has_fixed_cut(job: Job) -> bool:
    """Return True if job.yaml fixes the layers of each stage, or if its engine gives every stage the same number."""
    return job.parallel.layers is not None or engine_of(job).cuts == "even"


def check_tensor_degree(tp: int, fleet: Fleet) -> None:
    """Raise HolmesError (wrong usage) if no host suits tensor groups of `tp`, which never leave a host.

    A power of two may leave slots unused, since hosts may have lost GPUs. Any other degree must divide at least one
    host's slots.
    """
    slots = sorted({each.hardware.num_slots for each in fleet.classes})
    power_of_two = tp & (tp - 1) == 0
    if tp > slots[-1] or (not power_of_two and all(number % tp for number in slots)):
        raise HolmesError(
            f"job: parallel.tp {tp} does not divide the slots of any host, which have "
            f"{' or '.join(str(number) for number in slots)}; a tensor group stays inside its host",
            f"set parallel.tp to a divisor of {slots[-1]}, or leave it out",
        )


def enumerate_candidates(job: Job, fleet: Fleet) -> tuple[Candidate, ...]:
    """Return all candidates of `job` on `fleet` with the least recomputation and the simplest fill, ascending.

    `more_recompute` and `with_other_fills` return the others.

    Raises:
        HolmesError: The fixed degrees need more slots than the fleet has, or a tensor group is larger than any host.
    """
    slots = {each.hardware.num_slots for each in fleet.classes}
    check_groups_fit(job, slots)
    recompute, shares = job.parallel.recompute or RECOMPUTE[0], BatchShares(job, fleet.num_group_slots(1))
    classes = {tp: class_rooms(fleet, tp) for tp in tensor_degrees(job, fleet)}
    shards_weights, optimizer_offload = job.zero == 3, job.parallel.optimizer_offload or False
    found = tuple(
        Candidate(tp, pp, dp, micro_batch_size, recompute, fill, dp if shards_weights else 1, optimizer_offload)
        for tp, rooms in classes.items()
        if takes_sequence(job, tp) and all(is_aligned(number, job.cp * tp) for number in slots if job.cp > 1)
        for pp in _pipeline_degrees(job, fleet.num_group_slots(tp))
        for fill in fills(job, pp, job.parallel.recompute or RECOMPUTE[0])[:1]
        for dp, micro_batch_size in shares.of(rooms, pp)
        if takes_groups(job, tp, dp)
    )
    if not found:
        has_groups = (job.parallel.ep or 1) > 1
        raise no_expert_degrees(job, fleet.num_group_slots(1)) if has_groups else _no_candidate(job, fleet)
    return found


def class_rooms(fleet: Fleet, tp: int) -> list[ClassRoom]:
    """Return the room for tensor groups of `tp` on each class."""
    return [ClassRoom(each.cluster, each.hardware.slot, each.num_group_slots(tp)) for each in fleet.classes]


def with_other_fills(job: Job, candidate: Candidate) -> tuple[Candidate, ...]:
    """Return the candidate itself, then a copy for each other fill that a schedule may give it."""
    return (candidate, *(candidate._replace(fill=fill) for fill in _fills_of(job, candidate)[1:]))


def more_recompute(job: Job, candidate: Candidate) -> Candidate | None:
    """Return the candidate with more recomputation, which is slower and needs less memory; None if not allowed."""
    if job.parallel.recompute is not None:
        return None
    for recompute in RECOMPUTE[RECOMPUTE.index(candidate.recompute) + 1 :]:
        more = candidate._replace(recompute=recompute)
        if recompute == "full" or keeps_selectively(more.execution(job)):
            return more if candidate.fill in _fills_of(job, more) else None
    return None


def _fills_of(job: Job, candidate: Candidate) -> tuple[Fill, ...]:
    return fills(job, candidate.pp, candidate.recompute, candidate.weight_shards)


def with_sharded_weights(job: Job, candidate: Candidate, num_clusters: int = 1) -> Candidate | None:
    """Return the candidate with weights sharded in each of `num_clusters` clusters (ZeRO-3), or None if it cannot run.

    Each cluster holds the same number of replicas, two or more, which run equally many micro-batches. Backwards are
    not split, tables are not tied, and states are not in host memory.
    """
    shards, rest = divmod(candidate.dp, num_clusters)
    cannot = job.zero == 1 or job.parallel.schedule == "zero-bubble" or candidate.optimizer_offload
    engine = engine_of(job)
    cannot = cannot or not engine.shards_weights or (job.model.tied_embeddings and not engine.shards_tied)
    cannot = cannot or (num_clusters > 1 and not engine.two_levels)
    if cannot or rest or shards == 1 or shards % job.cp or not candidate.divides(job.batch_parts):
        return None
    return candidate._replace(fill="1f1b", weight_shards=shards)


def with_instances(job: Job, candidate: Candidate, num_clusters: int) -> Iterator[Candidate]:
    """Yield the candidate with an optimizer instance in each of 2, 3, ... `num_clusters` clusters, if it can run.

    Each cluster holds the same number of replicas, two or more, which run equally many micro-batches. The trainer must
    accept the number, and its command must not forbid several instances.
    """
    if engine_of(job).has_instances and _takes_instances(job) and candidate.divides(job.batch_parts):
        for number in range(2, min(num_clusters, candidate.dp // 2) + 1):
            if candidate.dp % (number * job.cp) == 0:
                yield candidate._replace(instances=number)


def _takes_instances(job: Job) -> bool:
    trainer = job.trainer
    assert trainer is not None
    gets_number = trainer.takes_options or "optimizer_instances" in trainer.placeholders
    return gets_number and NO_INSTANCES not in trainer.command


def with_host_states(job: Job, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates with optimizer states in host memory: slower, but with more room. Empty if fixed."""
    if job.parallel.optimizer_offload is not None or job.zero == 3 or not engine_of(job).host_states:
        return ()
    return tuple(candidate._replace(optimizer_offload=True) for candidate in candidates)


def tensor_degrees(job: Job, fleet: Fleet) -> tuple[int, ...]:
    """Return the fixed degree, or all that fit into a host and divide the model.

    On CPUs the only degree is 1, since the speed of an all-reduce inside a host is not known. So it is if layers cannot
    be sharded, or if the engine needs more settings than a degree for that.
    """
    largest = max(each.hardware.num_slots for each in fleet.classes)
    fixed = job.parallel.tp
    if fixed is not None:
        check_tensor_degree(fixed, fleet)
        return (fixed,)
    if (
        "tp" not in engine_of(job).free_degrees
        or job.device == "cpu"
        or job.compute.emulate is not None
        or job.model.factory is not None
    ):
        return (1,)
    sizes = job.model.sharded_sizes.values()
    found = (tp for tp in range(1, largest + 1) if not any(size % tp for size in sizes))
    return tuple(tp for tp in found if has_whole_groups(job, tp))


def _pipeline_degrees(job: Job, num_group_slots: int) -> list[int]:
    """Return the fixed degree, or all that layers, slots and engine allow, from 2 if the schedule needs a pipeline."""
    fixed, schedule, chunks = job.parallel.pp, job.parallel.schedule, job.parallel.chunks or 1
    if fixed is None and job.parallel.layers:
        fixed = len(job.parallel.layers) // chunks
    least = 2 if chunks > 1 or schedule in NEED_A_PIPELINE else 1
    layers = 2 if schedule == "interleaved" and job.parallel.chunks is None else chunks  # per rank, at least
    engine = engine_of(job)
    is_free = "pp" in engine.free_degrees and not (job.trainable is not None and job.trainable.frozen_layers)
    free = min(job.model.num_layers // layers, num_group_slots) if is_free else 1
    found = range(max(least, fixed or 1), (fixed or free) + 1)
    return [pp for pp in found if engine.cuts == "any" or job.model.num_layers % pp == 0]


def _no_candidate(job: Job, fleet: Fleet) -> HolmesError:
    """Return the error if no degrees fit: too few slots for the fixed ones, or a schedule that needs others."""
    fixed, tp = job.parallel, job.parallel.tp or 1
    pp = fixed.pp or len(fixed.layers or (0,)) // (fixed.chunks or 1)
    needed, num_group_slots = tp * pp * (job.fixed_dp or job.cp), fleet.num_group_slots(tp)
    if needed <= num_group_slots * tp:
        schedule = "interleaved" if (fixed.chunks or 1) > 1 else fixed.schedule
        rounds = ", and equally many micro-batches per replica, in rounds of pp" if schedule == "interleaved" else ""
        return HolmesError(
            f"no candidate can run the schedule fixed in job.yaml: {schedule} needs pp of 2 or more{rounds}; "
            f"parallel.pp is {fixed.pp or 'free'}, num_layers {job.model.num_layers}, global_batch_size "
            f"{job.global_batch_size}, and there are {num_group_slots * tp} training slots",
            "leave parallel.schedule and parallel.chunks out of job.yaml, or choose a global_batch_size that divides",
            ANSWER_IS_NO,
        )
    named = [f"{host.name} {len(host.gpus)}" for host in fleet.hosts.values()]
    slots = ", ".join(named[:8]) + (f" and {len(named) - 8} more hosts" if len(named) > 8 else "")
    more = "add GPUs or hosts" if job.device == "cuda" else "raise slots_per_host or add hosts"
    return HolmesError(
        f"the degrees fixed in job.yaml (tp {tp}, pp {pp}, dp {fixed.dp or 1}{f', cp {job.cp}' if job.cp > 1 else ''}) "
        f"need {needed} training slots in whole "
        f"tensor groups of {tp} inside a host; the reachable hosts offer {num_group_slots * tp} ({slots})",
        f"lower parallel.tp, pp or dp in job.yaml to at most {num_group_slots} groups, or {more}",
        ANSWER_IS_NO,
    )
