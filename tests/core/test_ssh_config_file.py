"""SSH configurations that are odd or made to harm: read with bounds, and refused in words that name file and line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
from holmes_core.remote.ssh_config_file import read_ssh_config
from holmes_core.remote.ssh_settings import ALGORITHMS, CERTIFIED, SshSettings, ssh_settings


def settings(folder: Path, *lines: str, host: str = "a1") -> SshSettings:
    file = folder / "config"
    file.write_text("\n".join(lines), encoding="utf-8")
    return ssh_settings(host, Access(ssh_config=str(file)))


def test_what_files_include_counts_where_the_including_block_does(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Port 1\nHost a2\nPort 2\nHost b?\nPort 3\n", encoding="utf-8")
    lines = ("Host a* b2", f"Include {tmp_path}/more", "User bob", "Match all", f"Include {tmp_path}/mor*", "Port 4")
    ports = {host: settings(tmp_path, *lines, host=host).port for host in ("a1", "a2", "b1", "b2", "c1")}
    assert ports == {"a1": 1, "a2": 1, "b1": 1, "b2": 1, "c1": 1}
    (tmp_path / "more").write_text("Host a2\nPort 2\nHost b?\nPort 3\n", encoding="utf-8")
    found = {host: settings(tmp_path, *lines[:-2], "Port 4", host=host) for host in ("a1", "a2", "b1", "b2", "c1")}
    assert {host: each.port for host, each in found.items()} == {"a1": 4, "a2": 2, "b1": 4, "b2": 3, "c1": 4}
    assert [host for host, each in found.items() if each.user == "bob"] == ["a1", "a2", "b2"]


def test_relative_includes_and_the_system_s_file_are_those_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("holmes_core.remote.ssh_config_file.SYSTEM_FILE", tmp_path / "etc" / "ssh_config")
    for name, text in {
        ".ssh/config": "Include more\nHost a1\nPort 7",
        ".ssh/more": "Host a1\nUser bob",
        "etc/ssh_config": "Include mine.d/*.conf\nPort 9",
        "etc/mine.d/1.conf": "Match final all\nHostKeyAlias everywhere",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = ssh_settings("a1", Access())
    assert (found.user, found.port, found.key_alias) == ("bob", 7, "everywhere")
    assert ssh_settings("a2", Access()).port == 9
    assert ssh_settings("a2", Access(ssh_config="~/.ssh/config")).port == 22


def test_known_hosts_files_are_named_by_ssh_s_words(tmp_path: Path) -> None:
    lines = ("User bob", "Port 7", "HostName 10.0.0.1", "GlobalKnownHostsFile none")
    found = settings(tmp_path, *lines, "UserKnownHostsFile /k/%h-%p-%r-%n-%k-100%% ~/x%d NONE")
    assert found.known_hosts == (Path("/k/10.0.0.1-7-bob-a1-a1-100%"), Path.home() / f"x{Path.home()}")
    assert settings(tmp_path, *lines, "UserKnownHostsFile none").known_hosts == (Path(os.devnull),)
    assert settings(tmp_path, *lines, "HostKeyAlias x", "UserKnownHostsFile /%k").known_hosts == (Path("/x"),)


@pytest.mark.parametrize(
    ("word", "expected"), [("yes", True), ("Yes", True), ("TRUE", True), ("no", False), ("False", False)]
)
def test_yes_is_said_in_any_of_ssh_s_words(tmp_path: Path, word: str, expected: bool) -> None:
    found = settings(tmp_path, f"IdentitiesOnly {word}", f"CheckHostIP {word}")
    assert (found.use_agent, found.checks_address) == (not expected, expected)


LINES = (
    "User bob#c",
    "User bob # c",
    "User bob #",
    "User 'bob'#c",
    'User "bo b" # "x',
    'User b\\"ob',
    "User b\\ob",
    'User "b\\ o\\"b"',
    "User b'o'\"b\"",
    '"User" bob',
    "User   =  bob\t# c",
    "HostName 10.0.0.1 # c",
    "Port=23 # c",
    "ProxyJump first # c",
    "ProxyCommand nc h # c",
    "ProxyCommand nc 'h' \"p\"",
    'HostKeyAlias "x # y"',
    "HostKeyAlias none # c",
    "CheckHostIP yes # c",
    "ProxyJump first\nProxyCommand nc h",
    "ProxyCommand nc h\nProxyJump first",
    "ProxyCommand None\nProxyJump first",
    "ProxyJump none\nProxyCommand nc h",
    "ProxyJump none\nProxyJump first",
    "ProxyCommand nc h\nHostName %h.example.%%",
    "HostName %h.example\nMatch host *.example\nPort 7",
    "HostName %h.example\nMatch !host a*\nPort 7",
)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
@pytest.mark.parametrize("line", LINES)
def test_quotes_and_comments_are_those_of_ssh(tmp_path: Path, line: str) -> None:
    found = settings(tmp_path, 'Host b1 "a1" # c1', line)
    command = ["ssh", "-F", str(tmp_path / "config"), "-G", "a1"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    by_ssh = dict(each.partition(" ")[::2] for each in said)

    assert found.user == by_ssh["user"]
    assert (found.address, str(found.port)) == (by_ssh["hostname"], by_ssh["port"])
    assert found.proxy_jump == by_ssh.get("proxyjump")
    assert found.proxy_command == by_ssh.get("proxycommand")
    assert found.key_alias == by_ssh.get("hostkeyalias")
    assert found.checks_address == (by_ssh["checkhostip"] == "yes")


def test_a_proxy_command_is_told_the_name_that_a_later_line_gives(tmp_path: Path) -> None:
    found = settings(tmp_path, "ProxyCommand nc %n %h %p %r %%h", "HostName %h.example", "Port 7", "User bob")
    assert found.proxy_command == "nc a1 a1.example 7 bob %h"


def test_a_pattern_with_a_comma_is_of_no_host_in_an_included_block_either(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host b1\nPort 7\nHost a1,b1\nMatch all\nPort 8\n", encoding="utf-8")
    assert settings(tmp_path, "Host *,a1", f"Include {tmp_path}/more", host="a1").port == 22


def test_files_may_have_spaces_in_their_names(tmp_path: Path) -> None:
    lines = ('UserKnownHostsFile "/a b/c" /d # /e', "GlobalKnownHostsFile /a\\ b", "RevokedHostKeys '/a b'")
    found = settings(tmp_path, *lines, 'CertificateFile "/a b"', 'IdentityFile "/a b"', "IdentityFile /c # d")

    assert found.known_hosts == (Path("/a b/c"), Path("/d"), Path("/a b"))
    assert (found.revoked, found.certificate_files) == ((Path("/a b"),), ("/a b",))
    assert found.key_files == ("/a b", "/c")
    assert settings(tmp_path, "Host a1 # c1", "Port 7", host="c1").port == 22


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ssh-ed25519", ("ssh-ed25519",)),
        ("ssh-rsa,rsa-sha2-256,ssh-ed25519-cert*", ("rsa-sha2-256", CERTIFIED[0])),
        ("+ssh-rsa", (*CERTIFIED, *ALGORITHMS)),
        ("-*cert*,rsa*,ecdsa*", ("ssh-ed25519",)),
        ("^rsa-sha2-512", ("rsa-sha2-512", *CERTIFIED, *(each for each in ALGORITHMS if each != "rsa-sha2-512"))),
        ("none", ()),
    ],
)
def test_host_key_algorithms_are_lists_of_ssh(tmp_path: Path, words: str, expected: tuple[str, ...]) -> None:
    assert settings(tmp_path, f"HostKeyAlgorithms {words}").key_algorithms == expected


HOSTILE = {
    "includes itself": ("Include {file}", "files include one another"),
    "includes all there is": ("Include {folder}/*", "files include one another"),
    "quote without an end": ('Host "a', '{file}:2: not an SSH configuration: no closing " there'),
    "include of a quote": ('Include "a', '{file}:2: not an SSH configuration: no closing " there'),
    "match of a quote": ('Match host "a', '{file}:2: not an SSH configuration: no closing " there'),
    "nothing but a comment": ("User # bob", "{file}:2: not an SSH configuration: no value there"),
    "match of a new kind": (
        "Match tagged x",
        "{file}:2: not an SSH configuration: `Match tagged` is not understood here",
    ),
    "match of nothing": ("Match host", "{file}:2: not an SSH configuration: `Match host` names nothing"),
    "word without a value": ("Port", "Unparsable line Port"),
    "port is a word": ("Port x", "port is 'x', not a number"),
    "port is huge": ("Port " + "9" * 5000, "port is '9999"),
    "port is below nothing": ("Port -1", "port is '-1'"),
    "bits are a word": ("RequiredRSASize x", "requiredrsasize is 'x'"),
    "command of a quote": ("KnownHostsCommand /bin/echo 'a", "KnownHostsCommand: No closing quotation"),
    "names without a domain": ("CanonicalizeHostname yes", "cannot be used: KeyError"),
    "dots are a word": ("CanonicalizeMaxDots x", "cannot be used: ValueError"),
    "nul": ("\0" * 1000, "Unparsable line"),
    "long line": ("x" * 1_000_000, "Unparsable line"),
    "folder": ("Include {folder}", "Is a directory"),
    "pipe": ("Include {folder}/pipe", "a pipe, socket or device"),
    "device": ("Include /dev/zero", "a pipe, socket or device"),
    "terabyte": ("Include {folder}/terabyte", "at most 2097152"),
    "no text": ("Include {folder}/bytes", "can't decode byte"),
    "link to itself": ("Include {folder}/loop", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configuration_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "terabyte").touch()
    os.truncate(tmp_path / "terabyte", 1 << 40)
    (tmp_path / "bytes").write_bytes(b"User \xff\xfe\n")
    (tmp_path / "loop").symlink_to("loop")
    text, said = HOSTILE[name]
    words = {"file": f"{tmp_path}/config", "folder": str(tmp_path)}
    if name == "includes all there is":
        for each in ("pipe", "terabyte", "bytes", "loop"):
            (tmp_path / each).unlink()
    with pytest.raises(HolmesError) as raised:
        settings(tmp_path, "User bob", text.format(**words), "Host *")
    assert said.format(**words) in raised.value.what
    assert any(each in raised.value.what for each in (str(tmp_path), "/dev/zero"))
    assert len(raised.value.what) < 2000
    assert raised.value.exit_code == 2


def test_files_that_include_ever_more_are_read_at_most_256_times(tmp_path: Path) -> None:
    for level in range(16):
        (tmp_path / f"{level}").write_text(f"Include {tmp_path}/{level + 1}\n" * 2, encoding="utf-8")
    with pytest.raises(HolmesError, match="files include one another"):
        read_ssh_config(str(tmp_path / "0"), "a1")


def test_hosts_that_jump_through_one_another_are_refused(tmp_path: Path) -> None:
    lines = ("Host a1", "ProxyJump b1", "Host b1", "ProxyJump a1", "Host *", "HostName 127.0.0.1", "Port 1")
    settings(tmp_path, *lines)
    with pytest.raises(HostError, match="through more than 16 hosts: b1, a1, b1, a1, b1, a1, "):
        connect("a1", Access(ssh_config=str(tmp_path / "config")))
