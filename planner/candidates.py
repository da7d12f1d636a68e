"""The degrees worth looking at: every (tp, pp, dp, micro-batch) that divides the batch and fits the slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.job import Job
from planner.fleet import Fleet


@dataclass(frozen=True, order=True)
class Candidate:
    """Tensor, pipeline and data parallel degrees, and the samples of one micro-batch."""

    tp: int
    pp: int
    dp: int
    micro_batch_size: int

    def num_microbatches(self, global_batch_size: int) -> int:
        """Micro-batches one replica runs per step."""
        return global_batch_size // (self.dp * self.micro_batch_size)


def check_job(job: Job) -> None:
    """Raises HolmesError (wrong usage) for fixed values that no fleet can meet."""
    fixed, model = job.parallel, job.model
    if fixed.pp is not None and fixed.pp > model.num_layers:
        raise HolmesError(
            f"job: parallel.pp is {fixed.pp}, num_layers is {model.num_layers}: a stage would have no layer",
            f"set parallel.pp to at most {model.num_layers}, or leave it out",
        )
    if fixed.tp is not None and model.num_heads % fixed.tp:
        raise HolmesError(
            f"job: parallel.tp {fixed.tp} does not divide num_heads {model.num_heads}",
            "set parallel.tp to a divisor of num_heads, or leave it out",
        )


def enumerate_candidates(job: Job, fleet: Fleet) -> tuple[Candidate, ...]:
    """All candidates of `job` on `fleet`, in ascending order. tp is 1 unless fixed: the runtime runs no more today.

    Raises HolmesError (the answer is no) when the fixed degrees need more slots than there are.
    """
    tp = job.parallel.tp or 1
    num_places = sum(cluster.num_places(tp) for cluster in fleet.clusters)
    found = tuple(
        Candidate(tp, pp, dp, micro_batch_size)
        for pp in _pipeline_degrees(job, num_places)
        for dp in _divisors(job.global_batch_size, job.parallel.dp)
        if pp * dp <= num_places
        for micro_batch_size in _divisors(job.global_batch_size // dp, job.parallel.micro_batch_size)
    )
    if not found:
        raise _too_few_slots(job, fleet, tp, num_places)
    return found


def _pipeline_degrees(job: Job, num_places: int) -> range:
    """The fixed degree, or all from 1 to what layers and places allow."""
    fixed = job.parallel.pp or (len(job.parallel.layers) if job.parallel.layers else None)
    return range(fixed, fixed + 1) if fixed else range(1, min(job.model.num_layers, num_places) + 1)


def _divisors(number: int, fixed: int | None) -> Iterator[int]:
    """The divisors of `number`, or of these only the fixed one."""
    choices = range(1, number + 1) if fixed is None else (fixed,)
    return (divisor for divisor in choices if number % divisor == 0)


def _too_few_slots(job: Job, fleet: Fleet, tp: int, num_places: int) -> HolmesError:
    fixed = job.parallel
    pp = fixed.pp or len(fixed.layers or (0,))
    needed = tp * pp * (fixed.dp or 1)
    slots = ", ".join(f"{host.name} {len(host.gpus)}" for cluster in fleet.clusters for host in cluster.hosts)
    more = "add GPUs or hosts" if job.device == "cuda" else "raise slots_per_host or add hosts"
    return HolmesError(
        f"the degrees fixed in job.yaml (tp {tp}, pp {pp}, dp {fixed.dp or 1}) need {needed} training slots in whole "
        f"tensor groups of {tp} inside a host; the reachable hosts offer {num_places * tp} ({slots})",
        f"lower parallel.tp, pp or dp in job.yaml to at most {num_places} groups, or {more}",
        ANSWER_IS_NO,
    )
