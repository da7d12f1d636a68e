"""A run whose trunk becomes slow changes codecs and depth of its edges without a restart, and back when it recovers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from launcher.journal.follow_folder import past_notices
from launcher.journal.run_folder import read_run
from planner.cost.collectives import tcp_payload_share
from tests.builders.bed_runs import launched, plan_that_saves
from tests.cli.test_three_commands import nothing_is_left
from tests.testbed.bed_needs import missing_for_trunk
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, only_run, said_until

pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(missing_for_trunk()), reason="no trunk here")]

FAST_MBPS, SLOW_MBPS = 100, 20
STEPS, FALLS_AT, RISES_AT = 64, 14, 34  # when what is usual is known, and before the edges are looked at again
# As in benchmarks/runtime.py: ten layers that sleep, and messages of 360 KB before they are packed.
JOB: dict[str, Any] = {
    "model": {"num_layers": 10, "hidden_size": 352, "num_heads": 4, "seq_length": 128},
    "global_batch_size": 32,
    "compute": {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}},
    "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 2, "recompute": "none", "schedule": "eager"},
    "wire": {"edges": "int8"},
}


@pytest.fixture
def trunk_site(tmp_path: Path) -> Iterator[Site]:
    """Two clusters of two hosts with a trunk between them, of which hosts.yaml says how much it carries."""
    with bed_site(tmp_path, slow_mbps=1000, trunk_mbps=FAST_MBPS) as site:
        assert site.bed is not None
        written = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
        names = [host if isinstance(host, str) else host["name"] for host in written["hosts"]]
        written["hosts"] = [{"name": name, "cluster": name[0]} for name in names]
        written["trunks"] = [{"between": ["a", "b"], "gbps": FAST_MBPS / 1e3}]
        site.hosts_yaml.write_text(yaml.safe_dump(written), encoding="utf-8")
        yield site


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The lines of all steps."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_trunk_that_becomes_slow_and_recovers_costs_no_restart(
    trunk_site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, bed = trunk_site, trunk_site.bed
    assert bed is not None
    plan_file = plan_that_saves(site, tmp_path, steps=STEPS, **JOB)
    plan = read_file(Plan, plan_file)
    share = FAST_MBPS / 8 * 1e6 * tcp_payload_share(None) / 2
    assert {group.trunk_bytes_per_s for group in plan.groups if group.axis == "pp_forward"} == {share}
    process = launched(site, tmp_path / "runs", plan_file)
    try:
        said_until(process, f"step {FALLS_AT}/")
        bed.set_trunk(rate_mbps=SLOW_MBPS)
        said = said_until(process, "edge a1+a2-b1+b2: ")
        said_until(process, f"step {RISES_AT}/")
        bed.set_trunk(rate_mbps=FAST_MBPS)
        said += process.communicate(timeout=300)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    folder = only_run(tmp_path / "runs")
    run, steps = read_run(folder), steps_of(folder)
    assert (run.state, run.attempt, run.steps_done) == ("done", 0, STEPS)
    notices = [text for _, text in past_notices(folder)]
    changes = {step["step"]: text for step in steps for text in step["verdicts"] if text.startswith("edge ")}
    assert all(text in notices for text in changes.values())
    while_slow = [text for step, text in changes.items() if FALLS_AT <= step < RISES_AT]
    afterwards = [text for step, text in changes.items() if step >= RISES_AT]
    assert any("-> int8" in text for text in while_slow), changes
    assert any("int8 -> " in text for text in afterwards), changes
    assert nothing_is_left(bed)
    with capsys.disabled():
        print(f"\n{json.dumps(changes, indent=1)}")
