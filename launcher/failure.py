"""Which failure came first. When one rank dies its peers fail with it, milliseconds later or sooner."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.run import Failure

_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "recvValue failed",
)
_SIGTERM = -15


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure to show first: one that is no mere consequence of another; then the earliest."""
    assert failures
    return min(failures, key=lambda failure: (_is_consequence(failure), failure.time_s))


def shell_exit_code(exit_code: int) -> int:
    """The exit code a shell would show: 128 + n for signal n."""
    return 128 - exit_code if exit_code < 0 else exit_code


def _is_consequence(failure: Failure) -> bool:
    text = "\n".join((failure.message, *failure.last_lines))
    return failure.exit_code == _SIGTERM or any(sign in text for sign in _LOST_PEER)
