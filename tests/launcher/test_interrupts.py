"""Requests to end a launch are raised where it looks for them, and never between a lock and its release."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from launcher.nodes.interrupts import SIGNALS, Interrupts, ctrl_c_ignored, signals_call
from launcher.nodes.node_link import LinkState, NodeMessage
from launcher.nodes.start import RunningNodes


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:  # under `nohup` one is ignored, and stays so
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_raised_once_where_it_is_looked_for(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with signals_call(interrupts.take_signal):
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.heed()
        interrupts.heed()


def test_a_pause_ends_at_a_signal() -> None:
    interrupts = Interrupts()
    with signals_call(interrupts.take_signal):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            interrupts.pause(600.0)
        timer.join()


def test_long_work_ends_at_a_signal_and_what_follows_does_not() -> None:
    interrupts = Interrupts()
    with signals_call(interrupts.take_signal):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            interrupts.raised_during(lambda: time.sleep(600.0))
        timer.join()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # and work is not begun with a request noted
            interrupts.raised_during(pytest.fail)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with signals_call(pytest.fail):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_is_ignored_while_an_ended_run_is_shown() -> None:
    with ctrl_c_ignored():
        signal.raise_signal(signal.SIGINT)


def test_a_signal_at_any_line_of_hearing_leaves_no_lock_taken() -> None:
    """Signals come at each line that Python runs inside `hear` in turn, those of `queue` and `threading` included."""
    at_line = 0
    while True:
        at_line += 1
        interrupts = Interrupts()
        nodes = RunningNodes((), False, interrupts)
        nodes.heard.put(NodeMessage(0, LinkState("connecting"), 0.0))
        with signals_call(interrupts.take_signal):
            came = _hear_interrupted(nodes, at_line)
        assert nodes.heard.mutex.acquire(blocking=False), f"a signal at line {at_line} leaves the queue locked"
        if not came:
            break
    assert at_line > 20


def _hear_interrupted(nodes: RunningNodes, at_line: int) -> bool:
    """Hear a message, then wait in vain, with a signal at that line; return False if there are fewer lines."""
    lines = 0

    def count(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename in (queue.__file__, threading.__file__) and event in ("line", "return"):
            lines += 1
            if lines == at_line:
                signal.raise_signal(signal.SIGINT)
        return count

    tracing = sys.gettrace()
    sys.settrace(count)
    try:
        nodes.hear(0.0)
        nodes.hear(0.01)
        nodes.interrupts.heed()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False
