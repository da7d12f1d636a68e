"""`--via slurm` and the nodes of a job: what is refused, and why."""

from __future__ import annotations

import pytest

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.hosts.transport_option import hosts_reached_by, reached_by
from tests.cli.conftest import Command
from tests.launcher.plans import cpu_plan


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_HET_SIZE", raising=False)


def test_a_plan_keeps_all_but_the_way_to_its_nodes() -> None:
    plan = cpu_plan()
    assert reached_by(plan, None) is plan
    by_slurm = reached_by(plan, "slurm")
    assert {node.access.transport for node in by_slurm.nodes} == {"slurm"}
    assert by_slurm.ranks == plan.ranks


def test_addresses_for_ssh_are_not_taken_for_slurms_names() -> None:
    hosts = HostsFile.model_validate({"hosts": [{"name": "n1", "address": "10.0.0.1"}]})
    assert hosts_reached_by(hosts, None) is hosts
    assert [entry.address for entry in hosts_reached_by(hosts, "slurm").hosts] == [None]
    own = HostsFile.model_validate({"transport": "slurm", "hosts": [{"name": "n1", "address": "nid0001"}]})
    assert hosts_reached_by(own, "slurm") is own


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("n[1-2]", "--via", "pdsh"), "--via pdsh: not known"),
        (("n1", "--allocation"), "--allocation: the hosts are those of the job"),
        (("--allocation",), "SLURM_JOB_NODELIST is not set: this is not inside a Slurm job"),
        ((), "no hosts given"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_host_is_asked(
    command: Command, arguments: tuple[str, ...], said: str
) -> None:
    done = command("probe", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_job_whose_nodes_cannot_be_asked_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("PATH", "/nonexistent")
    done = command("probe")
    assert done.code == 1
    assert "no `srun` here" in done.stdout
