"""Garbage is looked for when the run says so; so a step must leave no tensors to wait for that."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import get_args

import pytest

from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.run_steps import COLLECT_EVERY_STEPS, collect_garbage

from .launched_runs import REPOSITORY


@pytest.mark.torch
def test_a_step_leaves_no_tensors_in_reference_cycles() -> None:
    command = [sys.executable, "-m", "tests.runtime.garbage_worker"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{schedule} 0 0" for schedule in get_args(ScheduleName)]


def test_garbage_is_looked_for_after_the_first_step_and_every_hundredth() -> None:
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            collections.append(step)

    gc.disable()
    gc.callbacks.append(note)
    try:
        for step in range(1, 2 * COLLECT_EVERY_STEPS + 2):
            collect_garbage(step)
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.enable()
    assert collections == [1, COLLECT_EVERY_STEPS, 2 * COLLECT_EVERY_STEPS]
