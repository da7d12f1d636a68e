"""`holmes doctor hosts.yaml` on two hosts of the bed while a training runs there, and with one rank stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holmes_cli.own_process import holmes_words
from prober.running.costly_causes import STARTING_S
from tests.builders.bed_runs import launched, plan_that_saves
from tests.builders.bed_trainings import HSDP, diagnosed, end_ranks, on_host, torchrun, training, verdict
from tests.eventually import eventually
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, said_until

pytestmark = NEEDS_BED

TWO_EACH = {"a1": 2, "a2": 2}
SOUND = ("none", "cpu-taken")  # other tests may hold the CPUs
RANKS = {0: "a1", 1: "a1", 2: "a2"}
NCCL_LOG = Path(__file__).parents[1] / "data" / "nccl_logs" / "roce_without_gpu_direct.log"
# Rank 2 does in its steps what the file `mode` says, and the others wait for it; some modes are for others too.
TRAINING = """
import datetime, itertools, multiprocessing, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def mode():
    return open(f"{sys.argv[1]}/mode").read()


def go_first():
    # Other tests have the cores too, and niceness counts inside a session alone.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    if os.path.exists("/proc/self/autogroup"):
        os.system("echo -20 >/proc/$PPID/autogroup")


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def load(parent):
    go_first()
    while mode() == "load" and os.getppid() == parent:
        burn(1)


def behave(rank, wanted):
    if wanted == "load" and rank < 2:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(load, (os.getpid(),))
    while rank == 2 and wanted == "hang" and mode() == "hang":
        time.sleep(0.2)
    while rank == 2 and wanted == "disk" and mode() == "disk":
        with open(f"{sys.argv[1]}/checkpoint", "wb") as file:
            file.write(bytes(1 << 24))
            os.fsync(file.fileno())
    if rank == 2 and wanted == "slow":
        go_first()
        burn(1.5)
    if wanted == "compute":
        burn(1)
    if rank == 1 and wanted == "leave":
        os._exit(0)


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(512, 512))
    for step in itertools.count():
        wanted = mode()
        open(f"{sys.argv[1]}/steps-{rank}", "w").write(f"{step} {wanted}")
        behave(rank, wanted)
        model(torch.ones(8, 512)).sum().backward()
        time.sleep(0 if wanted == "slow" else 0.05)


dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
store = dist.distributed_c10d._get_default_store()
try:
    train(dist.get_rank())
except RuntimeError:  # a peer has left
    store.wait(["never"], datetime.timedelta(hours=1))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("doctor")) as site:
        yield site


@pytest.fixture(scope="module")
def ranks(site: Site) -> Iterator[dict[int, int]]:
    with training(site, TRAINING, {"a1": 2, "a2": 1}, 29533) as ranks:
        yield ranks


@contextlib.contextmanager
def behaving(site: Site, mode: str, *ranks: int) -> Iterator[None]:
    """The training once these ranks do what `mode` says; it goes on as before afterwards."""
    folder = site.folder / "run-29533"
    (folder / "mode").write_text(mode, encoding="utf-8")
    try:
        assert eventually(lambda: all((folder / f"steps-{rank}").read_text().endswith(mode) for rank in ranks))
        yield
    finally:
        (folder / "mode").write_text("sound", encoding="utf-8")
        began = [(folder / f"steps-{rank}").read_text() for rank in RANKS]
        if mode != "leave":
            assert eventually(lambda: began != [(folder / f"steps-{rank}").read_text() for rank in RANKS])


def test_hsdp_training_of_two_hosts_is_sound(site: Site) -> None:
    with training(site, HSDP, TWO_EACH, 29534):
        record = diagnosed(site, "--seconds", "10")
    assert [each["number"] for each in record["ranks"]] == [0, 1, 2, 3]
    assert record["cause"] in SOUND, record["says"]


