"""`holmes doctor --log`: exit codes, standard input, the record, hostile text, and the page that shows it."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, Spread
from prober.asking.recording import HostNotes, read_recorded_hosts, write_recording
from prober.running.watch_script import ENVIRONMENT
from tests import doc_session
from tests.builders.nccl_logs import info, warn
from tests.builders.watched_runs import PIDS, RECORDED, Watched
from tests.cli.conftest import Command

LOGS = Path(__file__).parents[1] / "data" / "nccl_logs"
RECORD = {
    "network",
    "interfaces",
    "hcas",
    "gdr",
    "nranks",
    "nnodes",
    "nccl_version",
    "cause",
    "also",
    "remedy",
    "evidence",
}


def test_sound_log_exits_with_0_and_a_cause_with_1(command: Command) -> None:
    assert command("doctor", "--log", str(LOGS / "sound_infiniband.log")).code == 0
    assert command("doctor", "--log", str(LOGS / "bootstrap_lo.log")).code == 1


def test_no_verdict_exits_with_1_and_says_what_would_allow_one(command: Command, tmp_path: Path) -> None:
    (tmp_path / "short.log").write_text(info("cudaDriverVersion 12080"), encoding="utf-8")
    done = command("doctor", "--log", "short.log")
    assert done.code == 1
    assert "NCCL_DEBUG=INFO" in done.stdout


@pytest.mark.parametrize(
    "words", [(), ("--log",), ("a.log",), ("--log", "missing.log"), ("--log", "."), ("--log", "a.log")]
)
def test_wrong_usage_and_logs_without_nccl_exit_with_2(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.5\n", encoding="utf-8")
    done = command("doctor", *words)
    assert done.code == 2
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


def test_pipe_by_name_is_refused_before_it_blocks(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = command("doctor", "--log", "pipe")
    assert done.code == 2
    assert "`holmes doctor --log -`" in done.stderr


def test_several_files_are_one_run_and_one_without_nccl_is_noted(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("", encoding="utf-8")
    done = command("doctor", "--log", "empty.log", str(LOGS / "sound_infiniband.log"), "--json")
    record = json.loads(done.stdout)
    assert set(record) >= RECORD
    assert (record["cause"], record["nranks"], record["nnodes"], record["network"]) == ("none", 8, 2, "IB")
    assert [note.partition(":")[0] for note in record["notes"]] == ["empty.log"]


def test_dash_reads_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.TextIOWrapper(io.BytesIO((LOGS / "bootstrap_docker0.log").read_bytes()))
    monkeypatch.setattr(sys, "stdin", log)
    record = json.loads(command("doctor", "--log", "-", "--json").stdout)
    assert record["cause"] == "wrong-interface"
    assert record["evidence"][0]["file"] == "standard input"


def test_escapes_of_a_log_never_reach_the_terminal(command: Command, tmp_path: Path) -> None:
    name = "n\x1b[31m.log"
    line = warn("Mismatched NCCL version detected \x1b]0;title\x07 \u202e rank 1 version 22105 rank 0 version 22005")
    (tmp_path / name).write_text(line, encoding="utf-8")
    done = command("doctor", "--log", name)
    assert done.code == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)


def test_name_that_is_no_text_stays_valid_json(command: Command, tmp_path: Path) -> None:
    name = os.fsdecode(b"rank\xff.log")
    (tmp_path / name).write_text(info("Using network IB"), encoding="utf-8")
    record = json.loads(command("doctor", "--log", name, "--json").stdout)
    assert list(record["files"]) == ["rank\ufffd.log"]


def test_tcp_of_hosts_that_may_have_ethernet_alone_exits_with_0(command: Command, tmp_path: Path) -> None:
    lines = [info("NET/IB : No device found."), info("Using network Socket")]
    (tmp_path / "a.log").write_text("\n".join(lines), encoding="utf-8")
    done = command("doctor", "--log", "a.log", "--json")
    assert (done.code, json.loads(done.stdout)["cause"], json.loads(done.stdout)["open"]) == (
        0,
        "tcp-no-ib-device",
        True,
    )


def test_lines_read_in_part_are_noted(command: Command, tmp_path: Path) -> None:
    (tmp_path / "long.log").write_text(info("Using network IB") + "x" * 1_000_000, encoding="utf-8")
    assert "1 line" in command("doctor", "--log", "long.log").stdout


def test_recording_of_a_watched_run_is_replayed_with_the_exit_codes_of_logs(command: Command, tmp_path: Path) -> None:
    assert command("doctor", "--replay", str(RECORDED)).code == 0
    watched = Watched()
    watched.state("a1", "TTTTTT")
    watched.process("a1", 70001, "\x1b[31mx\x07", 0.9)
    watched.write(tmp_path / "stopped")
    done = command("doctor", "--replay", "stopped", "--json")
    record = json.loads(done.stdout)
    assert done.code == 1
    assert RECORD - {"network", "interfaces", "hcas", "gdr", "nnodes", "nccl_version"} <= set(record)
    assert (record["cause"], record["nranks"]) == ("stopped-process", 2)
    assert not {"\x1b", "\x07"} & set(command("doctor", "--replay", "stopped").stdout)


def test_rate_of_a_path_stands_next_to_what_a_probe_measured_there(command: Command, tmp_path: Path) -> None:
    link = Link(
        kind="inside",
        network="ib-1",
        clusters=("ib-1", "ib-1"),
        hosts=("a2", "a1"),
        devices=("ib0", "ib0"),
        method="tcp",
        streams=1,
        direction="forward",
        latency_s=None,
        bandwidth_bytes_per_s=Spread(min=2e8, median=2.5e8),
        samples=3,
    )
    slower = link.model_copy(update={"direction": "backward", "bandwidth_bytes_per_s": Spread(min=1e8, median=1.25e8)})
    inventory = Inventory(hosts=(), clusters=(), shared=None, links=(link, slower), findings=())
    (tmp_path / "inventory.json").write_text(inventory.to_json(), encoding="utf-8")
    record = json.loads(command("doctor", "--replay", str(RECORDED), "--json").stdout)
    rates = {path["sender"]: path["measured_bytes_per_s"] for path in record["paths"] if path["interface"] == "ib0"}
    assert rates == {"a1": 1.25e8, "a2": 2.5e8}
    assert "2 Gbit/s" in command("doctor", "--replay", str(RECORDED)).stdout
    (tmp_path / "inventory.json").write_text("no inventory", encoding="utf-8")
    assert command("doctor", "--replay", str(RECORDED)).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("a1", "a2"),
        ("a1", "--replay", "."),
        ("--replay", "."),
        ("--anonymize", "copy"),
        ("--slurm", "1;id"),
        ("--slurm", "1_[4-5]"),
        ("--slurm", "1_4+1"),
        ("--log", "a.log", "--record", "kept"),
        ("--anonymize", "copy", "--replay", str(RECORDED), "a1"),
        ("x.yaml",),
    ],
)
def test_wrong_usage_of_the_watch_exits_with_2(command: Command, words: tuple[str, ...]) -> None:
    done = command("doctor", *words)
    assert done.code == 2
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


@pytest.mark.process
def test_commands_of_the_doctor_page_show_true_output(tmp_path: Path) -> None:
    played = list(doc_session.play(doc_session.DOCTOR, tmp_path))
    assert len(played) == 4
    for _, shown, done in played:
        assert (done.stderr, doc_session.trimmed(done.stdout)) == ("", shown)


def slurm_of(folder: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, srun: str) -> None:
    tools = folder / "bin"
    tools.mkdir()
    for name, script in {"squeue": squeue, "srun": srun}.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


RUNS = 'while [ "$1" != /bin/sh ]; do shift; done; exec "$@"'


@pytest.mark.process
def test_nodes_of_a_slurm_job_are_watched_by_steps_in_it_and_ranks_of_other_jobs_left_out(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = 'case "$*" in *--jobs=4711*) echo "4711|4711|n[1-2]";; esac'
    slurm_of(tmp_path, monkeypatch, squeue, f'[ "$SLURM_JOB_ID" = 4711 ] || exit 1; {RUNS}')
    done = command("doctor", "--slurm", "4711", "--seconds", "2", "--json", "--record", "kept")
    record = json.loads(done.stdout)
    assert (record["cause"], record["ranks"]) == (None, [])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["n1", "n2"]
    assert command("doctor", "--slurm", "12").code == 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("job", "hosts", "inside"),
    [("7_4", ["n1"], {"9"}), ("9", ["n1"], {"9"}), ("20", ["n1", "n2"], {"20"}), ("20+1", ["n2"], {"20"})],
)
def test_task_of_an_array_and_component_of_a_heterogeneous_job_are_watched_by_the_number_their_ranks_have(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    hosts: list[str],
    inside: set[str],
) -> None:
    """As Slurm 22.05.8 answers. Of a heterogeneous job squeue lists all components, and srun needs the group."""
    squeue = (
        'case "$*" in *--jobs=7_4*|*--jobs=9*) printf "7_[6-8]|7|\\n7_4|9|n1\\n";; '
        '*--jobs=20*) printf "20+0|20|n1\\n20+1|21|n2\\n";; esac'
    )
    srun = (
        'case "$SLURM_JOB_ID $*" in "9 "*|"20 "*nodelist=n1*group=0*|"20 "*nodelist=n2*group=1*) ;; *) exit 1;; esac; '
    )
    slurm_of(tmp_path, monkeypatch, squeue, srun + RUNS)
    command("doctor", "--slurm", job, "--seconds", "2", "--json", "--record", "kept")
    recorded = read_recorded_hosts(tmp_path / "kept")
    assert sorted(recorded) == hosts
    assert {each.notes.slurm_job for each in recorded.values()} == inside
    assert [each.notes.failure for each in recorded.values()] == [None] * len(hosts)


@pytest.mark.process
def test_array_with_several_tasks_is_refused_with_their_names(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_of(tmp_path, monkeypatch, 'printf "7_5|7|n2\\n7_4|9|n1\\n"', "exit 1")
    done = command("doctor", "--slurm", "7")
    assert (done.code, "7_5" in done.stderr, "7_4" in done.stderr) == (2, True, True)


def test_replay_leaves_out_the_ranks_of_other_slurm_jobs(command: Command, tmp_path: Path) -> None:
    for job, ranks in (("77", [0, 1]), ("78", [])):
        watched = Watched()
        for host in watched.hosts:
            line = f"/proc/{PIDS[host]}/environ:SLURM_JOB_ID=77\n"
            watched.edit(host, ENVIRONMENT, lambda text, line=line: text + line)  # type: ignore[misc]
        for position, (name, outputs) in enumerate(watched.hosts.items()):
            write_recording(tmp_path / job, name, outputs, HostNotes(position=position, slurm_job=job))
        record = json.loads(command("doctor", "--replay", job, "--json").stdout)
        assert [rank["number"] for rank in record["ranks"]] == ranks
