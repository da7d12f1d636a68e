"""holmes doctor on NCCL logs of real runs, scored as the collection says, and on synthetic ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prober.nccl_logs.diagnose import SOUND, Diagnosis, diagnose
from prober.nccl_logs.log_facts import LogFacts
from prober.nccl_logs.read_log import read_log
from tests.builders.nccl_logs import diagnosed

CASES = Path(__file__).parents[3] / "shared" / "nccl-logs"
SYNTHETIC = Path(__file__).parents[1] / "data" / "nccl_logs"
MAX_POINTS = 10


def diagnosis(*logs: Path) -> Diagnosis:
    facts = LogFacts()
    for log in logs:
        with log.open("rb") as file:
            read_log(file, log.name, facts)
    return diagnose(facts)


def points(expected: dict[str, object], found: Diagnosis) -> int:
    """Return the points of a case: a wrong alarm on a sound log, and a fault called sound, cost four."""
    run = found.run
    if found.cause == expected["cause"]:
        cause = 4
    else:
        cause = -4 if SOUND in (expected["cause"], found.cause) and found.cause is not None else 0
    remedy = found.remedy.lower()
    parts = expected["remedy_contains"]
    assert isinstance(parts, list)
    shape = run.num_ranks == expected["nranks"] and run.num_nodes in (None, expected["nnodes"])
    versions = ",".join(run.versions) or None
    devices = list(run.hcas) == expected["hcas"] and sorted(run.interfaces) == sorted(expected["interfaces"])  # type: ignore[call-overload]
    return (
        cause
        + 2 * ((run.network or "unknown") == expected["network"])
        + (run.gdr is expected["gdr"])
        + (shape and versions == expected["nccl_version"])
        + devices
        + all(any(word.lower() in remedy for word in part.split("|")) for part in parts)
    )


@pytest.mark.skipif(not CASES.exists(), reason="the collection of logs is not here")
@pytest.mark.parametrize(
    "case", sorted(path.parent for path in CASES.glob("*/expected.json")), ids=lambda case: case.name
)
def test_cause_of_a_real_log_is_the_one_that_its_thread_gives(case: Path) -> None:
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    assert diagnosis(*sorted(case.glob("*.log"))).cause == expected["cause"]


@pytest.mark.skipif(not CASES.exists(), reason="the collection of logs is not here")
def test_nine_tenths_of_the_points_of_real_logs_and_no_alarm_on_a_sound_one() -> None:
    scores, alarms = {}, []
    for case in sorted(path.parent for path in CASES.glob("*/expected.json")):
        expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
        found = diagnosis(*sorted(case.glob("*.log")))
        scores[case.name] = points(expected, found)
        alarms += [case.name] if expected["cause"] == SOUND != found.cause else []
    assert alarms == []
    assert sum(scores.values()) >= 0.9 * MAX_POINTS * len(scores), scores


@pytest.mark.parametrize("name", ["bootstrap_docker0", "bootstrap_lo", "loopback_127_0_1_1"])
def test_bootstrap_on_an_address_local_to_its_host_is_the_wrong_interface(name: str) -> None:
    assert diagnosis(SYNTHETIC / f"{name}.log").cause == "wrong-interface"


def test_sound_infiniband_has_nothing_wrong() -> None:
    found = diagnosis(SYNTHETIC / "sound_infiniband.log")
    assert (found.cause, found.also) == (SOUND, ())
    assert (found.run.network, found.run.gdr, found.run.num_ranks, found.run.num_nodes) == ("IB", True, 8, 2)
    assert found.run.hcas == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


def test_lines_of_a_sound_run_that_grep_left_are_sound() -> None:
    lines = (SYNTHETIC / "sound_infiniband.log").read_text(encoding="utf-8").splitlines()
    for word in ("GDRDMA", "Using network", "NET/IB"):
        assert diagnosed(*(line for line in lines if word in line)).cause == SOUND, word


def test_p2p_off_on_one_host_is_a_remark() -> None:
    found = diagnosis(SYNTHETIC / "p2p_disabled.log")
    assert found.cause == SOUND
    assert [finding.cause for finding in found.also] == ["p2p-off"]
