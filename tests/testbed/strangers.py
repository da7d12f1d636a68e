"""Sends strangers at a run on the bed, for as long as it lives, to whatever listens on its hosts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holmes_runtime.config.messages import SocketAddress
from holmes_runtime.node.admission.own_sockets import LISTENS, parse_tcp
from tests.testbed.bed import Bed
from tests.testbed.rank_processes import rank_pids
from tests.testbed.stranger import Try

SSH_PORT = 22
LOOK_EVERY_S = 0.03
AGAIN_S = 2.0  # between two tries at the same socket
OUTSIDE = ("half-open", "garbage", "sequence", "store")
INSIDE = ("half-open", "garbage", "store")
REPOSITORY = Path(__file__).parents[2]


class Strangers:
    """Two of them: one elsewhere on the shared network, another user of the run's first host.

    The latter tries the loopback and the rendezvous; it could hold up a Gloo group that is being made there.
    """

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        first = bed.hosts[0]
        self._outside = self._start(bed.controller_namespace)
        self._inside = self._start(first.namespace)
        self._over = threading.Event()
        self._tried_s: dict[tuple[int, SocketAddress], float] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.of_ranks: set[SocketAddress] = set()
        self.outside: list[Try] = []
        self.inside: list[Try] = []

    def begin(self) -> None:
        """From now on whatever listens is tried."""
        for process in (self._outside, self._inside):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        self._watcher.start()

    def end(self) -> None:
        """No more tries; what came of them is in `outside` and `inside`."""
        self._over.set()
        self._watcher.join()
        for process, tries in ((self._outside, self.outside), (self._inside, self.inside)):
            said, _ = process.communicate(timeout=600)
            tries += [Try(**json.loads(line)) for line in said.splitlines()]

    def _start(self, namespace: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.testbed.stranger"]
        return subprocess.Popen(command, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _watch(self) -> None:
        while not self._over.is_set():
            for host in self._bed.hosts:
                ranks = rank_pids(self._bed, host.name)
                for address in self._listening(host.name):
                    if ranks:
                        self.of_ranks.add(address)
                    self._try(self._outside, OUTSIDE, address, address.address == host.slow_address)
                    at_home = address.address.startswith("127.") or self._is_rendezvous(address)
                    self._try(self._inside, INSIDE, address, host is self._bed.hosts[0] and at_home)
            time.sleep(LOOK_EVERY_S)

    def _is_rendezvous(self, address: SocketAddress) -> bool:
        return address.address == self._bed.hosts[0].slow_address and 29500 <= address.port < 29600

    def _try(
        self, process: subprocess.Popen[str], kinds: Sequence[str], address: SocketAddress, reachable: bool
    ) -> None:
        key = (process.pid, address)
        if not reachable or time.monotonic() - self._tried_s.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._tried_s[key] = time.monotonic()
        assert process.stdin is not None
        for kind in kinds:
            print(kind, *address, file=process.stdin, flush=True)

    def _listening(self, host: str) -> Iterator[SocketAddress]:
        """Where something listens on that host, sshd apart."""
        pids = self._bed.pids(host)
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pids[0]}/net/tcp").read_text()
            found = (each.local for each in parse_tcp(text) if each.state == LISTENS)
            yield from (each for each in found if each.port != SSH_PORT)
