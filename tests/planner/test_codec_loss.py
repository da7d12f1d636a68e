"""What a codec costs in loss is said wherever a plan offers or uses it, and is what docs/slow-links.md measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holmes_runtime.config.codec import codecs_up_to
from planner.cost.codec_loss import LOSS_PERCENT, loss_words

PAGE = Path(__file__).parents[2] / "docs" / "slow-links.md"
ROW = re.compile(r"^\| (\d) \| (int8|int4) \|.*\| ([+-]\d+\.\d+) % \|$", re.MULTILINE)


def test_penalties_are_the_means_that_were_measured() -> None:
    measured = {(codec, int(cuts)): float(percent) for cuts, codec, percent in ROW.findall(PAGE.read_text("utf-8"))}

    assert len(measured) == 6
    for codec, by_cuts in LOSS_PERCENT.items():
        assert by_cuts == {cuts: pytest.approx(percent) for (name, cuts), percent in measured.items() if name == codec}


def test_words_name_every_number_of_cuts_and_the_source() -> None:
    for codec, by_cuts in LOSS_PERCENT.items():
        words = loss_words(codec)
        assert "docs/slow-links.md" in words
        for percent in by_cuts.values():
            assert f"{abs(percent):.1f} %" in words
    assert "-0.0" not in loss_words("int8")
    assert "not measured" in loss_words("bf16")


@pytest.mark.parametrize("value_bytes", [2, 4])
def test_int4_is_allowed_only_by_name(value_bytes: int) -> None:
    for lossiest in ("none", "bf16", "int8"):
        assert "int4" not in codecs_up_to(lossiest, value_bytes)
    assert codecs_up_to("int4", value_bytes)[-1] == "int4"
