"""A GPU of a host is one run's at a time, of whichever user, and free again when the process that holds it is gone."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holmes_cli.api import launch
from holmes_cli.commands.launch_command import start_checked
from holmes_core.records.access import Access
from holmes_core.records.plan import Plan
from holmes_core.records.run import Run
from holmes_runtime.config.messages import NodeGpu
from holmes_runtime.config.node_config import GpuClaim
from holmes_runtime.node.admission.gpu_claims import SOCKETS, GpuClaims, read_claims
from launcher.nodes.preflight import Fault, Preflight, PreflightFailed
from tests.cli.conftest import Command
from tests.eventually import eventually
from tests.launcher.plans import gpu_plan
from tests.test_layers import ROOT

HOLDER = """
import signal, sys
from holmes_runtime.node.admission.gpu_claims import GpuClaims
from holmes_runtime.config.messages import NodeGpu
claims = GpuClaims()
print(claims.take((3,), (NodeGpu(3, sys.argv[1], "A100"),), "20261123-101112-abcd"), flush=True)
signal.pause()
"""


@pytest.fixture
def gpu() -> NodeGpu:
    """Of no other test: claims are known all over the machine."""
    return NodeGpu(3, f"GPU-{secrets.token_hex(4)}-1111-2222-3333-444455556666", "A100")


@pytest.fixture
def holder(gpu: NodeGpu) -> Iterator[subprocess.Popen[str]]:
    """A process that has the GPU."""
    words = [sys.executable, "-c", HOLDER, gpu.uuid]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "()\n"
        yield process
        process.kill()


def claims_of(gpu: NodeGpu) -> list[GpuClaim]:
    return [claim for claim in read_claims(SOCKETS.read_text(errors="replace")) if claim.uuid == gpu.uuid]


def test_another_run_is_told_who_has_the_gpu_until_that_process_is_gone(
    gpu: NodeGpu, holder: subprocess.Popen[str]
) -> None:
    mine = GpuClaims()
    (taken,) = mine.take((3,), (gpu,), "20261123-111213-beef")
    assert (taken.uuid, taken.gpu_index, taken.run_id) == (gpu.uuid, 3, "20261123-101112-abcd")
    assert claims_of(gpu) == [taken]
    holder.kill()
    assert eventually(lambda: claims_of(gpu) == [])
    assert mine.take((3,), (gpu,), "20261123-111213-beef") == ()
    mine.release()
    assert claims_of(gpu) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_stranger_that_binds_a_claim_in_the_name_of_another_is_named_itself(gpu: NodeGpu) -> None:
    names = [f"holmes-gpu/{gpu.uuid}", f"holmes-gpu/{gpu.uuid}/3/alice/r1/1"]
    program = f"""
import os, signal, socket
os.setuid(65534)
bound = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for one, name in zip(bound, {names}):
    one.bind(chr(0) + name)
    one.listen()
