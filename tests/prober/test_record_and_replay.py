"""Recording and replay: the same outputs give the same inventory, and a malformed recording names its fault."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.access import Access
from prober.asking.commands import cut
from prober.asking.recording import CUT_OFF, HostNotes, HostRecording, Recorded, read_recorded_hosts, write_recording
from prober.probe import inventory_of, probe, replay


def silent(_host: str, _state: str) -> None:
    """Progress that nobody watches."""


def test_replay_gives_the_inventory_of_the_live_run_byte_for_byte(tmp_path: Path) -> None:
    hosts = HostsFile.model_validate({"transport": "local", "hosts": ["b", "a"], "speeds_gbps": {"lo": 3}})
    live = probe(hosts, silent, record=tmp_path / "recording")
    assert replay(tmp_path / "recording").to_json() == live.to_json()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'This account is currently not available.'; exit 1", "status 1 .*: This account is currently not"),
        ("echo hello; echo 'exec: zsh: not found' >&2; exit 127", "status 127 .*: exec: zsh: not found$"),
        ("cat >/dev/null", "status 0 .*: without a word$"),
        ("cat", "status 0 "),  # an echo of the question is no answer
    ],
)
def test_a_host_that_ran_nothing_is_an_error_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    (tmp_path / "sh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "sh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = HostsFile.model_validate({"transport": "local", "hosts": ["a"]})
    inventory = probe(hosts, silent, record=tmp_path / "recording")
    (finding,) = (each for each in inventory.findings if each.hosts == ("a",))
    assert (finding.rule, finding.severity, inventory.host("a").reachable) == ("HOST-NO-ANSWER", "F", False)
    assert re.search(words, finding.evidence)
    assert replay(tmp_path / "recording").to_json() == inventory.to_json()


def test_an_answer_that_breaks_off_between_two_commands_is_reported_with_the_last_words() -> None:
    answer = "@@t begin id -u\n0\n\n@@t end 0\n"
    outputs = cut(answer, "@@t", "Killed")
    assert outputs == (Recorded("id -u", "0\n", 0), Recorded("sh -s", "Killed", CUT_OFF))
    assert cut(f"{answer}@@t done\n", "@@t") == outputs[:1]
    (finding,) = inventory_of({"a": HostRecording(outputs)}).findings
    assert (finding.rule, finding.evidence) == ("PROBE-TRUNCATED", "sh: its answer was cut off: Killed")


def test_a_recording_without_an_output_is_no_answer(tmp_path: Path) -> None:
    write_recording(tmp_path, "a", (), HostNotes())
    write_recording(tmp_path, "b", (Recorded("id -u", "0\n", 0),), HostNotes())
    inventory = replay(tmp_path)
    assert [host.reachable for host in inventory.hosts] == [False, True]
    assert [(finding.rule, finding.hosts) for finding in inventory.findings] == [("HOST-NO-ANSWER", ("a",))]


def test_outputs_come_back_as_they_were(tmp_path: Path) -> None:
    outputs = (Recorded("ibstat", "CA 'mlx5_0'\r\n\x1b[4m", None), Recorded("sudo ibstat mlx5_0", "", 255))
    notes = HostNotes(access=Access(user="me"), clock_skew_s=0.25)
    write_recording(tmp_path, "a", outputs, notes)
    assert read_recorded_hosts(tmp_path) == {"a": HostRecording(outputs, notes)}


def test_a_recording_of_one_ibstat_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "recording.json").write_text('[{"file": "x.txt", "command": "sudo ibstat", "exit_code": null}]')
    (tmp_path / "a" / "x.txt").write_text("CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tLink layer: InfiniBand\n")
    (host,) = replay(tmp_path).hosts
    assert [(nic.device, nic.kind) for nic in host.nics] == [("mlx5_0", "InfiniBand")]


def test_a_recording_by_other_hands_is_read(tmp_path: Path) -> None:
    port = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tLink layer: InfiniBand\n"
    entries = [
        {"file": "sub/odd name (1).log", "command": "ibstat", "taken_by": "a script of theirs"},
        {"file": "empty", "command": "nvidia-smi", "exit_code": 0},
        {"file": "empty", "command": "some-tool --all", "exit_code": 3},
    ]
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "recording.json").write_text(json.dumps(entries))
    (tmp_path / "a" / "empty").write_text("")
    (tmp_path / "a" / "sub" / "odd name (1).log").write_bytes(b"\xff\xfe\n" + port.encode() + b"\x80")
    inventory = replay(tmp_path)
    assert [(nic.device, nic.state) for nic in inventory.hosts[0].nics] == [("mlx5_0", "Active")]
    assert [finding.rule for finding in inventory.findings] == ["PROBE-TOOL-UNREAD"]


def test_hosts_of_which_no_address_is_known_are_not_said_to_be_apart(tmp_path: Path) -> None:
    for host, device in (("a", "mlx5_0"), ("b", "bnxt_re0")):
        write_recording(tmp_path, host, (Recorded("ibdev2netdev", f"{device} port 1 ==> ens1 (Up)\n", 0),))
    assert [finding.rule for finding in replay(tmp_path).findings] == ["CLUSTER-NOT-KNOWN"]


def test_a_used_folder_is_not_recorded_into(tmp_path: Path) -> None:
    write_recording(tmp_path, "a", ())
    hosts = HostsFile.model_validate({"transport": "local", "hosts": ["a"]})
    with pytest.raises(HolmesError, match="holds a recording of a"):
        probe(hosts, silent, record=tmp_path)


@pytest.mark.parametrize(
    ("entries", "key"),
    [
        ({}, "whole file"),
        ([3], "0"),
        ([{"file": "x.txt", "command": "", "exit_code": 0}], "0.command"),
        ([{"file": "../x.txt", "command": "ibstat", "exit_code": 0}], "0.file"),
        ([{"file": "x.txt", "command": "ibstat", "exit_code": "0"}], "0.exit_code"),
        ([{"file": "x.txt", "comand": "ibstat"}], "0.comand"),
        ([{"file": "none.txt", "command": "ibstat", "exit_code": 0}], "0.file"),
    ],
)
def test_a_malformed_recording_names_file_and_key(tmp_path: Path, entries: object, key: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("")
    (tmp_path / "a" / "recording.json").write_text(json.dumps(entries))
    with pytest.raises(HolmesError, match=r"recording\.json") as raised:
        read_recorded_hosts(tmp_path)
    assert key in raised.value.what


@pytest.mark.parametrize(
    ("command", "tool"),
    [
        ("ibstat mlx5_7", "ibstat"),
        ("sudo -n /usr/sbin/ibstat", "ibstat"),
        ("LC_ALL=C lsmod | grep nvidia", "lsmod"),
        ("nvidia-smi --query-gpu=<every field the driver lists> --format=csv", "nvidia-smi"),
        ("env | grep '^NCCL_'", "env"),
        ("it's odd", "it's"),
        ("sudo -u root /usr/sbin/ibstat", "ibstat"),
        ("env LC_ALL=C LANG=C nice -n 19 ibstat", "ibstat"),
        ("timeout -k 2 20 ibv_devinfo -v", "ibv_devinfo"),
        ("bash -lc 'sudo ibstat | head'", "ibstat"),
    ],
)
def test_the_first_word_names_the_tool(command: str, tool: str) -> None:
    assert Recorded(command, "", 0).tool == tool


def test_folder_of_a_host_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)  # noqa: PTH102  # its name is bytes
    Path(os.fsdecode(folder), "recording.json").write_text("[]")
    with pytest.raises(HolmesError, match=r"the name b'\\xff\\xfe' is not UTF-8"):
        replay(tmp_path)


def test_half_of_a_surrogate_pair_in_a_recording_is_refused(tmp_path: Path) -> None:
    write_recording(tmp_path, "a", (Recorded("ibstat", "", 0),))
    (tmp_path / "a" / "recording.json").write_text('[{"file": "x", "command": "\\ud800", "exit_code": 0}]')
    with pytest.raises(HolmesError, match="half of a surrogate pair"):
        replay(tmp_path)
