"""The owner's end of a bed's trunk: the relay process that carries it, told rate, delay and flips."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.testbed import trunk_relay
from tests.testbed.bed_estate import Estate
from tests.testbed.bed_layout import TrunkEnd
from tests.testbed.bed_process import BedError, bed_environment

END_TIMEOUT_S = 20.0


class BedTrunk:
    """The cable between the clusters of a running bed."""

    def __init__(
        self, estate: Estate, switch: str, ends: Sequence[TrunkEnd], rate_mbps: float, delay_ms: float, log: Path
    ) -> None:
        """Joins both ends, in the namespace `switch`; `log` is a file to be made. Raises BedError if that fails."""
        command = ["ip", "netns", "exec", switch, sys.executable, "-I", "-S", trunk_relay.__file__]
        self._log = log
        with log.open("wb") as errors:
            self._relay = subprocess.Popen(
                [*command, *(end.device for end in ends), str(rate_mbps), str(delay_ms)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=bed_environment(),
                cwd="/",
                start_new_session=True,
            )
        estate.record_process(self._relay.pid)
        self._wait_set()

    @property
    def relay_pid(self) -> int:
        """The process that carries the frames."""
        return self._relay.pid

    def set(self, rate_mbps: float, delay_ms: float, flip_every: int) -> None:
        """Changes rate and delay, each way, of the frames from now on, and flips a bit of every so manieth large one.

        Raises BedError if the relay is gone.
        """
        assert self._relay.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            self._relay.stdin.write(f"{rate_mbps} {delay_ms} {flip_every}\n")
            self._relay.stdin.flush()
        self._wait_set()

    def collect(self) -> None:
        """Takes the exit status of the relay once it is gone, so that it does not stay as a zombie."""
        self._relay.communicate(timeout=END_TIMEOUT_S)

    def _wait_set(self) -> None:
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "set\n":
            raise BedError(f"the trunk carries nothing; {self._log.name} says: {self._log.read_text().strip()}")
