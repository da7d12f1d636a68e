"""Find the first failure and its likely cause. When one rank dies, its peers fail soon after."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.plan import Node
from holmes_core.records.run import Failure
from holmes_runtime.config.messages import CHANGED, NOT_FINITE, RankFailed

_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "recvValue failed",
    "Connection refused",
)
_FULL_DISK = ("No space left on device", "Errno 28")
_SIGTERM = -15
_SIGKILL = -9
_OUT_OF_GPU_MEMORY = "the GPU's memory is full: take a smaller micro_batch_size, recompute, or more stages"
_WIRE_CHANGES = (
    "the wire, an attacker on it, or a host's NIC or memory changes the data sent between these hosts. None of it was "
    "saved: check them, or encrypt with `security: {between_clusters: wireguard}` in hosts.yaml"
)
_SIGNS = (
    ((NOT_FINITE,), "training diverges, or this host miscomputes: lower the learning rate, or check its samples"),
    (("CUDA out of memory", "OutOfMemoryError"), _OUT_OF_GPU_MEMORY),
    (("MemoryError", "Cannot allocate memory"), "the host's memory is full"),
    (_FULL_DISK, "a disk is full: the checkpoint folder or the home folder"),
    (("NCCL WARN", "ncclInternalError", "ncclSystemError", "ncclRemoteError"), "NCCL could not use the network"),
    (("Timed out waiting", "timed out", "Watchdog caught collective"), "a peer did not answer in time"),
    (("ModuleNotFoundError", "ImportError"), "Python on that host lacks a package"),
    (("FileNotFoundError", "No such file"), "a path in job.yaml does not exist on that host"),
)  # fmt: skip


def failure_of(node: Node | None, failed: RankFailed, host_lost: bool) -> Failure:
    """Return the record of a rank's or node's failure, or of the run's if `node` is None."""
    text = "\n".join((failed.message, *failed.last_lines))
    return Failure(
        host=node.host if node else None,
        cluster=node.cluster if node else None,
        rank=failed.rank,
        exit_code=failed.exit_code,
        message=failed.message,
        last_lines=failed.last_lines,
        time_s=failed.time_s,
        likely=_WIRE_CHANGES if CHANGED in failed.message else likely_reason(failed.exit_code, text, failed.oom_kills),
        host_lost=host_lost,
    )


def first_cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure to show first: changed data, then failures that are not consequences, then the earliest."""
    assert failures
    return min(failures, key=lambda failure: (CHANGED not in failure.message, is_consequence(failure), failure.time_s))


def is_consequence(failure: Failure) -> bool:
    """Return True if the failure only shows that a peer went away, or that the rank was asked to end."""
    text = "\n".join((failure.message, *failure.last_lines))
    if CHANGED in failure.message or any(sign in text for sign in _FULL_DISK):
        return False
    return failure.exit_code == _SIGTERM or any(sign in text for sign in _LOST_PEER)


def is_not_finite(failure: Failure) -> bool:
    """Return True if a rank failed because a number was not finite."""
    return failure.exit_code > 0 and any(NOT_FINITE in text for text in (failure.message, *failure.last_lines))


def likely_reason(exit_code: int, text: str, oom_kills: int) -> str | None:
    """Return the usual cause of a failure with this exit code and these last lines; None if none is known."""
    if exit_code == _SIGKILL and oom_kills:
        return "the kernel killed it because memory ran out (out-of-memory killer)"
    if exit_code == _SIGKILL:
        return "a person or the scheduler killed it; the kernel counts no out-of-memory kill"
    return next((reason for signs, reason in _SIGNS if any(sign in text for sign in signs)), None)


def shell_exit_code(exit_code: int) -> int:
    """Return the exit code a shell would show: 128 + n for signal n."""
    return 128 - exit_code if exit_code < 0 else exit_code
