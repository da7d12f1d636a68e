"""Runs that follow one another in a log of NCCL, and joined logs of one run that look like it."""

from __future__ import annotations

import pytest

from prober.nccl_logs.diagnose import SOUND
from tests.builders.nccl_logs import diagnosed, info, warn

USING_IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"


def rank_log(host: int, gpu: int, *, pid: int, identity: str, fails: bool = False, rank: int = 0) -> list[str]:
    """Return the log of a process in a communicator of two ranks, on a GPU of a host."""
    start = f"ncclCommInitRank comm 0x5 rank {rank} nranks 2 cudaDev {gpu} nvmlDev {gpu} busId {gpu + 1}000 {identity}"
    texts = [f"Bootstrap : Using eth0:10.0.0.{host}<0>", USING_IB, "Using network IB", f"{start} - Init COMPLETE"]
    lines = [info(text, f"n{host}", pid, gpu) for text in texts]
    broken = "NET/IB : Got completion with error 4, opcode 1, len 32751, vendor err 81"
    failure = [warn(broken, host=f"n{host}", pid=pid), info("proxy.cc:679 -> 3", f"n{host}", pid, gpu)]
    return lines + failure if fails else lines


def pairs(pid: int, *, fails: bool, identity: str = "commId 0xa") -> list[list[str]]:
    """Return the logs of both processes of a pair, on GPU 0 of two hosts."""
    return [rank_log(n, 0, pid=pid, identity=identity, fails=fails, rank=n) for n in (0, 1)]


def unmade(pid: int) -> list[str]:
    """Return the log of a process that found no peer."""
    refused = warn("socketStartConnect: Connect to 10.0.0.9<4000> failed : Connection refused", host="n0", pid=pid)
    return [info("Bootstrap : Using eth0:10.0.0.0<0>", "n0", pid), refused, info("bootstrap.cc:553 -> 2", "n0", pid)]


def test_pairs_on_other_gpus_are_alive_though_one_failed_before() -> None:
    failed = [line for log in pairs(1, fails=True) for line in log]
    for gpu in (1, 2):
        for n in (0, 1):
            failed += rank_log(n, gpu, pid=1 + gpu, identity=f"commId 0xb{gpu}", rank=n)
    assert diagnosed(*failed).cause == "gdr-broken"


def test_process_of_a_communicator_that_is_alive_is_kept() -> None:
    first, second = pairs(1, fails=True)
    assert diagnosed(*first, *rank_log(0, 0, pid=2, identity="commId 0xa", rank=0), *second).cause == "gdr-broken"


@pytest.mark.parametrize("pid", [1, 2], ids=["the same pid", "another pid"])
@pytest.mark.parametrize("joined", [False, True], ids=["run by run", "rank by rank"])
@pytest.mark.parametrize("identity", ["commId 0x{}", ""], ids=["2.18", "2.14"])
def test_run_that_takes_the_gpus_of_a_failed_one_is_the_last(pid: int, joined: bool, identity: str) -> None:
    failed = pairs(1, fails=True, identity=identity.format("a"))
    sound = pairs(pid, fails=False, identity=identity.format("b"))
    order = zip(failed, sound, strict=True) if joined else (failed, sound)
    assert diagnosed(*(line for logs in order for log in logs for line in log)).cause == SOUND
    order = zip(sound, failed, strict=True) if joined else (sound, failed)
    assert diagnosed(*(line for logs in order for log in logs for line in log)).cause == "gdr-broken"


def test_run_on_fewer_hosts_follows_one_on_more() -> None:
    failed = [line for log in pairs(1, fails=True) for line in log]
    assert diagnosed(*failed, *rank_log(0, 0, pid=2, identity="commId 0xb")).cause == SOUND


def test_run_follows_one_that_made_no_communicator() -> None:
    sound = rank_log(0, 0, pid=2, identity="commId 0xb")
    assert diagnosed(*unmade(1), *sound).cause == SOUND
    other = rank_log(0, 1, pid=2, identity="commId 0xb")
    assert diagnosed(*unmade(1), *other).cause == "bootstrap-blocked"


def test_number_in_brackets_that_two_gpus_share_is_no_sign_of_a_restart() -> None:
    lines = unmade(1)
    for gpu in (1, 2):
        log = rank_log(0, gpu, pid=1 + gpu, identity=f"commId 0xb{gpu}")
        lines += [line.replace(f"[{gpu}] NCCL", "[0] NCCL") for line in log]
    assert diagnosed(*lines).cause == "bootstrap-blocked"


def test_two_runs_that_take_gpus_of_each_other_are_both_alive() -> None:
    ended = info("comm 0x5 rank 0 nranks 2 - Destroy COMPLETE", "n0", 1)
    a = [rank_log(0, 0, pid=1, identity="commId 0xa"), rank_log(0, 1, pid=4, identity="commId 0xa", rank=1)]
    b = [rank_log(0, 1, pid=2, identity="commId 0xb"), rank_log(0, 0, pid=3, identity="commId 0xb", rank=1)]
    gone = info("comm 0x5 rank 0 nranks 2 - Destroy COMPLETE", "n0", 2)
    assert diagnosed(*a[0], ended, *b[0], gone, *b[1], *a[1]).run.num_ranks == 2
