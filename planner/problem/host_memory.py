"""Host memory for optimizer states and for islands: the bytes that ranks need, and that a host may give."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Host
from holmes_core.records.job import Job
from holmes_runtime.config.model_shape import ModelShape
from planner.cost.counts import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES, Execution
from planner.cost.trained import stage_of

USABLE_SHARE = 0.8  # assumption: the rest is the system's, the data's page cache and each process's own


def usable_host_bytes(host: Host) -> int | None:
    """Return the bytes that optimizer states may take of a host; None where its memory is not known."""
    return None if host.memory_bytes is None else int(host.memory_bytes * USABLE_SHARE)


def host_bytes(
    model: ModelShape, execution: Execution, checkpoints: bool, num_layers: int, is_first: bool, is_last: bool
) -> int:
    """Return one rank's bytes of host memory; 0 where states are on the device, and it is no island's."""
    ends = is_first, is_last
    parameters = stage_of(model, execution.trainable, num_layers, ends, execution.tp, execution.ep)
    return host_state_bytes(parameters.trained, execution, checkpoints)


def host_bytes_by_rank(job: Job, execution: Execution, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the bytes by pipeline rank, which hold `layers`; empty where they need none."""
    if not execution.optimizer_offload and not execution.outer_bytes:
        return ()
    last, checkpoints = len(layers) - 1, job.checkpoint is not None
    return tuple(
        host_bytes(job.model, execution, checkpoints, held, rank == 0, rank == last) for rank, held in enumerate(layers)
    )


def host_state_bytes(parameters: int, execution: Execution, checkpoints: bool) -> int:
    """Bytes of host memory for a rank's optimizer states: 1/dp of masters (4), moments (8), gradients (4) and weights
    on their way (v, if not the masters), and of a copy of the first two (12) while a checkpoint is written; none of
    these where states are on the device. And 1/dp of what an island keeps.

    Source: holmes_runtime.parallel.host_states.
    """
    sharded = execution.outer_bytes
    if execution.optimizer_offload:
        states = MASTER_BYTES + MOMENT_BYTES
        sharded += states * (2 if checkpoints else 1) + GRADIENT_BYTES
        sharded += execution.value_bytes if execution.value_bytes < MASTER_BYTES else 0
    return -(-parameters * sharded // execution.dp)
