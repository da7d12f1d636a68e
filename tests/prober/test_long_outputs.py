"""Outputs that no tool gives, of hundreds of kilobytes, are read in time that grows with their length alone.

Where it grows with the square, a case takes hours, and the time limit of tests ends it.
"""

from __future__ import annotations

import random

import pytest

from prober.asking.recording import Recorded
from tests.prober.test_recordings import read, recorded, scenarios
from tests.seeds import seeds

SIZE = 200_000  # characters
REPEATED = (
    *("\n", " ", "\t", " \n", "(", "[", "|", ":", "a", "1", "/"),
    *("a: ", ": a", "a\n", " a", "(a)", "\r", "- ", "a@a"),
)
SEEDS, COMMANDS = 200, 12
Sample = tuple[Recorded, ...]


@pytest.fixture(scope="module")
def commands() -> Sample:
    """One output of each command of all samples."""
    by_command = {each.command: each for folder in scenarios() for each in recorded(folder)}
    return tuple(by_command.values())


@pytest.mark.slow
@pytest.mark.parametrize("repeated", REPEATED, ids=repr)
def test_one_text_over_and_over_is_read(commands: Sample, repeated: str) -> None:
    text = repeated * (SIZE // len(repeated))
    read(Recorded(each.command, text, each.exit_code) for each in commands)


@pytest.mark.parametrize("seed", seeds(SEEDS, few=0))
def test_an_output_with_a_long_run_of_one_text_in_it_is_read(commands: Sample, seed: int) -> None:
    draw = random.Random(seed)

    def stretched(each: Recorded) -> Recorded:
        at, run = draw.randrange(len(each.text) + 1), draw.choice(REPEATED)
        text = each.text[:at] + run * (SIZE // len(run)) + each.text[at:]
        return Recorded(each.command, text, each.exit_code)

    read(stretched(each) for each in draw.sample(commands, COMMANDS))
