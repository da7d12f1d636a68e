"""holmes doctor on a recorded run of two hosts: planted causes are the verdict, and sound variants raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from prober.asking.recording import HostNotes, HostRecording
from prober.rules.reported_rules import UNREACHABLE
from prober.running import watch_script as asked
from prober.running.byte_counts import Traffic
from prober.running.processes import families
from prober.running.running_texts import CAUSES
from tests.builders.watched_runs import PIDS, Change, Watched

NCCL_LOGS = Path(__file__).parents[1] / "data" / "nccl_logs"
BOTH = ("a1", "a2")


def quiet_except_spinning(watched: Watched) -> None:
    """Two ranks of a1 keep its GPU busy, and that of a2 does nothing."""
    evaluates_alone(watched)
    watched.process("a1", 70001, "python", 1.0)
    watched.family("a1", 70001, rank=2)
    watched.edit("a1", asked.GPU_PROCESSES, lambda text: f"{text}GPU-a1, 70001\n")


def evaluates_alone(watched: Watched) -> None:
    for host in BOTH:
        watched.quiet(host)
        watched.gpus(host, use=100 if host == "a1" else 0)
    watched.cpu("a1", 1.0)


def gone(watched: Watched) -> None:
    for host in BOTH:
        watched.quiet(host)
    watched.sub("a2", asked.ENVIRONMENT, "LOCAL_WORLD_SIZE=1", "LOCAL_WORLD_SIZE=2")


def loaders(watched: Watched) -> None:
    for host in BOTH:
        watched.cpu(host, 0.1)
        watched.loader(host, 70001, 0.95)
        watched.loader(host, 70002, 0.97)


def loaders_with_gpus(watched: Watched) -> None:
    loaders(watched)
    for host in BOTH:
        watched.gpus(host, use=20)


def python_bound(watched: Watched) -> None:
    for host in BOTH:
        watched.gpus(host, use=30)
        watched.cpu(host, 1.0)


def one_gpu_slowed(watched: Watched) -> None:
    watched.gpus("a1")
    watched.gpus("a2", clock=600, reasons="0x80")


def taken(watched: Watched) -> None:
    watched.state("a2", "RRRRRR")
    watched.process("a2", 70001, "stress", 0.9)
    watched.process("a2", 70002, "stress", 0.9)


def uneven(watched: Watched) -> None:
    watched.cpu("a1", 0.99)
    watched.cpu("a2", 0.2)


def idle_rdma(watched: Watched) -> None:
    for host in BOTH:
        watched.ports(host, 0, 0)


def fast_elsewhere(watched: Watched) -> None:
    for host in BOTH:
        watched.sub(host, asked.SPEEDS, "eth0/speed:.*$", "eth0/speed:100000")


def one_port_of_four(watched: Watched) -> None:
    for host in BOTH:
        watched.ports(host, 9_000_000_000, 0, 0, 0)
    watched.process("a1", 70001, "python", 0.1)
    watched.family("a1", 70001, rank=2)


def shards(watched: Watched) -> None:
    watched.edit(
        "a1",
        asked.COMMAND_LINES,
        lambda text: (
            text + "".join(f"/proc/{PIDS['a1']}/cmdline:{word}\n" for word in ("--tensor-model-parallel-size", "8"))
        ),
    )


def nccl_log(watched: Watched) -> None:
    watched.answer("a1", asked.NCCL_LOGS, (NCCL_LOGS / "roce_without_gpu_direct.log").read_text(encoding="utf-8"))


def heavy_writer(watched: Watched) -> None:
    for host in BOTH:
        watched.quiet(host)
    watched.edit("a1", asked.DISK, lambda text: text.replace("write_bytes: ", "write_bytes: 90000"), last=True)


PLANTED: dict[str, tuple[str, Change]] = {
    "stopped": ("stopped-process", lambda watched: watched.state("a2", "TTTTTT")),
    "traced": ("stopped-process", lambda watched: watched.state("a1", "tttttt")),
    "gone": ("missing-rank", gone),
    "hangs while the other spins": ("hanging-rank", quiet_except_spinning),
    "xid": (
        "gpu-fault",
        lambda watched: watched.answer(
            "a2", asked.KERNEL_LOG, "[9999999.123456] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen\n"
        ),
    ),
    "ecc": ("gpu-fault", lambda watched: watched.gpus("a1", ecc=(3, 4))),
    "power brake": ("gpu-slowed", one_gpu_slowed),
    "foreign processes": ("cpu-taken", taken),
    "state D": ("disk-wait", lambda watched: watched.state("a1", "DDDDSS")),
    "checkpoint": ("disk-wait", heavy_writer),
    "loaders without GPUs": ("data-loading", loaders),
    "loaders": ("data-loading", loaders_with_gpus),
    "main thread": ("cpu-bound", python_bound),
    "uneven ranks": ("slow-rank", uneven),
    "TCP with idle RDMA": ("tcp-not-rdma", idle_rdma),
    "slow interface": ("slow-interface", fast_elsewhere),
    "one port of four": ("one-nic-of-many", one_port_of_four),
    "tensor shards": ("tensor-parallel-across-hosts", shards),
    "log of NCCL": ("gdr-off", nccl_log),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cause_is_the_verdict(name: str) -> None:
    cause, change = PLANTED[name]
    watched = Watched()
    change(watched)
    found = watched.diagnosis()
    assert found.cause == cause
    assert found.evidence
    assert found.remedy


def test_every_cause_of_a_watched_run_is_planted() -> None:
    elsewhere = {"rank-order", "audited-fault"}  # take an inventory: test_rank_order, test_audited_causes
    assert {cause.id for cause in CAUSES} <= {cause for cause, _ in PLANTED.values()} | elsewhere


def sound_gpus(watched: Watched) -> None:
    for host in BOTH:
        watched.gpus(host, reasons="0x4")  # at the power cap


def busy_loaders_of_busy_gpus(watched: Watched) -> None:
    loaders(watched)
    sound_gpus(watched)


def rdma_carries(watched: Watched) -> None:
    for host in BOTH:
        watched.ports(host, 2_000_000_000, 2_000_000_000)


def short_write(watched: Watched) -> None:
    watched.edit("a1", asked.DISK, lambda text: text.replace("write_bytes: ", "write_bytes: 90000"), last=True)


def fault_of_another_gpu(watched: Watched) -> None:
    """GPU 0 is the run's; a notebook on GPU 5 has an Xid, and its memory new ECC errors."""
    watched.gpus("a1")
    rows = [f"{number}, GPU-{name}, 95, 1900, 1980, {{}}, 0x0" for number, name in ((0, "a1"), (5, "other"))]
    watched.answer("a1", asked.GPUS, *("\n".join(rows).format(0, count) + "\n" for count in (0, 7)))
    watched.answer("a1", asked.KERNEL_LOG, "[9999999.1] NVRM: Xid (PCI:0000:b8:00): 13, pid=4242, name=python\n")


