"""A run's file for Prometheus: in its text format, whole at any moment, with what alerts need."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.journal.prometheus import Gauge, PrometheusFile, exposition
from tests.cli.screens import bed_plan, finished, step

# Source: Prometheus, Exposition formats, "Comments, help text, and type information"; no time stamps, as node_exporter
# refuses files that hold some.
SAMPLE = re.compile(r'([a-z_]+)\{([a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\} -?[0-9.e+-]+')
PLAN = bed_plan()
RUN = "20261123-120000-abcd"


def values(text: str) -> dict[str, float]:
    """The samples by name and labels but the run's."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines)
    assert text.endswith("\n")
    return {line.rpartition(" ")[0].replace(f'run="{RUN}"', ""): float(line.rpartition(" ")[2]) for line in lines}


def test_file_tells_state_speed_and_when_it_was_last_heard_of(tmp_path: Path) -> None:
    clock = iter([100.0, 100.0, 100.2, 105.0, 105.0, 106.0])
    file = PrometheusFile(tmp_path, RUN, lambda: next(clock))
    path = tmp_path / f"holmes-{RUN}.prom"
    file.take_step(step(0, PLAN))
    assert not path.exists()  # of a run that has not begun nothing is known

    file.take_run(finished(PLAN, state="running"), PLAN)
    file.take_step(step(1, PLAN))  # within a second of the last
    assert values(path.read_text(encoding="utf-8"))["holmes_run_steps_done{}"] == 1
    file.take_step(step(2, PLAN))
    seen = values(path.read_text(encoding="utf-8"))
    assert seen["holmes_run_steps_done{}"] == 3
    assert seen["holmes_run_step_seconds{}"] == PLAN.prediction.step_s
    assert seen["holmes_run_updated_timestamp_seconds{}"] == 105.0
    assert seen['holmes_run_state{,state="running"}'] == 1
    assert seen['holmes_run_interface_sent_bytes{,host="a1",device="eth0"}'] == 2_150_000_000
    assert path.stat().st_mode & 0o777 == 0o644

    file.take_run(finished(PLAN, state="failed"), PLAN)
    seen = values(path.read_text(encoding="utf-8"))
    assert (seen['holmes_run_state{,state="running"}'], seen['holmes_run_state{,state="failed"}']) == (0, 1)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_utilisation_of_cpus_is_left_out(tmp_path: Path) -> None:
    file = PrometheusFile(tmp_path, RUN, lambda: 0.0)
    file.take_step(replace(step(0, PLAN), mfu=0.0))
    file.take_run(finished(PLAN), PLAN)
    assert "mfu" not in (tmp_path / f"holmes-{RUN}.prom").read_text(encoding="utf-8")


def test_a_folder_that_is_gone_ends_no_run(tmp_path: Path) -> None:
    PrometheusFile(tmp_path / "gone", RUN).take_run(finished(PLAN), PLAN)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_labels_are_escaped(name: str) -> None:
    values(exposition("r", [Gauge("x", "X.", 1, {"host": name})]))


def test_help_and_type_stand_once_before_their_samples() -> None:
    text = exposition("r", [Gauge("x", "X.", 1, {"host": "a"}), Gauge("x", "X.", 2, {"host": "b"})])
    assert text == '# HELP x X.\n# TYPE x gauge\nx{run="r",host="a"} 1\nx{run="r",host="b"} 2\n'


def test_a_link_that_somebody_made_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("private", encoding="utf-8")
    mine.chmod(0o600)
    for name in (f"holmes-{RUN}.partial", f"holmes-{RUN}.prom"):
        (tmp_path / name).symlink_to(mine)

    PrometheusFile(tmp_path, RUN, lambda: 0.0).take_run(finished(PLAN), PLAN)

    assert (mine.read_text(encoding="utf-8"), mine.stat().st_mode & 0o777) == ("private", 0o600)
    assert not (tmp_path / f"holmes-{RUN}.prom").is_symlink()
