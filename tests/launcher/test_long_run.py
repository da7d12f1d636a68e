"""A run of thousands of steps with two printed lines each: what it leaves on nodes and here, and who reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_core.records.record_file import write_signed
from holmes_core.records.run import Settings
from holmes_runtime.config.messages import Exited, Message, RankPrinted, decode_message
from holmes_runtime.config.rank_metrics import ByteCounters
from holmes_runtime.node.mailbox import MessageFile, MessageReader
from launcher.journal.run_events import RunEvent, Silent
from launcher.journal.run_folder import PLAN_FILE, RunFolder
from launcher.journal.run_record import RunRecord
from launcher.journal.step_metrics import FinishedStep
from launcher.nodes.node_link import NodeMessage
from launcher.supervise.attempt_state import AttemptState
from tests.launcher.plans import cpu_plan
from tests.launcher.test_step_metrics import report

LINES, MIB = 2, 1 << 20  # lines of a rank and step
PORTS = {name: ByteCounters(123_456_789, 123_456_789) for name in ("lo", "eth0", "eth1")}


@pytest.mark.parametrize(
    "steps", [pytest.param(4_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.exhaustive)]
)
def test_a_long_chatty_run_is_done_in_bounded_memory_and_room_and_is_read_at_once(steps: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path), str(steps)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert told["memory_bytes"] < (100 + steps // 50) * MIB
    assert max(told["node_bytes"]) < 66 * MIB
    assert told["run_bytes"] < (32 + 4) * MIB
    for words in (("status", "run"), ("status", "run", "--json"), ("logs", "run", "--rank", "3"), ("attach", "run")):
        seen = _holmes(tmp_path, *words)
        assert seen["exit_code"] == 0
        assert seen["memory_bytes"] < 300 * MIB
        assert seen["lines"] >= {"logs": LINES * steps, "attach": steps}.get(words[0], 1)


# A process counts as its own what its parent held when it was made, and the tests' own may be large by now: so each
# command is the child of a small process, which says what it took.
MEASURED = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "holmes_cli", *sys.argv[1:]], os.environ)
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024)
"""


def _holmes(folder: Path, *words: str) -> dict[str, int]:
    """The command's exit code, lines of output, and most memory."""
    command = [sys.executable, "-c", MEASURED, words[0], str(folder / words[1]), *words[2:]]
    environment = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with open(folder / "out", "w+", encoding="utf-8") as out:
        subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=True)
        out.seek(0)
        *lines, last = out
    exit_code, memory_bytes = map(int, last.split())
    return {"exit_code": exit_code, "lines": len(lines), "memory_bytes": memory_bytes}


def simulate(folder: Path, steps: int) -> dict[str, object]:
    """Four nodes of a rank each as their agents and the controller write them down; what that took."""
    plan = cpu_plan(steps=steps)
    nodes = [folder / node.host for node in plan.nodes]
    for node in nodes:
        node.mkdir()
    files, readers = [MessageFile(node) for node in nodes], [MessageReader(node, 0) for node in nodes]
    run = RunFolder(folder / "run")
    write_signed(run.path / PLAN_FILE, plan)
    record, state = RunRecord(run, Silent(), Settings()), AttemptState(plan, False, 0.0, 0.0)
    record.write(plan, 0, "running")

    def tell(rank: int, message: Message) -> None:
        files[rank].report(message)
        for line in readers[rank].read(MIB).decode().splitlines():
            number = state.seen.get(rank, 0) + 1
            for effect in state.take(NodeMessage(rank, decode_message(line), 0.0, number), 0.0):
                event = effect.metrics if isinstance(effect, FinishedStep) else effect
                assert isinstance(event, RunEvent)
                record.take(event)

    for step in range(steps):
        for rank in range(plan.world_size):
            for number in range(LINES):
                tell(rank, RankPrinted(0, f"rank {rank}: line {number} of step {step}: {'=' * 60}"))
            tell(rank, report(plan, rank, step_s=1.0)._replace(step=step, interfaces=PORTS))
    for rank in range(plan.world_size):
        tell(rank, Exited(0))
    ended = record.write(plan, 0, "done", exit_code=0)
    run.close()
    assert ended.steps_done == steps
    logs = sum(path.stat().st_size for path in (run.path / "logs").iterdir())
    return {
        "memory_bytes": _most_memory_bytes(),
        "node_bytes": [sum(path.stat().st_size for path in node.iterdir()) for node in nodes],
        "log_bytes": logs,
        "run_bytes": sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file()) - logs,
    }


def _most_memory_bytes() -> int:
    """Of this process since it was started as what it is."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


if __name__ == "__main__":
    print(json.dumps(simulate(Path(sys.argv[1]), int(sys.argv[2]))))
