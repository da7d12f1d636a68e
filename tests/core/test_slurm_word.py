"""What Slurm says of a job and its nodes, by what its commands print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_core.remote.slurm.slurm_word import SlurmWord, slurm_word

NODES = {"a1": "nid1", "b1": "nid2"}
Slurm = Callable[..., dict[str, str]]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    """The environment of job 7, whose `squeue` and `sinfo` print what is given; the last of several from then on."""

    def commands(squeue: tuple[str, ...], sinfo: str = "") -> dict[str, str]:
        for number, text in enumerate(squeue):
            (tmp_path / f"squeue.{number}").write_text(text)
        (tmp_path / "sinfo.text").write_text(sinfo)
        next_answer = 'n=$(cat $0.asked | wc -l); [ -e $0.$n ] || n=$((n - 1)); echo "$@" >>$0.asked; cat $0.$n'
        for name, script in (("squeue", next_answer), ("sinfo", 'echo "$@" >>$0.asked; cat $0.text')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "squeue.asked").touch()
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    return commands


def test_of_a_job_under_way_and_its_idle_nodes_there_is_nothing_to_say(slurm: Slurm) -> None:
    assert slurm_word(NODES, slurm(("RUNNING\n",), "nid1|allocated|none\nnid2|drained*|slow disk\n")) == SlurmWord()


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("CANCELLED\n",), "Slurm job 7 was cancelled (`scancel`)"),
        (("TIMEOUT\n",), "Slurm job 7 came to its time limit"),
        (("RUNNING\nPREEMPTED\n",), "Slurm job 7 was preempted"),  # of two components
        (("COMPLETING\n", "COMPLETING\n", "NODE_FAIL\n"), "Slurm job 7 was ended because a node failed"),
        (("SPECIAL_EXIT\n",), "Slurm job 7 is over: SPECIAL_EXIT"),
    ],
)
def test_how_a_job_ended_is_said_once_all_of_it_has(slurm: Slurm, states: tuple[str, ...], said: str) -> None:
    assert slurm_word(NODES, slurm(states)).job_end == said


def test_a_node_that_is_down_is_named_by_its_host_with_slurms_reason(slurm: Slurm, tmp_path: Path) -> None:
    word = slurm_word(NODES, slurm(("RUNNING\n",), "nid1|allocated|none\nnid2|down*|Not responding | so it is\n"))
    assert word.down == {"b1": "Slurm has node nid2 DOWN*: Not responding | so it is"}
    assert "--nodes=nid1,nid2" in (tmp_path / "sinfo.asked").read_text()


def test_slurm_that_does_not_answer_says_nothing(tmp_path: Path) -> None:
    assert slurm_word(NODES, {"PATH": str(tmp_path), "SLURM_JOB_ID": "7"}) == SlurmWord()
    assert slurm_word(NODES, {"PATH": str(tmp_path)}) == SlurmWord()
