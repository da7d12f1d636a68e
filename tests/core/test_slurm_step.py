"""Commands as steps of a Slurm job: which nodes it has, what a step asks for, and what is said where none starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError, HostError
from holmes_core.hosts.allocation import allocated_nodes, allocation_hosts, is_in_allocation
from holmes_core.records.access import Access
from holmes_core.remote.slurm.slurm_step import connect_by_slurm, step_words

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2],login3"}
# Recorded from a job of two components on Slurm 22.05.8.
HETEROGENEOUS = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "a1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "a1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]",
}
BY_SLURM = Access(transport="slurm")


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for Slurm's: writes down its words and environment, and runs what follows them here."""
    (tmp_path / "srun").write_text(
        '#!/bin/sh\necho "$@" >>"$0.said"\nenv >"$0.environ"\n'
        'while [ "$1" != /bin/sh ]; do\n'
        '  [ "$1" != --nodelist=bad ] || { echo "srun: error: no" >&2; exit 1; }\n  shift\ndone\nexec "$@"\n'
    )
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_the_nodes_of_a_job_are_in_slurms_order_with_their_components() -> None:
    assert allocated_nodes(JOB) == {"n1": None, "n2": None, "login3": None}
    assert allocated_nodes(HETEROGENEOUS) == {"a1": 0, "b1": 1, "b2": 1}
    assert (is_in_allocation(JOB), is_in_allocation({})) == (True, False)


def test_the_hosts_of_a_job_are_reached_by_its_steps() -> None:
    hosts = allocation_hosts(HETEROGENEOUS)
    assert [entry.name for entry in hosts.hosts] == ["a1", "b1", "b2"]
    assert {hosts.access(entry).transport for entry in hosts.hosts} == {"slurm"}


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_NODELIST": ""}, {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "a1"}]
)
def test_outside_a_job_or_without_a_components_nodes_there_are_none(environ: dict[str, str]) -> None:
    with pytest.raises(HolmesError, match="is not set: this is not inside a Slurm job"):
        allocated_nodes(environ)


def test_a_step_asks_for_all_that_the_job_has_on_the_node() -> None:
    assert {"--overlap", "--nodelist=n1", "--mem=0", "--cpu-bind=none"} < set(step_words("n1", None, None))
    assert {"--gpus-per-node=8", "--gpu-bind=none"} < set(step_words("n1", None, "8"))
    in_component = step_words("b1", 1, "8")
    assert "--het-group=1" in in_component
    assert not any(word.startswith("--gpus") for word in in_component)  # the count is the first component's


def test_commands_run_by_srun_without_the_jobs_wishes_for_its_tasks(srun: Path) -> None:
    environ = {**os.environ, **JOB, "SLURM_NTASKS_PER_NODE": "8"}
    connection = connect_by_slurm("alias", Access(transport="slurm", address="n2"), environ)
    done = connection.run("cat; echo $((6 * 7)); exit 3", b"binary \0\xff", 10.0)
    assert (done.exit_code, done.stdout) == (3, b"binary \0\xff42\n")
    assert "--nodelist=n2" in (srun / "srun.said").read_text()
    assert "SLURM_NTASKS_PER_NODE" not in (srun / "srun.environ").read_text()


def test_a_command_that_hangs_is_asked_to_end_before_it_is_killed(srun: Path, tmp_path: Path) -> None:
    connection = connect_by_slurm("n1", BY_SLURM, {**os.environ, **JOB})
    with pytest.raises(HostError, match="no answer within 1 s"):
        connection.run(f"trap 'touch {tmp_path}/asked; exit 0' TERM; while :; do sleep 0.1; done", b"", 1.0)
    assert (tmp_path / "asked").exists()
    assert srun.exists()


@pytest.mark.parametrize(
    ("host", "environ", "said"),
    [
        ("n9", JOB, "node n9 is not in this Slurm job, which has n1, n2, login3"),
        ("n1", {}, "SLURM_JOB_NODELIST is not set"),
        ("bad", {"SLURM_JOB_NODELIST": "bad"}, "no step starts: srun: error: no"),
    ],
)
@pytest.mark.usefixtures("srun")
def test_a_host_on_which_no_step_starts_is_named(host: str, environ: dict[str, str], said: str) -> None:
    with pytest.raises(HostError, match=said) as refused:
        connect_by_slurm(host, BY_SLURM, {**os.environ, **environ})
    assert refused.value.host == host


def test_without_srun_it_is_said_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="no `srun` here"):
        connect_by_slurm("n1", BY_SLURM, {**JOB, "PATH": str(tmp_path)})
