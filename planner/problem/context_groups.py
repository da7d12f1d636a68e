"""Context parallelism: replicas that share each sequence, and the degrees to try.

The ranks of a group hold the same weights, as replicas do, and each computes one part of every sequence. The planner
therefore counts them as replicas that train on a batch of such parts; their numbers are consecutive.
"""

from __future__ import annotations

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from planner.cost.engines import ENGINES, engine_of

LONG_TOKENS = 16_384  # the shortest sequence for which the planner tries a free degree
MIN_PART_TOKENS = 4096  # of one part; shorter ones keep a GPU no busier. GUESS


def context_degrees(job: Job) -> tuple[int, ...]:
    """Return the degrees to try: the fixed one, or powers of two for long sequences; 1 if the engine has none."""
    tokens = job.model.seq_length
    if job.parallel.cp is not None or tokens < LONG_TOKENS or engine_of(job).context is None or _whole_for(job):
        return (job.cp,)
    powers = (2**n for n in range((tokens // MIN_PART_TOKENS).bit_length()))
    return tuple(cp for cp in powers if cp == 1 or tokens % (2 * cp) == 0)


def _whole_for(job: Job) -> str | None:
    """Return the key that makes the bundled runtime keep sequences whole, if any."""
    keys = {
        "model.factory": job.model.factory is not None,
        "compute.emulate": job.compute.emulate is not None,
        "islands": job.islands is not None,
    }
    return next((key for key, is_set in keys.items() if is_set), None) if job.is_bundled else None


def check_context(job: Job) -> None:
    """Raise HolmesError (wrong usage) for a degree that the engine, the sequence or the command does not support."""
    cp, tokens, trainer = job.cp, job.model.seq_length, job.trainer
    if cp == 1:
        return
    what = _whole_for(job)
    if what is not None:
        raise HolmesError(
            f"job: parallel.cp is {cp}, with {what}: the bundled runtime splits sequences only if one run trains its "
            "own GPT or Llama",
            f"leave parallel.cp or {what} out",
        )
    if engine_of(job).context is None:
        names = [name for name, engine in ENGINES.items() if engine.context is not None and name != "holmes"]
        raise HolmesError(
            f"job: parallel.cp is {cp}, but engine {job.engine} is not known to have context parallelism",
            f"leave trainer or parallel.cp out, or set trainer.engine to {' or '.join(names)}",
        )
    if tokens % (2 * cp):
        raise HolmesError(
            f"job: parallel.cp is {cp} and model.seq_length {tokens}: each rank computes two parts of a sequence, an "
            "early and a late one, to balance attention",
            f"set model.seq_length to a multiple of {2 * cp}, or another parallel.cp",
        )
    kinds = (trainer.values("--cp-comm-type") or ()) if trainer is not None else ()
    if set(kinds) - {"p2p"}:
        raise HolmesError(
            f"job: parallel.cp is {cp}, and trainer.command has --cp-comm-type {' '.join(kinds)}: only p2p is priced",
            "leave --cp-comm-type out, or parallel.cp",
        )
    if trainer is not None and trainer.command and not trainer.takes_options and "cp" not in trainer.placeholders:
        raise HolmesError(
            f"job: parallel.cp is {cp}, but trainer.command sets the plan's degrees itself and has no {{cp}}",
            "put {cp} where its context parallel size belongs, or leave parallel.cp out",
        )


def sequence_groups(job: Job) -> int:
    """Return the number of replicas in a plan's groups on axis cp; 1 if the engine makes such groups itself."""
    return job.cp if job.is_bundled else 1


def takes_sequence(job: Job, tp: int) -> bool:
    """Return True if a sequence splits into parts of equal length over groups and their tensor shards."""
    shards = tp if engine_of(job).sequence_parallel != "never" else 1
    return job.cp == 1 or job.model.seq_length % (2 * job.cp * shards) == 0