@pytest.mark.exhaustive  # it sometimes sees no rank while other bed tests train: a2 sees their ranks first
def test_command_that_is_started_here_is_watched_with_its_ranks_on_another_host(site: Site) -> None:
    """The doctor runs on a1 and starts the ranks there; those of a2 are started as usual."""
    hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    hosts["hosts"] = list(TWO_EACH)
    (site.folder / "here.yaml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    here, there = (torchrun(site, HSDP, TWO_EACH, name, 29537) for name in TWO_EACH)
    folder, pipe = site.folder / "run-29537", subprocess.PIPE
    doctor = holmes_words("doctor", str(site.folder / "here.yaml"), "--seconds", "10", "--json", "--", *here)
    with open(folder / "a2.log", "wb") as log:
        other = subprocess.Popen(on_host(site, "a2", there), stdout=log, stderr=log, start_new_session=True)
    process = subprocess.Popen(on_host(site, "a1", doctor), stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        assert process.stderr is not None
        said = said_until(process, "the command still runs")
        process.terminate()
        shown, rest = process.communicate(timeout=300)
    finally:
        for each in (process, other):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        end_ranks(site, TWO_EACH, folder)
    record = json.loads(shown)
    assert [(each["number"], each["host"]) for each in record["ranks"]] == [(0, "a1"), (1, "a1"), (2, "a2"), (3, "a2")]
    assert {("a1", "a2"), ("a2", "a1")} <= {(path["sender"], path["receiver"]) for path in record["paths"]}
    assert record["cause"] in SOUND, (record["says"], said)
    assert "the command ended with exit code" in rest
    assert process.returncode != 0


def test_bundled_run_of_two_clusters_is_sound(site: Site) -> None:
    assert site.bed is not None
    folder = site.folder / "bundled"
    folder.mkdir()
    model = {"num_layers": 6, "hidden_size": 128, "num_heads": 2, "seq_length": 256}  # moves enough on a busy machine
    run = launched(site, folder / "runs", plan_that_saves(site, folder, steps=100_000, model=model))
    try:
        assert eventually(
            lambda: any(file.stat().st_size for file in folder.glob("runs/*/metrics.jsonl")) or run.poll() is not None
        )
        record = diagnosed(site, "--seconds", "10", hosts=tuple(host.name for host in site.bed.hosts))
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=600)
        for host in site.bed.hosts:
            (host.tools / "nproc").unlink()  # by which each host has cores for the plan
    assert len(record["ranks"]) == record["nranks"], record["says"]
    assert record["cause"] in SOUND, record["says"]


def test_ranks_of_both_hosts_and_the_interface_between_them_are_seen_while_it_trains(
    site: Site, ranks: dict[int, int]
) -> None:
    """A larger training runs in another network of the same kernel."""
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"
    apart = [[f"{name}={value}" for name, value in zip(names, (i, i, 4, 4, 29539), strict=True)] for i in range(4)]
    others = [subprocess.Popen(["env", *variables, "sleep", "600"]) for variables in apart]
    try:
        record = diagnosed(site, "--seconds", "10")
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert [(each["number"], each["host"], each["pid"]) for each in record["ranks"]] == [
        (rank, RANKS[rank], pid) for rank, pid in ranks.items()
    ]
    between = {(path["sender"], path["receiver"], path["interface"]) for path in record["paths"] if path["sent_bytes"]}
    assert {("a1", "a2", "ib0"), ("a2", "a1", "ib0")} <= between
    assert record["cause"] in SOUND, record["says"]
    assert [note for note in record["notes"] if "other trainings" not in note] == []  # of other tests


def test_rank_that_is_stopped_is_the_verdict_with_its_host(site: Site, ranks: dict[int, int]) -> None:
    os.kill(ranks[2], signal.SIGSTOP)
    try:
        record = diagnosed(site, "--seconds", "5")
    finally:
        os.kill(ranks[2], signal.SIGCONT)
    assert verdict(record)["cause"] == "stopped-process"
    assert f"rank 2 on a2 (PID {ranks[2]})" in verdict(record)["says"]


def test_processes_that_take_the_cores_are_named(site: Site, ranks: dict[int, int]) -> None:
    boost = "echo -10 >/proc/$$/autogroup; exec"  # niceness counts inside a session alone
    burner = ["sh", "-c", f"{boost} {sys.executable} -c 'while True: sum(range(1000))'"]
    burners = [subprocess.Popen(burner, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        with behaving(site, "compute", *ranks):
            record = diagnosed(site, "--seconds", "5")
    finally:
        for process in burners:
            process.kill()
            process.wait()
    assert record["cause"] == "cpu-taken", (
        record["says"],
        [rank["cpu_share"] for rank in record["ranks"]],
        record["ranks"][0]["states"],
    )


@pytest.mark.parametrize(
    ("mode", "cause"),
    [  # exhaustive: these measure what a rank does, which other tests on the same cores change
        ("hang", "hanging-rank"),
        pytest.param("disk", "disk-wait", marks=pytest.mark.exhaustive),
        pytest.param("slow", "slow-rank", marks=pytest.mark.exhaustive),
    ],
)
def test_rank_for_which_the_others_wait_is_named(site: Site, ranks: dict[int, int], mode: str, cause: str) -> None:
    with behaving(site, mode, 2):
        record = diagnosed(site, "--seconds", "5")
    assert verdict(record)["cause"] == cause, record["ranks"]
    assert f"rank 2 on a2 (PID {ranks[2]})" in verdict(record)["says"]


@pytest.mark.parametrize(
    ("later", "cause"), [("95, 600, 1980, 0, 0x80", "gpu-slowed"), ("95, 1900, 1980, 7, 0x0", "gpu-fault")]
)
def test_gpu_that_is_slow_or_counts_errors_is_named(site: Site, ranks: dict[int, int], later: str, cause: str) -> None:
    """On a2, from the second answer of its nvidia-smi on."""
    assert site.bed is not None
    tool = site.bed.host("a2").tools / "nvidia-smi"
    kept, count = tool.read_bytes(), site.folder / f"asked-{cause}"
    sound = "95, 1900, 1980, 0, 0x0"
    script = f"[ -e {count} ] && echo '0, GPU-2, {later}' || echo '0, GPU-2, {sound}'; touch {count}"
    held = f"echo 'GPU-2, {ranks[2]}'"
    tool.write_text(f'#!/bin/sh\ncase "$*" in *compute-apps*) {held};; *) {script};; esac\n', encoding="utf-8")
    try:
        record = diagnosed(site, "--seconds", "5")
    finally:
        tool.write_bytes(kept)
    assert (verdict(record)["cause"], "on a2" in verdict(record)["says"]) == (cause, True)


@pytest.mark.usefixtures("ranks")
def test_log_of_nccl_in_a_ranks_output_is_read(site: Site) -> None:
    log = site.folder / "run-29533" / "a1.log"
    log.write_bytes(NCCL_LOG.read_bytes())
    try:
        record = diagnosed(site, "--seconds", "5")
    finally:
        log.write_bytes(b"")
    assert verdict(record)["cause"] == "gdr-off"


@pytest.mark.exhaustive
def test_processes_that_load_data_are_named_once_the_ranks_have_had_time_to_start(
    site: Site, ranks: dict[int, int]
) -> None:
    began = Path(f"/proc/{ranks[0]}").stat().st_ctime
    assert eventually(lambda: time.time() > began + STARTING_S + 10)
    with behaving(site, "load", 0, 1):
        record = diagnosed(site, "--seconds", "10")
    assert record["cause"] == "data-loading", record["ranks"]


def test_rank_that_has_left_is_named(site: Site, ranks: dict[int, int]) -> None:
    with behaving(site, "leave", 1):
        assert eventually(lambda: not _is_there(ranks[1]))
        record = diagnosed(site, "--seconds", "5")
    found = verdict(record)
    assert (found["cause"], "local rank 1 of a1" in found["says"]) == ("missing-rank", True)


def _is_there(pid: int) -> bool:
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2] if Path(f"/proc/{pid}").exists() else False


@pytest.mark.exhaustive
def test_gradients_on_the_slower_of_two_interfaces_are_named(site: Site) -> None:
    """The bed's interfaces are all of one kind, so eth0 gets the speed that it is shaped to."""
    assert site.bed is not None
    (site.folder / "speed").write_text("100\n", encoding="utf-8")
    speed = ["mount", "--bind", str(site.folder / "speed"), "/sys/devices/virtual/net/eth0/speed"]
    for name in TWO_EACH:
        subprocess.run(site.bed.on_host_command(name, speed), check=True)
    try:
        with training(site, HSDP, TWO_EACH, 29536, is_wide=True):
            record = diagnosed(site, "--seconds", "5")
    finally:
        for name in TWO_EACH:
            subprocess.run(site.bed.on_host_command(name, ["umount", speed[-1]]), check=True)
    assert record["cause"] == "slow-interface"
    assert "GLOO_SOCKET_IFNAME=ib0" in record["remedy"]


@pytest.mark.exhaustive
def test_tensor_parallelism_across_hosts_is_named(site: Site) -> None:
    with training(site, HSDP, TWO_EACH, 29535, "--tensor-model-parallel-size", "4"):
        record = diagnosed(site, "--seconds", "5")
    assert record["cause"] == "tensor-parallel-across-hosts"
