"""The position of this rank, written when the agent asks for it, even while the training thread is stuck."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from holmes_runtime.comm.flight_record import dump_flight_record, parse_flight_record
from holmes_runtime.comm.socket_bytes import bytes_between, read_socket_bytes
from holmes_runtime.config.messages import ASK_SIGNAL, POSITIONS_FILE, GroupProgress, RankPosition
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.health.own_stack import MAX_CALLS, main_calls, working_call

MOVED_WITHIN_S = 1.0  # well below the time that the controller gives for an answer


class PositionReport:
    """The reports of one rank's position. `read` returns its progress in its groups."""

    def __init__(self, rank: int, read: Callable[[], tuple[GroupProgress, ...]]) -> None:
        self._rank, self._read = rank, read
        self._doing, self._alone = "starting", True

    def now(self, doing: str, alone: bool = False) -> None:
        """Record the rank's activity from now on; `alone` if it needs no other rank."""
        self._doing, self._alone = doing, alone

    def position(self) -> RankPosition:
        """Return the position. An unreadable flight recorder must not end a run: groups are then missing."""
        calls = main_calls()
        stack, working = tuple(map(str, calls[:MAX_CALLS][::-1])), working_call(calls)
        working_in = None if working is None else f"{Path(working.file).name} line {working.line} in {working.function}"
        position = RankPosition(self._rank, self._doing, self._alone, (), 0, stack, working_in)
        try:
            return position._replace(groups=self._read())
        except Exception as error:
            return position._replace(doing=f"{position.doing} (torch's flight recorder cannot be read: {error})")

    def answer(self, folder: Path) -> None:
        """Start a thread that appends a line to the rank's file in `folder` each time the agent asks.

        Do nothing unless the signal is blocked, as in ranks that the agent starts. Otherwise another thread might take
        the signal, which would end the process.
        """
        if ASK_SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / POSITIONS_FILE.format(rank=self._rank)
            Thread(target=self._answer, args=(file,), name="holmes-whereabouts", daemon=True).start()

    def _answer(self, file: Path) -> None:
        while True:
            signal.sigwait({ASK_SIGNAL})
            self.write_to(file)

    def write_to(self, file: Path) -> None:
        """Append the position to `file`, with the bytes moved in the following second."""
        position, before = self.position(), read_socket_bytes()
        time.sleep(MOVED_WITHIN_S)
        moved_bytes = bytes_between(before, read_socket_bytes())
        with file.open("a", encoding="utf-8") as lines:
            lines.write(to_json(position._replace(moved_bytes=moved_bytes)) + "\n")


def position_report_of(config: RunConfig, rank: int) -> PositionReport:
    """Return the position report of `rank` in the run, based on torch's flight recorder."""
    groups = [group.name for group in config.groups if rank in group.ranks]
    return PositionReport(rank, lambda: parse_flight_record(dump_flight_record(config.device), groups))
