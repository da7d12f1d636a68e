"""`holmes probe --script`: what any shell answers to it is read as if Holmes had asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from prober.asking.answers import read_hosts
from prober.probe import probe, replay, script_to_run
from tests.seeds import few_of

SHELLS = ("sh", "dash", "bash --posix", "mksh", "busybox ash")
ANSWER = "@@0123456789abcdef begin id -u\n{}\n\n@@0123456789abcdef end 0\n@@0123456789abcdef done\n"


@pytest.mark.parametrize("shell", few_of(1, [each for each in SHELLS if shutil.which(each.split()[0])]))
def test_answers_of_any_shell_show_what_the_probe_sees(tmp_path: Path, shell: str) -> None:
    with open(tmp_path / "gpu-1.site.txt", "wb") as answer:
        done = subprocess.run(shell.split(), input=script_to_run().encode(), stdout=answer, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    live = probe(
        HostsFile.model_validate({"hosts": ["a"], "transport": "local", "python": "python3"}),
        lambda _host, _state: None,
    ).hosts[0]
    (read,) = replay(tmp_path).hosts
    assert read.name == "gpu-1.site"
    assert (read.sources, read.netdevs, read.routes) == (live.sources, live.netdevs, live.routes)
    assert (read.kernel, read.software, read.boot_id) == (live.kernel, live.software, live.boot_id)


def users(folder: Path) -> dict[str, list[str]]:
    return {name: [output.text for output in recording.outputs] for name, recording in read_hosts(folder).items()}


def test_each_host_takes_its_own_lines_of_a_parallel_shell(tmp_path: Path) -> None:
    of_hosts = [
        [f"{host}: {line}\n" for line in ANSWER.format(uid).splitlines()] for host, uid in (("n1", 0), ("n2", 7))
    ]
    lines = [line for pair in zip(*of_hosts, strict=True) for line in pair]
    (tmp_path / "all.txt").write_text("pdsh@head: n3: ssh exited with exit code 1\n" + "".join(lines))
    assert users(tmp_path) == {"n1": ["0\n"], "n2": ["7\n"]}


@pytest.mark.parametrize("text", ["me@n1:~$ sh probe.sh\n{}me@n1:~$ ", "\ufeffWelcome\n{}logout\n"])
def test_a_pasted_session_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "n1.txt").write_bytes(text.format(ANSWER.format(5)).replace("\n", "\r\n").encode())
    assert users(tmp_path) == {"n1": ["5\n"]}


def test_a_file_without_an_answer_is_a_host_that_did_not_answer(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text("This account is currently not available.\n")
    inventory = replay(tmp_path)
    assert [(host.name, host.reachable) for host in inventory.hosts] == [("n1", False)]
    assert [finding.rule for finding in inventory.findings] == ["HOST-NO-ANSWER"]


def test_answers_of_two_hosts_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(ANSWER.format(0) + ANSWER.format(1))
    with pytest.raises(HolmesError, match=r"n1\.txt: holds the answers of several runs"):
        replay(tmp_path)


def test_what_windows_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_bytes(ANSWER.format(5).replace("\n", "\r\n").encode("utf-16"))
    assert users(tmp_path) == {"n1": ["5\n"]}


def test_what_macos_packs_with_a_file_is_no_host(tmp_path: Path) -> None:
    (tmp_path / "._n1.txt").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    with pytest.raises(HolmesError, match="no recording in it"):
        read_hosts(tmp_path)
    (tmp_path / "n1.txt").write_text(ANSWER.format("0"))
    assert list(users(tmp_path)) == ["n1"]


@pytest.mark.parametrize("odd", ["a word of the shell itself\n", "", "n3: no shell\n"])
def test_odd_lines_of_a_parallel_shell_cost_no_host(tmp_path: Path, odd: str) -> None:
    labelled = [f"{host}: {line}\n" for host in ("n1", "n2") for line in ANSWER.format("7\x0c8").split("\n")[:-1]]
    (tmp_path / "all.txt").write_text(odd + "".join(labelled), newline="\n")
    assert users(tmp_path) == {"n1": ["7\x0c8\n"], "n2": ["7\x0c8\n"], **({"n3": []} if "n3" in odd else {})}


def test_blocks_of_dshbak_are_their_hosts(tmp_path: Path) -> None:
    blocks = [f"{'-' * 16}\n{host}\n{'-' * 16}\n\n{ANSWER.format(host)}" for host in ("n1", "n2")]
    (tmp_path / "all.txt").write_text("".join(blocks))
    assert users(tmp_path) == {"n1": ["n1\n"], "n2": ["n2\n"]}


def test_two_answers_of_one_host_are_refused(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(ANSWER.format(0))
    (tmp_path / "x.txt").write_text("".join(f"n1: {line}\n" for line in ANSWER.format(1).splitlines()))
    with pytest.raises(HolmesError, match=r"x\.txt: host n1 also has an answer in another file"):
        replay(tmp_path)


def test_names_and_exit_codes_that_cannot_be_end_no_replay(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(ANSWER.format(0).replace("end 0", "end " + "9" * 5000))
    assert [finding.rule for finding in replay(tmp_path).findings if finding.rule == "PROBE-TRUNCATED"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff.txt")).write_text(ANSWER.format(0))
    with pytest.raises(HolmesError, match="is not UTF-8"):
        replay(tmp_path)
