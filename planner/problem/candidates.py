"""The degrees worth looking at: every (tp, pp, dp, micro-batch, recomputation) that divides the batch and fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job, Recompute
from planner.cost.counts import Execution, make_execution
from planner.cost.fill import Fill, fills
from planner.problem.fleet import Fleet

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
MOST_SAMPLES = 64  # of a micro-batch, unless fixed: no published run gains from more


@dataclass(frozen=True, order=True)
class Candidate:
    """Tensor, pipeline and data parallel degrees, the samples of one micro-batch, and what the backward recomputes.

    `fill` is the schedule whose fill and memory its closed form counts.
    """

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    recompute: Recompute = "none"
    fill: Fill = "1f1b"

    def num_microbatches(self, global_batch_size: int) -> int:
        """Micro-batches one replica runs per step when all run the same number."""
        return global_batch_size // (self.dp * self.micro_batch_size)

    def execution(self, job: Job) -> Execution:
        """How every tasklet of `job` is run."""
        return make_execution(job, self.tp, self.dp, self.micro_batch_size, self.recompute)


def check_job(job: Job) -> None:
    """Raises HolmesError (wrong usage) for fixed values that no fleet can meet, or the runtime cannot run."""
    fixed, model = job.parallel, job.model
    tp, pp, chunks = fixed.tp or 1, fixed.pp or (len(fixed.layers or ()) // (fixed.chunks or 1)), fixed.chunks or 1
    if pp * chunks > model.num_layers:
        raise HolmesError(
            f"job: parallel.pp is {pp}{f' with {chunks} chunks' if chunks > 1 else ''}, num_layers is "
            f"{model.num_layers}: a stage would have no layer",
            f"set parallel.pp to at most {model.num_layers // chunks}, or leave it out",
        )
    for name, value in _sharded_sizes(job).items():
        if value % tp:
            raise HolmesError(
                f"job: parallel.tp {tp} does not divide {name} {value}",
                f"set parallel.tp to a divisor of {name}, or leave it out",
            )
    if tp > 1 and (job.compute.emulate is not None or model.factory is not None):
        what = "compute.emulate" if job.compute.emulate is not None else "model.factory"
        raise HolmesError(f"job: parallel.tp is {tp} and {what} is set: its layers cannot be sharded", "leave tp out")
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


def _sharded_sizes(job: Job) -> dict[str, int]:
    """What the tensor degree must divide, by its key in job.yaml."""
    model = job.model
    return {
        "num_heads": model.num_heads,
        "num_kv_heads": model.kv_heads,
        "ffn_hidden_size": model.ffn_size,
        "seq_length": model.seq_length,
    }


def check_tensor_degree(tp: int, fleet: Fleet) -> None:
    """Raises HolmesError (wrong usage) when tensor groups of `tp`, which never leave a host, suit no host.

    A power of two may leave slots over, since hosts that had a power of two of GPUs lose some; another degree that
    leaves some over on every host is taken for a mistake.
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
    """All candidates of `job` on `fleet` that recompute least, in ascending order, with the plainest fill.

    `more_recompute` and `with_other_fills` give the others.

    Raises HolmesError when the fixed degrees need more slots than there are (the answer is no), or a tensor group
    larger than any host (wrong usage).
    """
    sizes = {dp: tuple(_micro_batch_sizes(job, dp)) for dp in _divisors(job.global_batch_size, job.parallel.dp)}
    group_slots = {tp: fleet.num_group_slots(tp) for tp in tensor_degrees(job, fleet)}
    found = tuple(
        Candidate(tp, pp, dp, micro_batch_size, job.parallel.recompute or RECOMPUTE[0], _first_fill(job, pp))
        for tp, num_group_slots in group_slots.items()
        for pp in _pipeline_degrees(job, num_group_slots)
        for dp in sizes
        if pp * dp <= num_group_slots
        for micro_batch_size in sizes[dp]
    )
    if not found:
        raise _too_few_slots(job, fleet)
    return found


def _first_fill(job: Job, pp: int) -> Fill:
    return fills(job, pp, job.parallel.recompute or RECOMPUTE[0])[0]


def with_other_fills(job: Job, candidate: Candidate) -> tuple[Candidate, ...]:
    """The candidate with each schedule that fills its pipeline in another way, itself first."""
    return tuple(replace(candidate, fill=fill) for fill in fills(job, candidate.pp, candidate.recompute))


def more_recompute(job: Job, candidate: Candidate) -> Candidate | None:
    """The candidate that recomputes a step more, so that it is slower and needs less memory; None if there is none."""
    at = RECOMPUTE.index(candidate.recompute) + 1
    if job.parallel.recompute is not None or at == len(RECOMPUTE):
        return None
    more = replace(candidate, recompute=RECOMPUTE[at])
    return more if candidate.fill in fills(job, more.pp, more.recompute) else None


def tensor_degrees(job: Job, fleet: Fleet) -> tuple[int, ...]:
    """The fixed degree, or all that fit into a host and divide the model.

    On CPUs, and where layers cannot be sharded, 1: nothing is known of how fast processes of one host sum.
    """
    largest = max(each.hardware.num_slots for each in fleet.classes)
    fixed = job.parallel.tp
    if fixed is not None:
        check_tensor_degree(fixed, fleet)
        return (fixed,)
    if job.device == "cpu" or job.compute.emulate is not None or job.model.factory is not None:
        return (1,)
    sizes = _sharded_sizes(job).values()
    return tuple(tp for tp in range(1, largest + 1) if not any(size % tp for size in sizes))


def _pipeline_degrees(job: Job, num_group_slots: int) -> range:
    """The fixed degree, or all from 1 to what layers and places allow."""
    fixed, chunks = job.parallel.pp, job.parallel.chunks or 1
    if fixed is None and job.parallel.layers:
        fixed = len(job.parallel.layers) // chunks
    return range(fixed, fixed + 1) if fixed else range(1, min(job.model.num_layers // chunks, num_group_slots) + 1)


def _micro_batch_sizes(job: Job, dp: int) -> Iterator[int]:
    fixed = job.parallel.micro_batch_size
    return (size for size in _divisors(job.global_batch_size // dp, fixed) if fixed or size <= MOST_SAMPLES)


def _divisors(number: int, fixed: int | None) -> Iterator[int]:
    """The divisors of `number`, or of these only the fixed one."""
    choices = range(1, number + 1) if fixed is None else (fixed,)
    return (divisor for divisor in choices if number % divisor == 0)


def _too_few_slots(job: Job, fleet: Fleet) -> HolmesError:
    fixed, tp = job.parallel, job.parallel.tp or 1
    pp = fixed.pp or len(fixed.layers or (0,)) // (fixed.chunks or 1)
    needed, num_group_slots = tp * pp * (fixed.dp or 1), fleet.num_group_slots(tp)
    named = [f"{host.name} {len(host.gpus)}" for host in fleet.hosts.values()]
    slots = ", ".join(named[:8]) + (f" and {len(named) - 8} more hosts" if len(named) > 8 else "")
    more = "add GPUs or hosts" if job.device == "cuda" else "raise slots_per_host or add hosts"
    return HolmesError(
        f"the degrees fixed in job.yaml (tp {tp}, pp {pp}, dp {fixed.dp or 1}) need {needed} training slots in whole "
        f"tensor groups of {tp} inside a host; the reachable hosts offer {num_group_slots * tp} ({slots})",
        f"lower parallel.tp, pp or dp in job.yaml to at most {num_group_slots} groups, or {more}",
        ANSWER_IS_NO,
    )
