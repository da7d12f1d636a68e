"""Compares the transports that NCCL logs with those that its groups were told to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holmes_runtime.comm.nccl_log import NcclLog


class NcclCheck:
    """The check of one rank.

    NCCL logs the size of a communicator and its transport, not its group. All groups of a size thus stand for one
    another, and a communicator of two ranks may carry messages of any group.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._log = NcclLog(environ)
        self._told: dict[int, set[str | None]] = {}  # None: NCCL chooses
        self._said: set[tuple[int, str]] = set()

    def expect(self, size: int, net_name: str | None) -> None:
        """Expect a communicator of so many ranks on that transport; None for one that NCCL chooses."""
        self._told.setdefault(size, set()).add(net_name)

    def differences(self) -> Iterator[str]:
        """Yield a sentence for each size and transport that was logged and that no group was told to take."""
        for size, used in self._log.read_more().communicators:
            told = set().union(*self._told.values()) if size == 2 else self._told.get(size, {None})
            if None in told or used in told or (size, used) in self._said:
                continue
            self._said.add((size, used))
            names = " or ".join(sorted(name for name in told if name is not None))
            yield f"NCCL made a communicator of {size} ranks over {used}, and its groups were told to take {names}"
