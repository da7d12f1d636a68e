"""Which words of a failed rank reach the launcher: those of the cause, however often it was wrapped."""

from __future__ import annotations

from holmes_runtime.torchrun import _with_cause
from launcher.supervise.failure import first_cause
from tests.launcher.test_failure import failure

CHAINED = """Traceback (most recent call last):
  File "comm.py", line 1, in wait
RuntimeError: Connection closed by peer [10.2.0.2]:45698

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
RuntimeError: Failed to run stage backward:
"""


def test_lost_peer_wrapped_by_pipelining_is_still_a_consequence() -> None:
    report = {"message": "RuntimeError: Failed to run stage backward:", "extraInfo": {"py_callstack": CHAINED}}
    peer, killed = failure("a", 1, _with_cause(report), 1.0), failure("b", -9, "torchrun ended with -9", 2.0)
    assert first_cause([peer, killed]) is killed


def test_exception_of_its_own_is_told_as_it_is() -> None:
    assert _with_cause({"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback"}}) == "ValueError: bad"
