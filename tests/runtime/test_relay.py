"""The relay beside an agent ends one that cannot end its ranks, and bears others beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_runtime.config.messages import AgentEnded, decode_message
from holmes_runtime.config.node_config import AGENT_LOCK_FILE
from holmes_runtime.node.relay import COMMANDS_PIPE, WAKING_PIPE, wake_relay

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


@pytest.mark.process
@pytest.mark.parametrize(("agent", "ended"), [("stays", True), ("goes on", False)])
def test_an_agent_that_stays_stopped_is_ended_and_one_that_goes_on_is_not(
    tmp_path: Path, agent: str, ended: bool
) -> None:
    folder = tmp_path / "runs" / "r" / "node-0"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", RELAY, str(folder), agent]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == f"{ended}\n"


def has_opened(relay: subprocess.Popen[bytes], pipe: Path) -> bool:
    """Return whether a relay that has not ended holds the pipe open."""
    assert relay.poll() is None
    for opened in Path(f"/proc/{relay.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since, as a process does that starts
            if opened.resolve() == pipe.resolve():
                return True
    return False


def test_relays_of_one_agent_do_not_disturb_each_other_and_end_when_it_has_removed_its_folder(tmp_path: Path) -> None:
    """Where a connection was made anew, the relay of the one before waits for the end of its own."""
    folder = tmp_path / "runs" / "r" / "node-0"
    folder.mkdir(parents=True)
    for pipe in (COMMANDS_PIPE, WAKING_PIPE):
        os.mkfifo(folder / pipe)
    command = [sys.executable, "-m", "holmes_runtime.node.relay", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with open(folder / AGENT_LOCK_FILE, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        relays = [
            subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        try:
            while not all(has_opened(each, folder / WAKING_PIPE) for each in relays):
                time.sleep(0.01)
            for _ in range(20_000):
                wake_relay(folder)
            assert [each.poll() for each in relays] == [None, None]
            shutil.rmtree(folder)
            said = [each.stdout.read().decode() for each in relays if each.stdout is not None]
            assert [each.wait(timeout=600) for each in relays] == [0, 0]
        finally:
            for each in relays:
                each.kill()
                each.wait()
    assert [decode_message(text) for text in said] == [AgentEnded(), AgentEnded()]
