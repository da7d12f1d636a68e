"""A rank is at work where its innermost call is the user's, or of a package of ours that waits for no other rank."""

from __future__ import annotations

import ast
import queue
import threading
from pathlib import Path

import pytest
import torch.distributed
import torch.nn.modules.linear

from holmes_runtime.health import own_stack
from holmes_runtime.health.own_stack import NEVER_WAITING, Call, main_calls, working_call

RUNTIME = Path(own_stack.__file__).parents[1]
FORWARD = Call("/home/me/src/model.py", 21, "forward")
LAYER = Call(torch.nn.modules.linear.__file__, 134, "forward")
LOCK = Call(threading.__file__, 355, "wait")
COLLECTIVE = Call(f"{Path(torch.distributed.__file__).parent}/distributed_c10d.py", 83, "wrapper")
LOOP = Call(f"{RUNTIME}/run_steps.py", 50, "run_steps")


@pytest.mark.parametrize(
    ("calls", "working"),
    [
        ((FORWARD, LOOP), FORWARD),
        ((LAYER, FORWARD, LOOP), FORWARD),
        ((LOCK, FORWARD, LOOP), FORWARD),
        ((Call("<string>", 1, "f"), FORWARD, LOOP), FORWARD),
        ((Call(f"{Path(threading.__file__).parent}/site-packages/einops/einops.py", 1, "rearrange"), LOOP), 0),
        ((Call("/home/me/.local/lib/python3.12/site-packages/einops/einops.py", 1, "rearrange"), LOOP), 0),
        ((COLLECTIVE, FORWARD, LOOP), None),
        ((Call(f"{RUNTIME}/comm/streams.py", 32, "wait"), LOOP), None),
        ((Call(f"{RUNTIME}/a_package_made_tomorrow/waits.py", 1, "wait"), LOOP), None),
        ((LOCK, Call(f"{RUNTIME}/checkpoint/checkpoints.py", 230, "check"), LOOP), None),
        ((LOCK, Call(f"{RUNTIME}/data/read_ahead.py", 47, "take"), LOOP), 1),
        ((LAYER, LOOP), None),
        ((), None),
    ],
)
def test_call_that_is_at_work(calls: tuple[Call, ...], working: Call | int | None) -> None:
    assert working_call(calls) == (calls[working] if isinstance(working, int) else working)


@pytest.mark.parametrize("file", [file for name in NEVER_WAITING for file in sorted((RUNTIME / name).glob("*.py"))])
def test_packages_that_never_wait_call_no_wait(file: Path) -> None:
    """What they wait for by a name of torch's `distributed` is seen on the stack."""
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert "wait" not in {call.attr for call in calls if isinstance(call, ast.Attribute)}


@pytest.mark.parametrize("file", sorted(RUNTIME.glob("*/*.py")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_wait_in_any_other_file_of_ours_is_no_work(file: Path) -> None:
    at_work = working_call((Call(str(file), 1, "wait"), FORWARD)) is not None
    assert at_work == (file.parent.name in NEVER_WAITING)


def test_calls_of_the_main_thread_are_seen_from_another() -> None:
    seen: queue.Queue[tuple[Call, ...]] = queue.Queue()
    threading.Thread(target=lambda: seen.put(main_calls())).start()
    calls = seen.get()
    assert __file__ in [call.file for call in calls]
    assert working_call(calls) is not None
