"""One host of the bed while it runs: the process that holds its namespaces, and its sshd."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.bed_estate import Estate
from tests.testbed.bed_layout import BedHost
from tests.testbed.bed_process import BedError, bed_environment, start_tool
from tests.testbed.bed_ssh import host_environment

HOST_INIT = Path(__file__).with_name("host_init.sh")
SSH_SERVER = Path(__file__).with_name("ssh_server.py")
START_TIMEOUT_S = 20.0


class BedMachine:
    """A host with its own network, host name, home, /run, /dev/shm and a few files of /etc; the rest it shares."""

    def __init__(self, host: BedHost, estate: Estate, with_sshd: bool = True) -> None:
        """Starts nothing yet. Without sshd the bed's own SSH server stands in for it."""
        self.host = host
        self._estate = estate
        self._with_sshd = with_sshd
        self._init: subprocess.Popen[bytes] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None

    @property
    def init_pid(self) -> int:
        """The process that holds the host's namespaces open."""
        assert self._init is not None, "the host has not been booted"
        return self._init.pid

    @property
    def sshd_pid(self) -> int | None:
        """The listening sshd; None while it is stopped."""
        return self._sshd.pid if self._sshd is not None and self._sshd.poll() is None else None

    def boot(self) -> None:
        """Starts the host's first process; `wait_booted` waits for it."""
        enter = ["ip", "netns", "exec", self.host.namespace, "unshare", "--uts"]
        script = ["sh", str(HOST_INIT), self.host.name, str(self.host.folder), sys.executable]
        self._init = start_tool([*enter, *script], self._init_log)
        self._estate.record_process(self._init.pid)

    def wait_booted(self) -> None:
        """Returns when the host has its name and its private places."""
        assert self._init is not None, "the host has not been booted"
        self._wait_for(self._init, f"{self.host.name} is booted", self._init_log)

    def start_sshd(self) -> None:
        """Starts the host's sshd, which must not be running; `wait_sshd` waits for it."""
        assert self.sshd_pid is None, f"sshd already runs on {self.host.name}"
        if self._with_sshd:
            sshd = shutil.which("sshd", path=bed_environment()["PATH"])
            assert sshd is not None, "missing_for_bed should have said so"
            # sshd starts itself anew for each connection, so it must be called by its full path.
            command = [sshd, "-D", "-e", "-f", str(self.host.folder / "sshd_config")]
        else:
            command = [sys.executable, str(SSH_SERVER), str(self.host.folder), self.host.slow_address]
        self._sshd = start_tool(self.inside(command), self._sshd_log)
        self._estate.record_process(self._sshd.pid)

    def wait_sshd(self) -> None:
        """Returns when sshd listens."""
        assert self._sshd is not None, "sshd has not been started"
        self._wait_for(self._sshd, "Server listening on", self._sshd_log)

    def stop_sshd(self) -> None:
        """Ends the listening sshd, if it runs; open sessions go on, as they do when the service is stopped."""
        if self._sshd is not None:
            self._sshd.terminate()
            self._sshd.wait(START_TIMEOUT_S)

    def inside(self, command: Sequence[str]) -> list[str]:
        """`command` as run by root on this host, in root's home there."""
        variables = {**host_environment(self.host), "HOME": str(self.host.home)}
        enter = ["nsenter", f"--target={self.init_pid}", "--net", "--uts", "--mount", f"--wd={self.host.home}"]
        return [*enter, "env", *(f"{name}={value}" for name, value in variables.items()), *command]

    def collect(self) -> None:
        """Takes the exit statuses of the host's processes once they are gone, so that they do not stay as zombies."""
        for process in (self._init, self._sshd):
            if process is not None:
                process.wait(START_TIMEOUT_S)

    def _wait_for(self, process: "subprocess.Popen[bytes]", sign: str, log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while sign not in (said := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BedError(f"host {self.host.name} did not start; {log.name} says: {said.strip()}")
            time.sleep(0.01)

    @property
    def _init_log(self) -> Path:
        return self.host.folder / "init.log"

    @property
    def _sshd_log(self) -> Path:
        return self.host.folder / "sshd.log"
