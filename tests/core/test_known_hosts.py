"""What known-hosts files say of a host, and what is made of files that are odd or made to harm."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from holmes_core.errors import HostError
from holmes_core.remote.host_proof import UnknownHost, check_host
from holmes_core.remote.known_hosts import fits, known_lines
from holmes_core.remote.ssh_settings import SshSettings

KEYS = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFapCyu/XqXr8yAaAGqkP7bHgKHBReXMwnMOxkc8BR6F",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIvJIVb/c6uFycmWS4q7f6K14j4wBwjV1tT3w7q96/US",
)
OFFERED = paramiko.Ed25519Key(data=paramiko.pkey.PublicBlob.from_string(KEYS[0]).key_blob)


def settings(*files: Path, port: int = 22) -> SshSettings:
    return SshSettings("10.0.0.1", port, "bob", (), False, files, None, None)


def is_known(*files: Path, port: int = 22) -> bool:
    """Whether the first key proves the host; a key that changed is an error."""
    try:
        check_host("a1", settings(*files, port=port), OFFERED, None)
    except UnknownHost:
        return False
    return True


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_any_line_of_any_file_counts(tmp_path: Path) -> None:
    one = write(tmp_path / "one", f"10.0.0.9 {KEYS[1]}", f"10.0.0.1 {KEYS[1]}")
    two = write(tmp_path / "two", f"a1,10.0.0.1 {KEYS[0]}")
    assert is_known(one, two)
    with pytest.raises(HostError, match=f"known is ssh-ed25519 SHA256:.*: {one}:2\n") as raised:
        is_known(one)
    assert f"`ssh-keygen -R 10.0.0.1 -f {one}`" in raised.value.hint


def test_changed_key_of_another_port_is_forgotten_under_its_own_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a folder's", f"[10.0.0.1]:2222 {KEYS[1]}")
    with pytest.raises(HostError) as raised:
        is_known(file, port=2222)
    assert f"`ssh-keygen -R '[10.0.0.1]:2222' -f '{tmp_path}/a folder'\"'\"'s'`" in raised.value.hint


def test_line_of_a_pattern_is_removed_by_hand(tmp_path: Path) -> None:
    file = write(tmp_path / "known", "# ours", f"10.0.* {KEYS[1]}")
    with pytest.raises(HostError) as raised:
        is_known(file)
    assert f"remove line 2 of {file}" in raised.value.hint


def test_key_of_another_port_or_host_does_not_count(tmp_path: Path) -> None:
    file = write(tmp_path / "known", f"[10.0.0.1]:2222 {KEYS[0]}", f"10.0.0.2 {KEYS[1]}")
    assert not is_known(file)
    assert is_known(file, port=2222)


def test_hashed_name_is_recognised(tmp_path: Path) -> None:
    assert is_known(write(tmp_path / "known", f"{paramiko.HostKeys.hash_host('10.0.0.1')} {KEYS[0]}"))


def test_changed_file_is_read_anew(tmp_path: Path) -> None:
    file = write(tmp_path / "known", f"10.0.0.2 {KEYS[0]}")
    assert not is_known(file)
    write(file, f"10.0.0.1 {KEYS[0]}")
    os.utime(file, ns=(1, 1))
    assert is_known(file)


def test_missing_file_knows_nobody_and_a_folder_is_an_error(tmp_path: Path) -> None:
    assert not is_known(tmp_path / "none")
    with pytest.raises(HostError, match="cannot be read"):
        is_known(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "\0" * 1000,
        "x" * 10_000_000,
        "10.0.0.1 " * 100_000,
        f"10.0.0.1\0 {KEYS[0]}",
        f"{'?*' * 5000}x {KEYS[0]}",
        f"{'10.0.0.2,' * 100_000} {KEYS[0]}",
        f"|1||| {KEYS[0]}",
        f"|1|{'A' * 100_000} {KEYS[0]}",
        f"|1|é|é {KEYS[0]}",
        f"@cert-authority {KEYS[0]}",
        "@cert-authority",
        "@revoked 10.0.0.1",
        "10.0.0.1 ssh-ed25519",
        "10.0.0.1 ssh-ed25519 AAAA",
        "10.0.0.1 ssh-ed25519 /////w==",
        f"10.0.0.1 ssh-rsa {KEYS[0].split()[1]}",
        f"10.0.0.1 ssh-ed25519 {KEYS[0].split()[1]}!",
        f"10.0.0.1 ssh-ed25519 {KEYS[0].split()[1][:-4]}",
        "10.0.0.1 1024 65537 123456789",
    ],
    ids=lambda line: line[:30].encode("unicode_escape").decode(),
)
def test_line_made_to_harm_proves_nothing_and_the_next_counts(tmp_path: Path, line: str) -> None:
    assert not any(
        each.key == OFFERED.asbytes() for each in known_lines("a1", settings(write(tmp_path / "k", line)), "10.0.0.1")
    )
    assert is_known(write(tmp_path / "known", line, f"10.0.0.1 {KEYS[0]}"))


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "known").write_bytes(b"\xff\xfe\x80 caf\xe9\n" + f"10.0.0.1 {KEYS[0]}\n".encode())
    assert is_known(tmp_path / "known")


def test_pipe_device_or_terabyte_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "terabyte").touch()
    os.truncate(tmp_path / "terabyte", 1 << 40)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "terabyte", "zero", "loop"):
        with pytest.raises(HostError, match="cannot be read: "):
            is_known(tmp_path / name)
    assert not is_known(Path(os.devnull))


@pytest.mark.parametrize(
    ("known", "is_believed"),
    [
        ("[a1]:2222 {0}\n[10.0.0.1]:2222 {1}", False),
        ("[a1]:2222 {0}\n10.0.0.1 {1}", True),
        ("a1 {0}\n10.0.0.1 {1}", False),
        ("a1 {0}\n[10.0.0.1]:2222 {1}", False),
        ("a1 {0}\n10.0.0.1 {0}\n[10.0.0.1]:2222 {0}", True),
    ],
)
def test_the_address_is_looked_up_with_the_port_or_without_as_the_host_is(
    tmp_path: Path, known: str, is_believed: bool
) -> None:
    file = write(tmp_path / "known", *known.format(*KEYS).split("\n"))
    checking = replace(settings(file, port=2222), address="a1", checks_address=True)
    if is_believed:
        check_host("a1", checking, OFFERED, "10.0.0.1")
        return
    with pytest.raises(HostError, match=r"of (10\.0\.0\.1|\[10\.0\.0\.1\]:2222), to which it leads, ") as refused:
        check_host("a1", checking, OFFERED, "10.0.0.1")
    assert f"{file}:2, and CheckHostIP is yes" in str(refused.value)
    assert "ssh-keygen -R" in refused.value.hint


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("?", "", False),
        ("a*b*c", "aXbbc", True),
        ("a*b*c", "aXbb", False),
        ("*.example", "a.example", True),
        ("*.example", "a.examples", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("*a" * 30 + "b", "a" * 250, False),
    ],
)
def test_patterns_are_ssh_s(pattern: str, name: str, expected: bool) -> None:
    assert fits(pattern, name) is expected
