"""Outputs that no tool gives, of hundreds of kilobytes, are read in time that grows with their length alone.

Where it grows with the square, a case takes hours, and the time limit of tests ends it.
"""

from __future__ import annotations

import random
import re

import pytest

from prober.asking.recording import Recorded
from tests.prober.test_recordings import read, recorded, scenarios
from tests.seeds import all_but, seeds

SIZE = 200_000  # characters
REPEATED = (
    *("\n", " ", "\t", " \n", "(", "[", "|", ":", "a", "1", "/"),
    *("a: ", ": a", "a\n", " a", "(a)", "\r", "- ", "a@a"),
)
# A tool and its subject, whatever else the command says: what is read in its place is the same text.
TOOL = re.compile(
    r"ibstat\b|ibdev2netdev|ibv_devinfo|fi_info|dmesg|show_gids|sminfo|rdma \w+|ip \w+|nvidia-smi( -*\w+)?"
)
SEEDS, COMMANDS = 200, 12
Sample = tuple[Recorded, ...]


@pytest.fixture(scope="module")
def commands() -> Sample:
    """One output of each command of all samples."""
    by_command = {each.command: each for folder in scenarios() for each in recorded(folder)}
    return tuple(by_command.values())


@pytest.mark.slow
@pytest.mark.parametrize("repeated", all_but({"\r"}, REPEATED))  # a line's end like "\n", and as slow
def test_one_text_over_and_over_is_read(commands: Sample, repeated: str) -> None:
    text = repeated * (SIZE // len(repeated))
    readers = {found[0] if (found := TOOL.search(each.command)) else each.command: each for each in commands}
    read(Recorded(each.command, text, each.exit_code) for each in readers.values())


@pytest.mark.parametrize("seed", seeds(SEEDS, few=0))
def test_an_output_with_a_long_run_of_one_text_in_it_is_read(commands: Sample, seed: int) -> None:
    draw = random.Random(seed)

    def stretched(each: Recorded) -> Recorded:
        at, run = draw.randrange(len(each.text) + 1), draw.choice(REPEATED)
        text = each.text[:at] + run * (SIZE // len(run)) + each.text[at:]
        return Recorded(each.command, text, each.exit_code)

    read(stretched(each) for each in draw.sample(commands, COMMANDS))
