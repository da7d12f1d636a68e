"""An agent that cannot end its ranks is ended by the relay beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A parent of its own for the agent's stand-in, since relays take the exit statuses of all children. Ten looks are too
# many for an agent that is stopped; one that goes on at the fifth is looked at until it would have been ended.
RELAY = """
import os, signal, subprocess, sys, time
from pathlib import Path
from holmes_runtime.node.relay import AgentAsChild
child = subprocess.Popen(["sleep", "1000"])
agent = AgentAsChild(child.pid, Path(sys.argv[1]), 3.0)
os.kill(child.pid, signal.SIGSTOP)
os.waitpid(child.pid, os.WUNTRACED)
goes_on = sys.argv[2] == "goes on"
ended, looks = False, 0
while not ended and not (goes_on and looks == 50):
    looks += 1
    if goes_on and looks == 5:
        os.kill(child.pid, signal.SIGCONT)
        os.waitpid(child.pid, os.WCONTINUED)
    ended = agent.has_ended()
    time.sleep(0.01)
print(ended)
child.kill()
"""


@pytest.mark.parametrize(("agent", "ended"), [("stays", True), ("goes on", False)])
def test_an_agent_that_stays_stopped_is_ended_and_one_that_goes_on_is_not(
    tmp_path: Path, agent: str, ended: bool
) -> None:
    folder = tmp_path / "runs" / "r" / "node-0"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", RELAY, str(folder), agent]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{ended}\n"
