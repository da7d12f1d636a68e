"""What is shown fits the terminal, with no word cut in two, and is what was accepted last."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem

from holmes_cli.screen.fitted_table import column_widths
from holmes_cli.screen.run_view import HELD_S, RunView
from launcher.journal.run_events import LogLine
from tests.cli.screens import SCREENS, STARTED_S, WIDTHS, bed_plan, golden, shown, step

CELLS = st.text("ab ", min_size=1, max_size=40)
TABLES = ("┏", "┃", "┡", "│", "└", "├")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_screen_is_the_accepted_one(name: str, width: int) -> None:
    assert shown(name, width) == golden(name, width).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCREENS)
def test_colours_change_no_text(name: str) -> None:
    coloured = shown(name, 120, ColorSystem.STANDARD)
    plain = "".join(line.rstrip() + "\n" for line in re.sub("\x1b\\[[0-9;]*m", "", coloured).splitlines())
    assert plain == golden(name, 120).read_text(encoding="utf-8")
    if name in ("probe", "failed"):
        assert coloured != plain


@pytest.mark.parametrize("name", SCREENS)
def test_tables_of_80_columns_fit_and_cut_no_word(name: str) -> None:
    narrow, wide = ([line for line in shown(name, width).splitlines() if line.startswith(TABLES)] for width in WIDTHS)
    assert max(map(len, narrow), default=0) <= WIDTHS[0]
    assert words(narrow) == words(wide)


def words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in re.split(r"[\s┃│]+", line) if not set(word) <= set("┏━┳┓┡╇┩└─┴┘├")}


def test_the_answer_stands_first() -> None:
    first = shown("plan", 120).splitlines()[:3]
    assert first[0].startswith("tp=1 pp=2 dp=32, micro-batch 1 x 16, 1f1b: stage 0 on a, stage 1 on b")
    assert re.fullmatch(
        r"\d\.\d\d s a step \(\d\.\d\d to \d\.\d\d s\), \d+ tokens/s, MFU \d\d\.\d%; 100000 steps in \d\.\d days",
        first[1],
    )
    assert re.fullmatch(r"\d\.\d\dx as fast as the usual rank order on these hosts, \d+\.\d\d s a step", first[2])


def test_the_verdict_stands_before_every_traceback_but_its_own() -> None:
    text = shown("failed", 120)
    assert text.index("error: host b1 (b): rank 2 failed first: exit code 1") < text.index("Traceback")
    assert text.count("Traceback") == 1
    assert "the whole output is in runs/20261123-120000-abcd/logs/b1-rank2.log" in text


def test_a_run_under_way_shows_id_time_and_what_it_makes_of_its_gpus() -> None:
    text = shown("running", 80)
    assert "run 20261123-120000-abcd  7.4 min so far, " in text
    assert re.search(r"\d\.\d days to go", text)
    screen = text.rpartition("so far")[2]
    assert screen.splitlines()[1] == "█" * 20 + "░" * 20
    assert screen.splitlines()[2].startswith("step 50000/100000  loss 3.5000")
    assert "MFU 43.2%  42.0 GiB" in screen.replace("\n", " ")
    assert "what it is" not in screen


@pytest.mark.parametrize(("step_s", "shown_now"), [(1.0, False), (HELD_S + 1.0, True)])
def test_lines_after_a_traceback_come_when_steps_long_after_show_that_the_rank_lives(
    capsys: pytest.CaptureFixture[str], step_s: float, shown_now: bool
) -> None:
    plan, clock = bed_plan(), [STARTED_S]
    with RunView(plan, now_s=lambda: clock[0]) as view:
        view.show(LogLine("a1", "a", 0, "Traceback (most recent call last):"))
        view.show(LogLine("a1", "a", 0, "KeyError: caught by the model"))
        clock[0] += step_s
        view.show(step(3, plan))
    said = capsys.readouterr().err
    assert "step 4/" in said
    assert ("KeyError: caught by the model" in said) is shown_now


def test_ids_of_runs_are_whole_at_80_columns_so_that_they_can_be_copied() -> None:
    lines = shown("ps", 80).splitlines()
    assert sum(bool(re.match("│ 20261123-1[2-6]0000-[0-9a-f]{4} │", line)) for line in lines) == 5


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1), st.integers(2, 60))
def test_columns_keep_their_longest_word_where_all_of_them_have_room(rows: list[tuple[str, str]], room: int) -> None:
    widths = column_widths(rows, room)
    longest = [max((len(word) for row in rows for word in row[column].split()), default=1) for column in (0, 1)]
    assert sum(widths) <= room
    assert sum(longest) > room or all(width >= word for width, word in zip(widths, longest, strict=True))
