"""Groups of ranks that share the experts of a layer: their possible sizes, and where they may lie.

A group is ep / tp replicas, neighbours by number, with all of their tensor shards. A host holds whole groups, or a
group whole hosts. Megatron-Core makes the same ones of RANK where `--expert-tensor-parallel-size` is 1
(parallel_state.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from planner.cost.engines import ENGINES, engine_of


def expert_degrees(job: Job, slots: Sequence[int]) -> tuple[int, ...]:
    """Return the degrees to try: the fixed one, else all divisors of the experts that fit; 1 without experts.

    `slots` are by host.
    """
    experts, fixed = job.model.experts, job.parallel
    if experts is None or fixed.ep is not None:
        return (job.ep,)
    tp, ranks = fixed.tp or 1, (fixed.tp or 1) * (fixed.dp or 0)
    sizes, most = set(slots) - {0}, min(experts, ranks or sum(slots))
    found = (ep for ep in range(tp, most + 1, tp) if experts % ep == 0 and ranks % ep == 0)
    return tuple(ep for ep in found if all(_is_aligned(size, ep) for size in sizes)) or (tp,)


def takes_experts(job: Job, tp: int, dp: int) -> bool:
    """Return True if groups of the job's degree go with these degrees; without experts all do."""
    return job.model.experts is None or (job.ep % tp == 0 and tp * dp % job.ep == 0)


def check_layers(job: Job) -> None:
    """Raise HolmesError (wrong usage) for layers or a degree of experts that the engine or the model does not have."""
    keys, ep, tp = job.model.beyond_bundled, job.ep, job.parallel.tp or 1
    if keys and not engine_of(job).has_experts:
        names = [name for name, engine in ENGINES.items() if engine.has_experts]
        raise HolmesError(
            f"job: model.{keys[0]} with engine {job.engine}: such layers are planned for {' and '.join(names)} alone",
            f"set trainer.engine to {names[0]}, or leave model.{keys[0]} out",
        )
    trainer = job.trainer
    if ep > 1 and trainer is not None and not trainer.takes_options and "ep" not in trainer.placeholders:
        raise HolmesError(
            f"job: parallel.ep is {ep}, and trainer.command places the plan's settings without {{ep}}",
            "put {ep} where the command has its expert parallel size",
        )
    if job.parallel.ep is not None and ((job.model.experts or 1) % ep or ep % tp):
        raise HolmesError(
            f"job: parallel.ep is {ep}, model.experts {job.model.experts or 'not set'} and parallel.tp {tp}: ranks "
            "hold as many experts each, and all tensor shards of a replica are in one group of experts",
            "set parallel.ep to a divisor of model.experts and a multiple of parallel.tp",
        )


def no_expert_degrees(job: Job, slots: int) -> HolmesError:
    """Return why no degrees are left with experts in groups of ep on so many slots."""
    fixed = job.parallel
    named = ", ".join(f"{key} {value}" for key in ("tp", "pp", "dp") if (value := getattr(fixed, key)) is not None)
    return HolmesError(
        f"job: no degrees go with parallel.ep {job.ep}{f' and {named}' if named else ''}: tp x dp must be a "
        f"multiple of it, on {slots} training slots and with global_batch_size {job.global_batch_size}",
        "choose another parallel.ep, or leave it out",
        ANSWER_IS_NO,
    )


def check_expert_groups(job: Job, names: Sequence[str], slots: Iterable[int]) -> None:
    """Raise HolmesError where groups of the job's degree would not lie on whole hosts of one cluster.

    `names` are the clusters', `slots` of one host of each class.
    """
    if job.ep == 1:
        return
    if len(names) > 1:
        raise HolmesError(
            f"job: parallel.ep is {job.ep}, and the hosts are in {len(names)} clusters ({', '.join(names)}): experts "
            "are planned inside one cluster so far",
            "plan on the hosts of one cluster: leave the others out of hosts.yaml, or set parallel.ep to 1",
            ANSWER_IS_NO,
        )
    wrong = sorted(size for size in slots if not _is_aligned(size, job.ep))
    if wrong:
        raise HolmesError(
            f"job: parallel.ep {job.ep} neither divides the {wrong[0]} slots of a host nor is a multiple of them",
            "set parallel.ep to a divisor or a multiple of the slots of every host, or leave it out",
        )


def _is_aligned(num_slots: int, ep: int) -> bool:
    return num_slots % ep == 0 or ep % num_slots == 0
