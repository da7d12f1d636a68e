"""`python -m holmes_runtime.node.end_agent` in a node's folder: end its agent and all that it started, by recorded ids.

It is for runs whose controller is gone. It sends SIGTERM, on which an agent ends its ranks, and later SIGKILL. Then it
removes the tunnel, and prints the processes that could not be ended, one per line.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from holmes_runtime.node.admission.tunnel import take_down
from holmes_runtime.node.process_tree import Process, descendants, read_process, send
from holmes_runtime.node.relay import AGENT_FILE

GRACE_S = 6.0
KILL_S = 2.0


def end_agent(folder: Path) -> list[Process]:
    """End the agent and return the processes that remain. An id that now belongs to another process is left alone."""
    try:
        recorded = json.loads((folder / AGENT_FILE).read_text(encoding="utf-8"))
    except OSError:
        return []
    agent = read_process(recorded["pid"])
    if agent is None or agent.start_ticks != recorded["start_ticks"]:
        return []
    all_of_it = [agent, *descendants(agent.pid)]
    send([agent], signal.SIGTERM)
    if left := _after(all_of_it, GRACE_S):
        send(left, signal.SIGKILL)
        left = _after(left, KILL_S)
    return left


def _after(processes: list[Process], limit_s: float) -> list[Process]:
    """Wait for the end of all processes, for at most `limit_s`. Return those that still run."""
    deadline = time.monotonic() + limit_s
    while left := [process for process in processes if _runs(process)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def _runs(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and now.state != "Z"


def main() -> int:
    """End the agent. Return 1 as the exit code if something remains."""
    left = end_agent(Path.cwd())
    if not take_down(Path.cwd()):
        print("the interface of the tunnel remains; the next run here removes it")
    for process in left:
        print(f"{process.pid} {process.name} (state {process.state})")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
