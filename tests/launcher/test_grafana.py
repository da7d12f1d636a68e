"""The dashboard and the alert rules that ship: of metrics that are written, and of the form their readers want."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.journal.prometheus import PrometheusFile
from tests.cli.screens import bed_plan, finished, step

PLAN = bed_plan()
# Source: Grafana, kinds/dashboard/dashboard_kind.cue (v11): what a dashboard and a panel must have, and names of units
# from packages/grafana-data/src/valueFormats/categories.ts.
REQUIRED = {"schemaVersion", "title", "panels", "templating", "time", "annotations", "editable", "refresh", "version"}
PANEL = {"id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig", "options"}
UNITS = {"none", "percentunit", "s", "bytes"}


def text_of(name: str) -> str:
    return files("templates").joinpath(name).read_text(encoding="utf-8")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text_of("grafana-dashboard.json"))
    return loaded


def rules() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(text_of("alerts.yml"))["groups"][0]["rules"]
    return loaded


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The metrics of a run with the labels of each, from a file that was written."""
    folder = tmp_path_factory.mktemp("prometheus")
    file = PrometheusFile(folder, "r", lambda: 100.0)
    file.take_step(step(0, PLAN))
    file.take_run(finished(PLAN, state="running"), PLAN)
    samples = re.findall(r"^(\w+)\{(.*)\}", Path(folder / "holmes-r.prom").read_text(encoding="utf-8"), re.MULTILINE)
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in samples}


def expressions() -> list[str]:
    targets = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return [*targets, *variables, *(rule["expr"] for rule in rules())]


def test_every_metric_and_label_they_name_is_written(written: dict[str, set[str]]) -> None:
    for expression in expressions():
        names = re.findall(r"holmes_\w+", expression)
        assert names
        for name in names:
            assert name in written, expression
        for name, matchers in re.findall(r"(holmes_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= written[name], expression


def test_every_metric_that_changes_is_shown(written: dict[str, set[str]]) -> None:
    named = {name for expression in expressions() for name in re.findall(r"holmes_\w+", expression)}
    assert set(written) - named == {"holmes_run_started_timestamp_seconds"}


def test_dashboard_has_what_grafana_requires() -> None:
    board = dashboard()
    assert board.keys() >= REQUIRED
    assert isinstance(board["schemaVersion"], int)
    assert "id" not in board  # one would replace another dashboard where it is imported
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set[tuple[int, int]]()
    for panel in panels:
        assert panel.keys() >= PANEL
        assert panel["type"] in ("timeseries", "stat")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert all(x < 24 for x, _ in mine)
        assert not mine & cells
        cells |= mine
    assert {each["name"] for each in board["templating"]["list"]} == {"source", "run"}


def test_alert_rules_have_what_prometheus_requires() -> None:
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Za-z]+", rule["alert"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"].keys() == {"summary", "description"}
        for text in rule["annotations"].values():
            assert set(re.findall(r"\{\{ (\S+)", text)) <= {"$labels.run", "$value"}


RUNNING = 'holmes_run_state{state="running", run="r"}'
FIRES: dict[str, list[tuple[str, str]]] = {
    "HolmesRunFailed": [('holmes_run_state{state="failed", run="r"}', "1x40")],
    "HolmesRunStandsStill": [(RUNNING, "1x40"), ('holmes_run_updated_timestamp_seconds{run="r"}', "60x40")],
    "HolmesRunIsSlow": [
        (RUNNING, "1x40"),
        ('holmes_run_step_seconds{run="r"}', "1.6x40"),
        ('holmes_run_predicted_step_seconds{run="r"}', "1x40"),
    ],
    "HolmesRunStartedAgain": [('holmes_run_attempt{run="r"}', "0x10 1x30")],
}
"""By alert a run, a sample a minute, of which Prometheus must alert, and of nothing else."""
SOUND = [
    (RUNNING, "1x40"),
    ('holmes_run_state{state="failed", run="r"}', "0x40"),
    ('holmes_run_updated_timestamp_seconds{run="r"}', "0+60x40"),
    ('holmes_run_step_seconds{run="r"}', "1.4x40"),
    ('holmes_run_predicted_step_seconds{run="r"}', "1x40"),
    ('holmes_run_attempt{run="r"}', "1x40"),
]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
def test_promtool_takes_the_rules_and_each_fires_of_its_run_alone(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(text_of("alerts.yml"), encoding="utf-8")
    assert FIRES.keys() == {rule["alert"] for rule in rules()}
    tests = []
    for series, fires in ((SOUND, None), *((FIRES[name], name) for name in FIRES)):
        checks = []
        for rule in rules():
            labels = {"severity": rule["labels"]["severity"], "run": "r"}
            extra = {"state": "failed"} if rule["alert"] == "HolmesRunFailed" else {}
            value = {"HolmesRunIsSlow": "1.6s"}.get(rule["alert"], "")
            texts = {
                key: text.replace("{{ $labels.run }}", "r").replace("{{ $value | humanizeDuration }}", value)
                for key, text in rule["annotations"].items()
            }
            expected = [{"exp_labels": labels | extra, "exp_annotations": texts}] if rule["alert"] == fires else []
            checks.append({"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": expected})
        samples = [{"series": name, "values": values} for name, values in series]
        tests.append({"interval": "1m", "input_series": samples, "alert_rule_test": checks})
    unit = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "unit.yml").write_text(yaml.safe_dump(unit), encoding="utf-8")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "unit.yml"]):
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
