"""`holmes hosts` writes over no file; what cannot be meant exits with 2 and writes nothing."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.records.record_file import write_signed
from tests.cli.conftest import Command
from tests.planner.fleets import gpu_inventory

NODES = "NodeName=a1 NodeAddr=10.0.0.1 Gres=gpu:8 State=IDLE\nNodeName=a2 Gres=gpu:8 State=DOWN*\n"


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_file_of_nodes_becomes_hosts_yaml_and_says_what_is_left_out(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text(NODES, encoding="utf-8")
    done = command("hosts", "--from", "slurm", "nodes.txt")
    assert (done.code, done.stdout) == (0, "hosts: hosts.yaml (1)\nnext: holmes probe hosts.yaml\n")
    assert done.stderr == "left out: a2: DOWN*\n"
    (entry,) = read_hosts_file(tmp_path / "hosts.yaml").hosts
    assert (entry.name, entry.address) == ("a1", "10.0.0.1")


def test_without_a_file_it_reads_standard_input(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, json.dumps({"instances": [{"id": "a"}]}).encode())
    assert command("hosts", "--from", "topograph", "-o", "mine.yaml").code == 0
    assert [entry.name for entry in read_hosts_file(tmp_path / "mine.yaml").hosts] == ["a"]


def test_nothing_is_written_over(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text(NODES, encoding="utf-8")
    (tmp_path / "hosts.yaml").write_text("mine", encoding="utf-8")
    (tmp_path / "to.yaml").symlink_to("elsewhere.yaml")
    for output, words in (("hosts.yaml", ()), ("to.yaml", ("-o", "to.yaml"))):
        done = command("hosts", "--from", "slurm", "nodes.txt", *words)
        assert (done.code, done.stdout) == (2, "")
        assert f"error: {output} exists" in done.stderr
    assert (tmp_path / "hosts.yaml").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_an_inventory_becomes_topology_conf(command: Command, tmp_path: Path) -> None:
    write_signed(tmp_path / "inventory.json", gpu_inventory((2, 1)))
    done = command("hosts", "--to", "topology", "inventory.json")
    assert (done.code, done.stderr) == (0, "")
    assert "SwitchName=a Nodes=a1,a2\n" in (tmp_path / "topology.conf").read_text(encoding="utf-8")
    assert command("hosts", "--to", "topology", "inventory.json").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "one of --from and --to is needed"),
        (("--from", "slurm", "--to", "topology"), "one of --from and --to is needed"),
        (("--from", "pbs", "nodes.txt"), "--from pbs: not known"),
        (("--to", "pbs", "nodes.txt"), "--to pbs: not known"),
        (("--to", "topology"), "--to topology: no inventory given"),
        (("--to", "topology", "nodes.txt"), "nodes.txt: not of kind inventory"),
        (("--from", "slurm", "none.txt"), "none.txt: cannot be read: No such file or directory"),
        (("--from", "slurm", "pipe"), "pipe: cannot be read: a pipe, socket or device, not a file"),
        (("--from", "slurm", "bytes.txt"), "bytes.txt: not text: byte 0 is not UTF-8"),
        (("--from", "kubernetes", "nodes.txt"), "nodes.txt: line 1, column 1: not JSON"),
        (("--from", "slurm"), "standard input: not text: byte 0 is not UTF-8"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_writes_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "nodes.txt").write_text("{}" if "topology" in words else NODES, encoding="utf-8")
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    piped(monkeypatch, b"\xff")
    done = command("hosts", *words)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"nodes.txt", "bytes.txt", "pipe"}