print(flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "\n"
        (taken,) = GpuClaims().take((3,), (gpu,), "r2")
        stranger.kill()
    assert (taken.user, taken.run_id) == (pwd.getpwuid(65534).pw_name, "r1")


def test_a_second_name_of_another_process_says_nothing_of_who_has_the_gpu(
    gpu: NodeGpu, holder: subprocess.Popen[str]
) -> None:
    assert holder.poll() is None
    with socket.socket(socket.AF_UNIX) as false:
        false.bind(f"\0holmes-gpu/{gpu.uuid}/3/alice/r2/1")
        false.listen()
        (taken,) = GpuClaims().take((3,), (gpu,), "r2")
    assert taken.run_id == "20261123-101112-abcd"


def test_nodes_of_one_run_may_share_a_gpu(gpu: NodeGpu, holder: subprocess.Popen[str]) -> None:
    assert holder.poll() is None
    assert GpuClaims().take((3,), (gpu,), "20261123-101112-abcd") == ()


def test_a_gpu_is_known_by_its_id_and_without_one_by_its_index(gpu: NodeGpu) -> None:
    first, second = GpuClaims(), GpuClaims()
    assert first.take((3,), (gpu,), "r1") == ()
    assert second.take((0,), (gpu._replace(gpu_index=0),), "r2")[0].run_id == "r1"
    assert second.take((3,), (gpu._replace(uuid=f"{gpu.uuid}7"),), "r2") == ()
    index = 1_000_000 + os.getpid()
    assert first.take((index,), (), "r1") == ()
    assert second.take((index,), (), "r2")[0].uuid == f"index-{index}"
    first.release()
    second.release()


def test_names_that_are_no_claim_are_passed_over() -> None:
    lines = [
        "Num       RefCount Protocol Flags    Type St Inode Path",
        "0000: 00000002 00000000 00010000 0001 01 1 @holmes-gpu/GPU-1/0/ann/r-1/1700000000",
        "0000: 00000002 00000000 00010000 0001 01 1 @holmes-gpu/GPU-1",
        "0000: 00000002 00000000 00010000 0001 01 1 @holmes-gpu/GPU-1/0/a\x1b[2Jn/r-1/1700000000",
        "0000: 00000002 00000000 00010000 0001 01 1 /run/dbus",
    ]
    assert list(read_claims("\n".join(lines))) == [GpuClaim("GPU-1", 0, "ann", "r-1", 1_700_000_000)]


def test_ps_shows_who_has_which_gpu_of_the_hosts(
    command: Command, tmp_path: Path, gpu: NodeGpu, holder: subprocess.Popen[str]
) -> None:
    assert holder.poll() is None
    (tmp_path / "hosts.yaml").write_text("transport: local\nhosts: [a1]\n", encoding="utf-8")
    said = command("ps", "--hosts", "hosts.yaml", "--json").stdout.splitlines()
    (claim,) = [claim for claim in map(json.loads, said) if claim["uuid"] == gpu.uuid]
    assert (claim["host"], claim["gpu_index"], claim["run_id"]) == ("a1", 3, "20261123-101112-abcd")
    (row,) = [line for line in command("ps", "--hosts", "hosts.yaml").stdout.splitlines() if "-abcd" in line]
    assert row.split("│")[1].strip() == "a1"


def local_gpu_plan() -> Plan:
    """A plan for GPUs whose hosts are processes of this machine."""
    plan = gpu_plan()
    access = Access(transport="local", python=sys.executable)
    return plan.model_copy(update={"nodes": tuple(node.model_copy(update={"access": access}) for node in plan.nodes)})


@pytest.mark.process
def test_a_launch_on_gpus_of_another_run_is_refused_and_says_whose_they_are(tmp_path: Path) -> None:
    """No nvidia-smi answers here, so they go by their index."""
    held = GpuClaims()
    held.take((0,), (), "20261123-000000-held")
    try:
        with pytest.raises(PreflightFailed) as failed:
            launch(local_gpu_plan(), runs=tmp_path / "runs")
    finally:
        held.release()
    evidence = [fault.evidence for fault in failed.value.preflight.refusing if fault.check == "gpus-taken"]
    assert evidence
    assert all(text.startswith("GPU 0 is taken by run 20261123-000000-held of ") for text in evidence)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_launch_that_waits_starts_when_the_gpus_are_free_and_not_for_other_faults() -> None:
    tries: list[str] = []
    taken, full = Fault("gpus-taken", "a1", "GPU 0 is taken"), Fault("disk", "a1", "full")

    def start(faults: list[Fault]) -> Run:
        tries.append("again")
        if len(tries) < 3:
            raise PreflightFailed(Preflight(tuple(faults), frozenset()))
        return Run(run_id="r", plan_digest="", state="done", started_at_s=0.0)

    assert start_checked(partial(start, [taken]), waits=True, pause_s=0.0).run_id == "r"
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(PreflightFailed):
        start_checked(partial(start, [taken, full]), waits=True, pause_s=0.0)
    assert len(tries) == 1
