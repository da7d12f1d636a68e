"""Which of the keys in known-hosts files count for a host, against paramiko's own reading of the same files."""

from __future__ import annotations

import os
from pathlib import Path

import paramiko
import pytest

from holmes_core.errors import HostError
from holmes_core.remote.known_hosts import add_known_keys
from holmes_core.remote.ssh_settings import SshSettings

KEYS = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFapCyu/XqXr8yAaAGqkP7bHgKHBReXMwnMOxkc8BR6F",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIvJIVb/c6uFycmWS4q7f6K14j4wBwjV1tT3w7q96/US",
)


def settings(*files: Path, port: int = 22) -> SshSettings:
    return SshSettings("10.0.0.1", port, "bob", (), False, files, None, None)


def known_key(name: str, *files: Path, port: int = 22) -> str | None:
    """The ed25519 key the client expects of the host, in base64."""
    client = paramiko.SSHClient()
    add_known_keys(client, "a1", settings(*files, port=port))
    found = client.get_host_keys().lookup(name)
    return None if found is None else found["ssh-ed25519"].get_base64()


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_first_key_of_the_first_file_counts_as_for_paramiko(tmp_path: Path) -> None:
    one = write(tmp_path / "one", f"10.0.0.9 {KEYS[1]}", f"a1,10.0.0.1 {KEYS[0]}", f"10.0.0.1 {KEYS[1]}")
    two = write(tmp_path / "two", f"10.0.0.1 {KEYS[1]}")
    paramikos = paramiko.SSHClient()
    for file in (one, two):
        paramikos.load_system_host_keys(str(file))
    assert known_key("10.0.0.1", one, two) == KEYS[0].split()[1]
    assert paramikos._system_host_keys.lookup("10.0.0.1")["ssh-ed25519"].get_base64() == KEYS[0].split()[1]  # type: ignore[attr-defined]


def test_key_of_another_port_or_host_does_not_count(tmp_path: Path) -> None:
    file = write(tmp_path / "known", f"[10.0.0.1]:2222 {KEYS[0]}", f"10.0.0.2 {KEYS[1]}")
    assert known_key("10.0.0.1", file) is None
    assert known_key("[10.0.0.1]:2222", file, port=2222) == KEYS[0].split()[1]


def test_hashed_name_is_recognised(tmp_path: Path) -> None:
    file = write(tmp_path / "known", f"{paramiko.HostKeys.hash_host('10.0.0.1')} {KEYS[0]}")
    assert known_key("10.0.0.1", file) == KEYS[0].split()[1]


def test_changed_file_is_read_anew(tmp_path: Path) -> None:
    file = write(tmp_path / "known", f"10.0.0.1 {KEYS[0]}")
    assert known_key("10.0.0.1", file) == KEYS[0].split()[1]
    write(file, f"10.0.0.1 {KEYS[1]}")
    os.utime(file, ns=(1, 1))
    assert known_key("10.0.0.1", file) == KEYS[1].split()[1]


def test_missing_file_knows_nobody_and_a_folder_is_an_error(tmp_path: Path) -> None:
    assert known_key("10.0.0.1", tmp_path / "none") is None
    with pytest.raises(HostError, match="cannot be read"):
        known_key("10.0.0.1", tmp_path)
