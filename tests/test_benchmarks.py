"""Every benchmark starts and prints its figures in its shortest form, or a table says why it is not started here."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint_stall import SHAPE
from benchmarks.published_steps.measurements import measurements
from tests.free_ports import free_port

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parent.parent / "benchmarks"
TINY = replace(SHAPE, num_heads=4, num_kv_heads=4, num_layers=1, hidden_size=32, ffn_hidden_size=64, seq_length=16)
TEXT = "{folder}/text"
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="sshd as root"
)


@dataclass(frozen=True)
class Short:
    """The shortest form: words of the command line, and sizes of the module that no word of it sets.

    In words `{folder}` stands for a new one, with a small `text` in it, and `{port}` for a free port.
    """

    words: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    prints: str = r"(?m)^figure \S+ \S+"


STARTED = {
    "best_simulated": Short(("2",)),
    "chatty_run": Short(("3",), {"PRINTING": (False, True)}),
    "checkpoint_stall": Short(sizes={"SHAPE": TINY, "ROUNDS": 1}),
    "codec_loss": Short((TEXT, "--steps", "3", "--seeds", "1", "--cuts", "1"), {"EVALUATION_BATCHES": 1}),
    "codec_speed": Short(sizes={"SIZES_MIB": (0.5,), "REPETITIONS": 1}),
    "doctor_overhead": Short(sizes={"ROUNDS": 1, "BLOCK_S": 2}),
    "expert_placement": Short(sizes={"TOKENS": 64, "HOSTS": (2,), "SEEDS": 1}),
    "gradient_add": Short(),
    "islands_loss": Short(
        (TEXT, "--steps", "28", "--seeds", "1"), {"INNER_STEPS": 28, "EVALUATION_BATCHES": 1, "SHAPE": TINY}
    ),
    "learning_curve": Short(
        (TEXT, "--steps", "10", "--folder", "{folder}", "--picture", "{folder}/picture.svg", "--port", "{port}"),
        {"SHAPE": TINY},
    ),
    "planner_scale": Short(("8",), {"LOOPS": 1000}),
    "planner_shapes": Short(("20_clusters_of_one",), {"TIME_LIMIT_S": 1.0}),
    "probe_scale": Short(sizes={"SIZES": (2,)}),
    "published_steps.fit": Short(("H100",), {"FIRST_FACTOR": 1.0}, prints=r"mean \|log error\| \d"),
    "published_steps.row_files": Short(("V4", "12", "{folder}"), prints="holmes plan job.yaml"),
    "start_up": Short(sizes={"CASE": "8", "RANKS": (63,)}),
    "validation": Short(sizes={"measurements": lambda: measurements()[:2]}),
}
# Launches on a bed, as root, for minutes: each is imported, and those with a parser read their command line.
ON_A_BED = (
    *("bad_conditions", "hundred_launches", "islands", "launch", "local_state", "runtime", "slow_links", "slurm_start"),
    *("trainers", "trust", "two_clusters", "validation_bed", "adapters"),
)
WITH_PARSER = ("bad_conditions", "hundred_launches", "islands")
# The steps of `on_gpus` run on processes in test_on_gpus.py, the rivals' ranks in runtime/test_torch_rivals.py, and
# each row of the paper's table is computed in planner/test_paper_examples.py.
ELSEWHERE = {"on_gpus", "torch_rivals", "paper_tables"}


def test_every_benchmark_is_started_or_a_reason_is_given() -> None:
    scripts = (path for path in FOLDER.rglob("*.py") if '"__main__"' in path.read_text(encoding="utf-8"))
    names = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in scripts}
    assert {re.sub(r"^on_gpus\..*", "on_gpus", name) for name in names} == STARTED.keys() | set(ON_A_BED) | ELSEWHERE


MARKS = {
    "probe_scale": AS_ROOT,
    "chatty_run": pytest.mark.exhaustive,
    "doctor_overhead": pytest.mark.process,
}  # a minute of two cores


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in STARTED])
def test_benchmark_runs_in_its_shortest_form(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    short, module = STARTED[name], importlib.import_module(f"benchmarks.{name}")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "numbers.py").write_text("\n".join(map(str, range(5000))), encoding="utf-8")
    words = [word.format(folder=tmp_path, port=free_port()) for word in short.words]
    monkeypatch.setattr(sys, "argv", [name, *words])
    for size, value in short.sizes.items():
        monkeypatch.setattr(module, size, value)
    module.main()
    assert re.search(short.prints, capfd.readouterr().out)


@pytest.mark.parametrize("name", ON_A_BED)
def test_benchmark_of_a_bed_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


@pytest.mark.parametrize("name", WITH_PARSER)
def test_benchmark_of_a_bed_reads_its_command_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("usage: ")