def loaders_of_a_new_epoch(watched: Watched) -> None:
    for host in BOTH:
        watched.gpus(host)
    for number in range(7):
        watched.process("a1", 80001 + number, "pt_data_worker", 1.0, PIDS["a1"])


def upload(watched: Watched) -> None:
    """RDMA ports idle, and the bytes of TCP go to a store."""
    for host in BOTH:
        watched.ports(host, 1000)
        watched.sub(host, asked.SOCKETS, r"10\.1\.0\.\d:", "52.216.1.1:")


def started_just_now(watched: Watched) -> None:
    python_bound(watched)
    for host in BOTH:
        watched.age(host, 20.0)


def both_compute(watched: Watched) -> None:
    watched.cpu("a1", 0.9)
    watched.cpu("a2", 0.8)


def without_ss(watched: Watched) -> None:
    for host in BOTH:
        watched.answer(host, asked.SOCKETS)


SOUND: dict[str, Change] = {
    "as recorded": lambda _: None,
    "GPUs at their power cap": sound_gpus,
    "busy loaders of busy GPUs": busy_loaders_of_busy_gpus,
    "RDMA carries the bytes": rdma_carries,
    "one port alone": lambda watched: watched.ports("a1", 9_000_000_000),
    "an Xid before the run": lambda watched: watched.answer(
        "a1", asked.KERNEL_LOG, "[1.5] NVRM: Xid (PCI:0000:18:00): 43, pid=1\n"
    ),
    "old ECC errors": lambda watched: watched.gpus("a2", ecc=(5, 5)),
    "one moment in state D": lambda watched: watched.state("a1", "SDSSSR"),
    "one moment stopped": lambda watched: watched.state("a1", "STSSSR"),
    "another process with spare cores": lambda watched: watched.process("a1", 70001, "rsync", 0.4),
    "both ranks compute": both_compute,
    "a write while the others compute": short_write,
    "idle loaders": lambda watched: watched.loader("a1", 70001, 0.1),
    "a faster interface that is down": lambda watched: watched.sub(
        "a1", asked.SPEEDS, "eth0/operstate:up", "eth0/operstate:down"
    ),
    "no ss": without_ss,
    "faults of a GPU that the run does not use": fault_of_another_gpu,
    "loaders that started while it was watched": loaders_of_a_new_epoch,
    "a rank that ended while another goes on": lambda watched: watched.sub(
        "a2", asked.ENVIRONMENT, "LOCAL_WORLD_SIZE=1", "LOCAL_WORLD_SIZE=2"
    ),
    "a sound log of NCCL": lambda watched: watched.answer(
        "a1", asked.NCCL_LOGS, (NCCL_LOGS / "sound_infiniband.log").read_text(encoding="utf-8")
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_variant_has_nothing_wrong(name: str) -> None:
    watched = Watched()
    SOUND[name](watched)
    found = watched.diagnosis()
    assert (found.cause, [each.cause for each in found.also]) == ("none", [])


def test_stop_goes_before_slower_causes() -> None:
    watched = Watched()
    loaders_with_gpus(watched)
    watched.state("a2", "TTTTTT")
    found = watched.diagnosis()
    assert found.cause == "stopped-process"
    assert "data-loading" in [each.cause for each in found.also]
    assert f"rank 1 on a2 (PID {PIDS['a2']})" in found.says


def test_ranks_on_no_watched_host_leave_no_verdict_and_name_the_addresses_to_add() -> None:
    watched = Watched()
    del watched.hosts["a2"]
    found = watched.diagnosis()
    assert found.cause is None
    assert "10.1.0.2" in found.needed


def test_host_that_does_not_answer_is_named_and_hides_no_stopped_rank() -> None:
    watched = Watched()
    del watched.hosts["a2"]
    failure = UNREACHABLE.finding(("a2",), "no route to host", "ping it")
    watched.failures["a2"] = HostRecording((), HostNotes(failure=failure))
    found = watched.diagnosis()
    assert found.cause is None
    assert "a2" in found.needed
    assert any("no route to host" in note for note in found.notes)
    watched.state("a1", "TTTTTT")
    assert watched.diagnosis().cause == "stopped-process"


def test_run_that_stands_still_at_one_place_has_no_verdict() -> None:
    watched = Watched()
    for host in BOTH:
        watched.quiet(host)
    found = watched.diagnosis()
    assert found.cause is None
    assert "py-spy" in found.needed


def test_rank_that_computes_on_a_cpu_while_another_waits_is_no_hang_of_the_other() -> None:
    watched = Watched()
    for host in BOTH:
        watched.quiet(host)
    watched.cpu("a1", 1.0)
    found = watched.diagnosis()
    assert found.cause is None
    assert "wait for them, or hang: rank 1 on a2" in found.says


def test_neither_of_two_ranks_is_said_to_hang_where_one_may_compute_for_both() -> None:
    watched = Watched()
    evaluates_alone(watched)
    assert watched.diagnosis().cause is None


def test_bytes_to_a_store_are_not_those_of_gradients() -> None:
    watched = Watched()
    upload(watched)
    assert watched.diagnosis().cause != "tcp-not-rdma"


def test_a_rank_that_starts_is_not_said_to_be_slow() -> None:
    watched = Watched()
    started_just_now(watched)
    found = watched.diagnosis()
    assert found.cause is None
    assert "GPUs idle" in found.says


def test_runs_of_the_same_marks_on_two_hosts_are_two() -> None:
    watched = Watched()
    for host in BOTH:
        watched.sub(host, asked.ENVIRONMENT, ":RANK=1", ":RANK=0")
        watched.sub(host, asked.ENVIRONMENT, "WORLD_SIZE=2", "WORLD_SIZE=1")
    run = watched.run()
    assert (len(run.ranks), run.other_ranks) == (1, 1)


def test_host_with_two_names_is_one() -> None:
    watched = Watched()
    watched.hosts["second-name"] = watched.hosts["a1"]
    run = watched.run()
    assert [(rank.number, rank.host) for rank in run.ranks] == [(0, "a1"), (1, "a2")]
    assert run.other_ranks == 0
    found = watched.diagnosis()
    assert found.cause == "none"
    assert any("second-name: it is the same machine as a1" in note for note in found.notes)


def test_trainer_under_a_wrapper_is_the_rank() -> None:
    watched = Watched()
    watched.process("a1", 17000, "uv", 0.0)
    watched.family("a1", 17000)
    (first, _) = watched.run().ranks
    assert (first.pid, first.helpers) == (PIDS["a1"], ())


def test_one_ranks_variable_hides_no_ranks_of_another_slurm_job() -> None:
    variables = {1: {"RANK": "0", "WORLD_SIZE": "1"}, 2: {"SLURM_PROCID": "3", "SLURM_JOB_ID": "77"}}
    assert sorted(rank for _, rank, _ in families(variables)) == [0, 3]


def test_ranks_that_meet_at_gates_of_their_hosts_are_one_run() -> None:
    watched = Watched()
    for number, host in enumerate(BOTH):
        for name, value in {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 4000 + number,
            "TORCHELASTIC_RUN_ID": "r1",
        }.items():
            watched.sub(host, asked.ENVIRONMENT, f"{name}=.*$", f"{name}={value}")
    assert [rank.number for rank in watched.run().ranks] == [0, 1]


def test_counter_that_wraps_leaves_the_other_as_it_is() -> None:
    assert Traffic(5, 1007).since(Traffic(2**32 - 1, 1000)) == Traffic(5, 7)


def test_rank_that_waits_elsewhere_than_most_hangs() -> None:
    watched = Watched()
    for host in BOTH:
        watched.quiet(host)
    watched.process("a1", 70001, "python", 0.0)
    watched.family("a1", 70001, rank=2)
    watched.edit("a1", asked.WAIT_CHANNELS, lambda text: text + "/proc/70001/wchan:ep_poll\n")
    watched.sub("a2", asked.WAIT_CHANNELS, ":ep_poll", ":hrtimer_nanosleep")
    found = watched.diagnosis()
    assert found.cause == "hanging-rank"
    assert "rank 1 on a2" in found.says
    assert "hrtimer_nanosleep" in found.evidence[0]


def test_no_ranks_is_no_verdict() -> None:
    watched = Watched()
    for host in BOTH:
        watched.answer(host, asked.ENVIRONMENT)
    assert watched.diagnosis().cause is None


def test_bytes_between_hosts_are_those_of_the_connection_that_both_ends_show() -> None:
    paths = {(path.sender, path.receiver): path for path in Watched().run().paths if path.leaves_host}
    assert {path.interface for path in paths.values()} == {"ib0"}
    assert all(100_000_000 < path.sent_bytes < 200_000_000 for path in paths.values())
