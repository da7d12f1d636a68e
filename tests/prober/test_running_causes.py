"""holmes doctor on a recorded run of two hosts: planted causes are the verdict, and sound variants raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from prober.asking.recording import HostNotes, HostRecording
from prober.rules.reported_rules import UNREACHABLE
from prober.running import watch_script as asked
from prober.running.running_texts import CAUSES
from tests.builders.watched_runs import PIDS, Change, Watched

NCCL_LOGS = Path(__file__).parents[1] / "data" / "nccl_logs"
BOTH = ("a1", "a2")


def quiet_except_spinning(watched: Watched) -> None:
    for host in BOTH:
        watched.quiet(host)
        watched.gpus(host, use=100 if host == "a1" else 0)
    watched.cpu("a1", 1.0)


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
    "gone": (
        "missing-rank",
        lambda watched: watched.sub("a2", asked.ENVIRONMENT, "LOCAL_WORLD_SIZE=1", "LOCAL_WORLD_SIZE=2"),
    ),
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
    assert {cause.id for cause in CAUSES} <= {cause for cause, _ in PLANTED.values()}


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


def test_rank_that_waits_elsewhere_than_most_hangs() -> None:
    watched = Watched()
    for host in BOTH:
        watched.quiet(host)
    watched.process("a1", 70001, "python", 0.0)
    watched.family("a1", 70001, rank=2)
    watched.edit("a1", asked.WAITS, lambda text: text + "/proc/70001/wchan:ep_poll\n")
    watched.sub("a2", asked.WAITS, ":ep_poll", ":hrtimer_nanosleep")
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
