"""A host's end of the tunnel that `--links` measures: a program sent with `wireguard_tools.py` and never stored.

It reads one JSON command per line and answers with lines that begin with MARK. The private key stays in the kernel or
wireguard-go. A second process waits for this one to end, in whatever way, and removes the interface. If that is killed
too, the next probe removes it, which recognizes its name and alias. Python >= 3.7.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from holmes_runtime.node.admission.wireguard_tools import (
    Peer,
    TunnelRefused,
    as_root,
    interfaces,
    make_interface,
    meet,
    remove_interface,
    run,
    set_up,
)

MARK = "@@tunnel "
INTERFACE = "holmes-probe"
ALIAS = "of holmes probe --links"
LOCK = "\0holmes-probe"  # a socket without a file ends with its process and belongs to one namespace, like interfaces
LIFE_S = 120  # until an alarm ends this process; the tests of one pair take a few seconds
LATE_S = 3.0  # in which a tool started by a killed process may still make its interface
POLL_S = 0.1
BY_HAND = f"`ip link delete dev {INTERFACE}` there, as root"


class End:
    """This host's end of the tunnel. Before `open` there is nothing to remove."""

    def __init__(self) -> None:
        self._lock = socket.socket(socket.AF_UNIX)
        self._keeper = 0
        self._requests = -1

    def open(self, address: str) -> dict[str, Any]:
        """Make the interface at `address`, which has a prefix length. Return its public key and port."""
        try:
            self._lock.bind(LOCK)
        except OSError:
            raise TunnelRefused("another probe has a tunnel on this host", "probe again when it is done") from None
        if INTERFACE in interfaces():
            if ALIAS not in run("ip", "link", "show", "dev", INTERFACE):
                raise TunnelRefused(
                    f"an interface {INTERFACE} is there that no probe has made", f"if unused: {BY_HAND}"
                )
            remove_interface(INTERFACE)
        self._start_keeper()
        make_interface(INTERFACE)
        as_root("ip", "link", "set", "dev", INTERFACE, "alias", ALIAS)
        public_key, port = set_up(INTERFACE, address)
        return {"public_key": public_key, "port": port}

    def meet(self, peer: list[Any]) -> dict[str, Any]:
        """Admit the other end. `peer` has the fields of `Peer` in order."""
        meet(INTERFACE, [Peer(*peer)])
        return {"met": True}

    def take_down(self) -> dict[str, Any]:
        """Remove the interface and its processes, and wait until they are gone."""
        if self._keeper:
            os.write(self._requests, b".")
            _, status = os.waitpid(self._keeper, 0)
            self._keeper = 0
            if status != 0:
                raise TunnelRefused(f"{INTERFACE} could not be removed", BY_HAND)
        return {"left": False}

    def _start_keeper(self) -> None:
        """Start the process that outlives this one until the interface is removed. It holds the lock too."""
        waits, self._requests = os.pipe()
        self._keeper = os.fork()
        if self._keeper == 0:
            try:
                os.close(self._requests)
                _keep(waits)
            finally:
                os._exit(1)


def _keep(waits: int) -> None:
    """Remove the interface on request, or once no process is left to request it. Then end this process."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)  # else the SSH session would wait for this process
    requested = os.read(waits, 1)
    until = time.monotonic() + (0.0 if requested else LATE_S)
    while True:
        if INTERFACE in interfaces():
            with contextlib.suppress(TunnelRefused):
                remove_interface(INTERFACE)
        if time.monotonic() >= until:
            os._exit(int(INTERFACE in interfaces()))
        time.sleep(POLL_S)


def main() -> None:
    """Run the controller's commands until its connection ends."""
    signal.alarm(LIFE_S)
    end = End()
    commands: dict[str, Callable[..., dict[str, Any]]]
    commands = {each.__name__: each for each in (end.open, end.meet, end.take_down)}
    for line in sys.stdin.buffer:
        command = json.loads(line.decode())
        try:
            answer = commands[command.pop("do")](**command)
        except TunnelRefused as refused:
            answer = {"refused": refused.evidence, "remedy": refused.remedy}
        except OSError as error:
            answer = {"refused": str(error.strerror or error), "remedy": "look at addresses and routes there"}
        sys.stdout.write(MARK + json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
