"""Records of a rank's process groups for the node agent, and the rank's reports of its position.

A thread also compares the transports in NCCL's log with the transports that the groups were assigned.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holmes_runtime.comm.nccl_log import NcclLog
from holmes_runtime.comm.networks_in_use import interface_addresses, other_interfaces
from holmes_runtime.config.messages import ASK_FILE, POSITIONS_FILE, GroupProgress
from holmes_runtime.config.rank_metrics import GROUPS_FILE, MAX_GROUPS, NOTICES_FILE, GroupRecord, RankNotice
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.hook.group_network import GroupBinding
from holmes_runtime.node.admission.own_sockets import own_connections

POLL_S = 1.0  # for a request of the agent
STDERR_FD = 2  # even if the script has replaced sys.stderr


class GroupReport:
    """A writer that appends a line for each group to the rank's file in HOLMES_METRICS_DIR, if that is set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._rank = int(environ["RANK"])
        folder = environ.get("HOLMES_METRICS_DIR")
        self._folder = Path(folder) if folder else None
        self._nccl = NcclCheck(environ)
        self._keys: list[str] = []  # of the groups written down
        self._warned: set[str] = set()
        self._device = "cpu"
        self._begun = False
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start to answer the agent: a process with a default group is a rank."""
        if self._folder is None or self._begun:  # a script may make its default group more than once
            return
        self._begun = True
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # another handler belongs to the trainer
            faulthandler.register(signal.SIGUSR1, file=STDERR_FD, all_threads=True)
        answering = threading.Thread(target=self._answer, args=(self._folder,), name="holmes-whereabouts", daemon=True)
        answering.start()
        atexit.register(self._end, answering)

    @contextlib.contextmanager
    def making(
        self, arguments: Mapping[str, Any], ranks: Sequence[int], backends: Sequence[str], binding: GroupBinding
    ) -> Iterator[None]:
        """Record the group that is made inside, and the interfaces of its sockets."""
        planned = binding.interface if "gloo" in backends else None
        before = own_connections() if planned is not None else set()
        yield
        others: Sequence[str] = ()
        if planned is not None:
            others = other_interfaces(planned, own_connections() - before, interface_addresses())
        network = binding.network
        net_name = network.net_name if network is not None and "nccl" in backends else None
        if "nccl" in backends:
            self._device = "cuda"
            self._nccl.expect(len(ranks), net_name)
        self._write_group(
            GroupRecord(
                rank=self._rank,
                key=str(arguments.get("group_name") or ""),
                name=str(arguments.get("group_desc") or arguments.get("group_name") or "default"),
                backend=",".join(backends),
                ranks=tuple(ranks),
                network=None if network is None else network.name,
                interface=binding.interface,
                net_name=net_name,
                others=tuple(others),
            )
        )

    def say_unbound(self, backends: Sequence[str]) -> None:
        """Report that groups of these backends choose their own network."""
        self._warn(f"groups of backend {', '.join(backends)} are bound to no network: only Gloo's and NCCL's can be")

    def _warn(self, sentence: str) -> None:
        """Write `sentence` as a warning, once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._write(NOTICES_FILE, RankNotice(self._rank, "warning", sentence, None))

    def _write_group(self, record: GroupRecord) -> None:
        if len(self._keys) < MAX_GROUPS:
            self._keys.append(record.key)
            self._write(GROUPS_FILE, record)

    def _write(self, name: str, record: GroupRecord | RankNotice) -> None:
        if self._folder is None:
            return
        line = (to_json(record) + "\n").encode()
        path = self._folder / name.format(rank=self._rank)
        with contextlib.suppress(OSError):  # a full disk must not end the training
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    def _end(self, answering: threading.Thread) -> None:
        """End the thread. If Python ended it at exit, the process could abort (SIGABRT, 2 of 14 runs)."""
        self._ended.set()
        answering.join()

    def _answer(self, folder: Path) -> None:
        """Append the rank's position each time the agent asks, and warn of transports that no group was assigned.

        The agent asks by a file, because the trainer may use the signals.
        """
        from holmes_runtime.health.position_report import PositionReport

        report = PositionReport(self._rank, self._progress)
        report.now("in the trainer's command")
        asked = folder / ASK_FILE
        seen_ns = _changed_ns(asked)
        while not self._ended.wait(POLL_S):
            for sentence in self._nccl.differences():
                self._warn(sentence)
            if _changed_ns(asked) != seen_ns:
                seen_ns = _changed_ns(asked)
                report.write_to(folder / POSITIONS_FILE.format(rank=self._rank))

    def _progress(self) -> tuple[GroupProgress, ...]:
        from holmes_runtime.comm.flight_record import dump_flight_record, parse_flight_record

        return parse_flight_record(dump_flight_record(self._device), tuple(self._keys), by="name")


def _changed_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


class NcclCheck:
    """The check of one rank.

    NCCL logs a communicator's size and transport, but not its group. So the check accepts the transport of any group of
    that size. A communicator of two ranks may carry messages of groups of any size.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._log = NcclLog(environ)
        self._assigned: dict[int, set[str | None]] = {}  # by size; None: NCCL chooses
        self._reported: set[tuple[int, str]] = set()

    def expect(self, size: int, net_name: str | None) -> None:
        """Expect a communicator of `size` ranks on transport `net_name`, or on NCCL's choice for None."""
        self._assigned.setdefault(size, set()).add(net_name)

    def differences(self) -> Iterator[str]:
        """Yield a sentence for each new size and transport in the log that no group was assigned."""
        for size, used in self._log.read_more().communicators:
            assigned = set().union(*self._assigned.values()) if size == 2 else self._assigned.get(size, {None})
            if None in assigned or used in assigned or (size, used) in self._reported:
                continue
            self._reported.add((size, used))
            names = " or ".join(sorted(name for name in assigned if name is not None))
            yield f"NCCL made a communicator of {size} ranks over {used}, but its groups were assigned {names}"
