"""SSH configurations are read as `ssh -G` reads them; one made to harm is refused in its words, with bounds."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
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


def test_known_hosts_files_are_named_by_ssh_s_words(tmp_path: Path) -> None:
    lines = ("User bob", "Port 7", "HostName 10.0.0.1", "GlobalKnownHostsFile none")
    found = settings(tmp_path, *lines, "UserKnownHostsFile /k/%h-%p-%r-%n-%k-100%% ~/x")
    assert found.known_hosts == (Path("/k/10.0.0.1-7-bob-a1-a1-100%"), Path.home() / "x")
    assert settings(tmp_path, *lines, "UserKnownHostsFile none").known_hosts == (Path(os.devnull),)
    assert settings(tmp_path, *lines, "HostKeyAlias x", "UserKnownHostsFile /%k").known_hosts == (Path("/x"),)


def test_user_and_port_of_hosts_yaml_are_what_match_sees(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Match user bob\nHostName 10.0.0.7\nMatch all\nUser mary\nPort 9\n", encoding="utf-8")
    found = ssh_settings("a1", Access(ssh_config=str(file), user="bob", port=5))
    assert (found.address, found.user, found.port) == ("10.0.0.7", "bob", 5)
    found = ssh_settings("a1", Access(ssh_config=str(file)))
    assert (found.address, found.user, found.port) == ("a1", "mary", 9)


def test_without_ssh_only_hosts_yaml_counts_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = ssh_settings("127.0.0.1", Access(user="bob", port=1))
    assert (found.address, found.user, found.port, found.is_configured) == ("127.0.0.1", "bob", 1, False)
    assert found.known_hosts[0] == Path.home() / ".ssh" / "known_hosts"
    with pytest.raises(HostError, match=r"~/\.ssh/config was not read, as there is no `ssh` here"):
        connect("127.0.0.1", Access(user="bob", port=1))
    with pytest.raises(HolmesError, match="there is no `ssh` here to read it") as raised:
        settings(tmp_path, "Port 7")
    assert raised.value.exit_code == 2


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
    file = tmp_path / "a b"  # ssh prints a list of files without quotes
    file.touch()
    lines = (
        f'UserKnownHostsFile "{file}" /d # /e',
        f"GlobalKnownHostsFile {tmp_path}/a\\ b",
        f"RevokedHostKeys '{file}'",
    )
    found = settings(
        tmp_path,
        *lines,
        f"RevokedHostKeys '{file}'",
        'CertificateFile "/a b"',
        'IdentityFile "/a b"',
        "IdentityFile /c # d",
    )

    assert found.known_hosts == (file, Path("/d"), file)
    assert (found.revoked, found.certificate_files) == ((file,), ("/a b",))
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
        ("ssh-dss", ()),
    ],
)
def test_host_key_algorithms_are_lists_of_ssh(tmp_path: Path, words: str, expected: tuple[str, ...]) -> None:
    assert settings(tmp_path, f"HostKeyAlgorithms {words}").key_algorithms == expected


HOSTILE = {
    "includes itself": ("Include {file}", "Too many recursive configuration includes"),
    "includes all there is": ("Include {folder}/*", "Too many recursive configuration includes"),
    "quote without an end": ('Host "a', "{file} line 2: invalid quotes"),
    "include of a quote": ('Include "a', "{file} line 2: invalid quotes"),
    "match of a quote": ('Match host "a', "{file} line 2: invalid quotes"),
    "nothing but a comment": ("User # bob", "{file} line 2: Missing argument"),
    "match of a new kind": ("Match wanted x", "Unsupported Match attribute wanted"),
    "match of nothing": ("Match host", "Missing Match criteria for host"),
    "word without a value": ("Port", "{file} line 2: no argument after keyword"),
    "port is a word": ("Port x", "{file} line 2: Bad port 'x'"),
    "port is huge": ("Port " + "9" * 5000, "{file} line 2: Bad port '9999"),
    "port is below nothing": ("Port -1", "{file} line 2: Bad port '-1'"),
    "bits are a word": ("RequiredRSASize x", "{file} line 2: integer value invalid"),
    "algorithms are none": ("HostKeyAlgorithms none", "{file} line 2: Bad key types 'none'"),
    "command of a quote": ("KnownHostsCommand /bin/echo 'a", "{file} line 2: invalid quotes"),
    "dots are a word": ("CanonicalizeMaxDots x", "{file} line 2: integer value invalid"),
    "long line": ("x" * 1_000_000, "{file} line 2: no argument after keyword"),
    "device": ("Include /dev/zero", "Bad owner or permissions on /dev/zero"),
    "link to itself": ("Include {folder}/loop", "Too many levels of symbolic links"),
}
TAKEN = {
    "names without a domain": "CanonicalizeHostname yes",
    "nul": "\0" * 1000,
    "folder": "Include {folder}",
    "terabyte": "Include {folder}/terabyte",
    "no text": "Include {folder}/bytes",
}
"""Lines that ssh ignores, in bounded memory."""


@pytest.fixture
def odd_files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "terabyte").touch(0o600)
    os.truncate(tmp_path / "terabyte", 1 << 40)
    (tmp_path / "bytes").write_bytes(b"User \xff\xfe\n")
    (tmp_path / "loop").symlink_to("loop")
    return {"file": f"{tmp_path}/config", "folder": str(tmp_path)}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configuration_is_refused_in_the_words_of_ssh(
    tmp_path: Path, odd_files: dict[str, str], name: str
) -> None:
    text, said = HOSTILE[name]
    if name == "includes all there is":
        for each in ("terabyte", "bytes", "loop"):
            (tmp_path / each).unlink()
    with pytest.raises(HolmesError) as raised:
        settings(tmp_path, "User bob", text.format(**odd_files), "Host *")
    assert said.format(**odd_files) in raised.value.what
    assert str(tmp_path) in raised.value.what
    assert len(raised.value.what) < 2000
    assert raised.value.exit_code == 2


@pytest.mark.slow
def test_a_command_of_the_configuration_that_goes_on_is_the_trouble_of_its_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="`ssh -G a1` does not end within 10 s") as raised:
        settings(tmp_path, 'Match exec "sleep 60"')
    assert raised.value.kind == "unreachable"


def test_words_and_variables_in_hops_and_files_are_expanded_but_not_in_hosts_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = ("User bob", "ProxyJump %r@gw-%h:23", "IdentityFile ${KEYS}/%r-%%", "IdentityFile ~/k")
    found = settings(tmp_path, *lines, "RevokedHostKeys /gone/%h")
    home = pwd.getpwuid(os.getuid()).pw_dir  # as for ssh, whatever HOME is

    assert (found.proxy_jump, found.revoked) == ("bob@gw-a1:23", (Path("/gone/a1"),))
    assert found.key_files == ("/keys/bob-%", f"{home}/k")
    access = Access(ssh_config=str(tmp_path / "config"), identity_file="/data/50%done/key")
    assert ssh_settings("a1", access).key_files == ("/data/50%done/key",)
    assert settings(tmp_path, "IdentityFile none").key_files == ()


def test_a_lower_limit_of_this_process_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.touch()
    program = (
        "from holmes_core.records.access import Access\n"
        "from holmes_core.remote.ssh_settings import ssh_settings\n"
        f"print(ssh_settings('a1', Access(ssh_config={str(file)!r})).address)"
    )
    command = ["/bin/sh", "-c", 'ulimit -d 500000; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a1\n"), done.stderr


@pytest.mark.parametrize("name", TAKEN)
def test_odd_configuration_that_ssh_takes_is_taken(tmp_path: Path, odd_files: dict[str, str], name: str) -> None:
    assert settings(tmp_path, "User bob", TAKEN[name].format(**odd_files), "Host *").user == "bob"


def test_hosts_that_jump_through_one_another_are_refused(tmp_path: Path) -> None:
    lines = ("Host a1", "ProxyJump b1", "Host b1", "ProxyJump a1", "Host *", "HostName 127.0.0.1", "Port 1")
    settings(tmp_path, *lines)
    with pytest.raises(HostError, match="through more than 16 hosts: b1, a1, b1, a1, b1, a1, "):
        connect("a1", Access(ssh_config=str(tmp_path / "config")))
