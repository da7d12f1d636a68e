"""Two nodes' agents with a man in the middle of their rendezvous: the one that notices reports it, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_runtime.config.messages import (
    CHANGED,
    Alive,
    Exited,
    Go,
    Message,
    RankFailed,
    Ready,
    decode_message,
    encode,
)
from holmes_runtime.config.node_config import NodeConfig
from tests.runtime.test_keyed_frames import Relay, flip

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
FLIPPED_BIT = 8 * 40  # of what comes after the proof


class Node:
    """A node's agent, which is attached to this process."""

    def __init__(self, cache: Path, node_rank: int) -> None:
        folder = cache / "runs" / "r" / f"node-{node_rank}"
        folder.mkdir(parents=True)
        config = NodeConfig(
            *("r", f"host{node_rank}", node_rank, 1, ("127.0.0.1", "127.0.0.1"), 29500, {}, (), None, (), {}, ()),
            silence_limit_s=250.0,
            detached=False,
        )
        (folder / "node.json").write_text(config.to_json(), encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holmes_runtime.node.agent"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hear(self) -> Message:
        """The next message that says something."""
        assert self.process.stdout is not None
        while True:
            message = decode_message(self.process.stdout.readline().decode())
            if not isinstance(message, Alive):
                return message

    def say(self, go: Go) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(go))
        self.process.stdin.flush()

    def failure(self) -> RankFailed:
        """The first it reports."""
        while not isinstance(message := self.hear(), RankFailed):
            assert not isinstance(message, Exited)
        return message


@pytest.mark.parametrize("noticing", [0, 1])
def test_a_rendezvous_that_is_changed_on_the_way_is_the_failure_that_the_agent_reports(
    tmp_path: Path, noticing: int
) -> None:
    nodes = [Node(tmp_path, node_rank) for node_rank in (0, 1)]
    try:
        ready = [node.hear() for node in nodes]
        assert isinstance(ready[0], Ready)
        assert ready[0].master_port is not None
        relay = Relay(("127.0.0.1", ready[0].master_port), flip(noticing == 0, FLIPPED_BIT))
        for node, port in zip(nodes, (ready[0].master_port, relay.listener.getsockname()[1]), strict=True):
            node.say(Go(port, "ab" * 32))
        words = f"data of the rendezvous or its store, from 127.0.0.1 to 127.0.0.1, {CHANGED}"
        assert nodes[noticing].failure().message == words
        relay.listener.close()
    finally:
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            node.process.communicate(timeout=600)
