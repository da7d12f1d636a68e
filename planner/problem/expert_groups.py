"""Groups of ranks that share the experts of a layer: their possible sizes. Their places are in group_places.py.

A group is ep x etp / tp replicas with consecutive numbers and all of their tensor shards. Megatron-Core makes the same
groups of RANK if `--expert-tensor-parallel-size` is 1 or tp (parallel_state.py). In the bundled runtime, tensor shards
split the width of their replica's experts.
"""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from planner.cost.engines import ENGINES, engine_of
from planner.problem.group_places import is_aligned


def expert_degrees(job: Job, slots: Sequence[int]) -> tuple[int, ...]:
    """Return the values of `parallel.ep` to try: the fixed one, or all divisors of the experts that fit; else 1.

    `slots` are by host. In the bundled runtime, 1 means all experts in every replica, whatever its tensor degree.
    """
    experts, fixed = job.model.experts, job.parallel
    if experts is None or fixed.ep is not None or (job.is_bundled and _without_groups(job) is not None):
        return (fixed.ep or 1,)
    etp, tp, ranks = job.etp, fixed.tp or job.etp, (fixed.tp or 1) * (job.fixed_dp or 0)
    hosts, most = set(slots) - {0}, min(experts * etp, ranks or sum(slots))
    found = (size for size in range(tp, most + 1, tp) if experts * etp % size == 0 and ranks % size == 0)
    if job.is_bundled:
        return (1, *(size for size in found if size > tp and all(is_aligned(host, size) for host in hosts)))
    return tuple(size // etp for size in found if all(is_aligned(host, size) for host in hosts)) or (tp // etp,)


def check_layers(job: Job) -> None:
    """Raise HolmesError (wrong usage) for layers or a degree of experts that the engine or the model does not have."""
    keys, ep, tp = job.model.beyond_bundled, job.ep, job.parallel.tp or 1
    if job.model.experts is not None and not job.is_bundled:
        keys = ("experts", *keys)
    if keys and not engine_of(job).has_experts:
        names = [name for name, engine in ENGINES.items() if engine.has_experts]
        raise HolmesError(
            f"job: model.{keys[0]} with engine {job.engine}: such layers are planned only for {' and '.join(names)}",
            f"set trainer.engine to {names[0]}, or leave model.{keys[0]} out",
        )
    if job.model.experts is None:
        for key, value in (("ep", job.parallel.ep), ("etp", job.parallel.etp)):
            if value is not None:
                raise HolmesError(
                    f"job: parallel.{key} is {value}, but the model has no experts", f"leave parallel.{key} out"
                )
        return
    _check_expert_shards(job)
    obstacle = _without_groups(job) if job.is_bundled and ep > 1 else None
    if obstacle is not None:
        raise HolmesError(
            f"job: parallel.ep is {ep} with {obstacle}: then every replica has all experts of its layers",
            f"leave parallel.ep out, or {obstacle.partition(' ')[0]}",
        )
    if job.is_bundled and ep == 1:
        return
    _check_command(job)
    if job.parallel.ep is not None and (job.model.experts % job.parallel.ep or ep % tp):
        raise HolmesError(
            f"job: parallel.ep is {job.parallel.ep}, model.experts {job.model.experts} and parallel.tp {tp}: all ranks "
            "of a group hold equally many experts, and a replica's tensor shards are in one group",
            "set parallel.ep to a divisor of model.experts, and so that ep x etp is a multiple of parallel.tp",
        )


def _check_expert_shards(job: Job) -> None:
    """Raise HolmesError (wrong usage) for tensor shards of experts that the engine does not have, or not priced."""
    fixed = job.parallel
    if fixed.etp is None:
        return
    if job.is_bundled:
        raise HolmesError(
            f"job: parallel.etp is {fixed.etp} with the bundled runtime, whose tensor shards always split experts",
            "leave parallel.etp out",
        )
    if fixed.etp == 1:
        return
    if fixed.etp != fixed.tp:
        raise HolmesError(
            f"job: parallel.etp is {fixed.etp} and parallel.tp {fixed.tp or 'not set'}: an expert is whole, or split "
            "as the other layers are",
            "set parallel.etp to 1 or to parallel.tp",
        )


def _without_groups(job: Job) -> str | None:
    """Return the key and value that prevent the bundled runtime's replicas from sharing experts; None without any."""
    found = {
        "parallel.zero 3": job.zero == 3,
        "compute.emulate set": job.compute.emulate is not None,
        "islands set": job.islands is not None,
        f"model.factory {job.model.factory}": job.model.factory is not None,
    }
    return next((key for key, is_set in found.items() if is_set), None)


def _check_command(job: Job) -> None:
    """Raise HolmesError (wrong usage) for a command that would run other groups or another dispatcher than planned."""
    trainer = job.trainer
    if trainer is None or not trainer.command:
        return
    options = "--moe-token-dispatcher-type", "--expert-tensor-parallel-size"
    dispatcher, size = (next(reversed(trainer.values(option) or ()), None) for option in options)
    if dispatcher == "allgather":
        raise HolmesError(
            "job: trainer.command has --moe-token-dispatcher-type allgather, but experts are priced with alltoall",
            "set it to alltoall or flex",
        )
    if not trainer.takes_options and ("ep" not in trainer.placeholders or dispatcher is None or size != str(job.etp)):
        raise HolmesError(
            "job: trainer.command sets the plan's degrees itself, but not all of those of experts: it has "
            f"{'' if 'ep' in trainer.placeholders else 'no '}{{ep}}, --expert-tensor-parallel-size "
            f"{size or 'not set'}, --moe-token-dispatcher-type {dispatcher or 'not set'}",
            f"put {{ep}} where its expert parallel size belongs, and add `--expert-tensor-parallel-size {job.etp} "
            "--moe-token-dispatcher-type alltoall`",
        )


def no_expert_degrees(job: Job, slots: int) -> HolmesError:
    """Return the error for a job whose groups of ep ranks fit no degrees on `slots` training slots."""
    fixed, group = job.parallel, "ep" if job.etp == 1 else f"ep x etp, {job.ep}"
    named = ", ".join(f"{key} {value}" for key in ("tp", "pp", "dp") if (value := getattr(fixed, key)) is not None)
    return HolmesError(
        f"job: no degrees fit parallel.ep {fixed.ep}{f' and {named}' if named else ''}: tp x dp must be a multiple of "
        f"{group}, on {slots} training slots and with global_batch_size {job.global_batch_size}",
        "choose another parallel.ep, or leave it out",
        ANSWER_IS_NO,
    )
