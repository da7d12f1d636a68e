"""`holmes job --explain KEY`: one key of job.yaml in words; nothing is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_a_key_is_explained_with_type_default_and_an_example(command: Command, tmp_path: Path) -> None:
    done = command("job", "--explain", "optimizer.warmup_steps")

    assert done.code == 0
    assert done.stdout.startswith("optimizer.warmup_steps\n  type: whole number, at least 0\n  default: 0\n  meaning: ")
    assert done.stdout.endswith("  example:\n    optimizer: {warmup_steps: 100}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_last_part_of_a_key_explains_all_that_end_so(command: Command) -> None:
    done = command("job", "--explain", "every_steps")

    assert (done.code, done.stderr) == (0, "")
    assert "evaluation.every_steps\n" in done.stdout
    assert "\ncheckpoint.every_steps\n" in done.stdout


NEAREST = {"warmupsteps": "optimizer.warmup_steps", "optimizer.gradclip": "optimizer.grad_clip", "stpes": "steps"}


@pytest.mark.parametrize(("key", "near"), NEAREST.items())
def test_an_unknown_key_is_wrong_usage_and_names_the_nearest(command: Command, key: str, near: str) -> None:
    done = command("job", "--explain", key)

    assert (done.code, done.stdout) == (2, "")
    assert f"did you mean `{near}`?" in done.stderr


def test_without_a_key_all_are_listed(command: Command) -> None:
    done = command("job")

    assert done.code == 0
    assert "checkpoint.keep_last: whole number, at least 1 (2)\n" in done.stdout
