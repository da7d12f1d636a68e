"""ProxyJump lists against real sshd on loopback ports; each lets connections through to the next hop alone."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_core.errors import HostError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect
from holmes_core.remote.host_keys import offered_key
from holmes_core.remote.ssh_settings import name_and_port
from tests.core.ssh_servers import make_key, needs_sshd, sshds
from tests.free_ports import free_port
from tests.seeds import few_of


@pytest.fixture
def ssh_config(tmp_path: Path) -> Iterator[Path]:
    """An SSH configuration with hosts `first`, `second` and `target`, which is reached through the other two."""
    ports = [free_port() for _ in range(3)]
    (tmp_path / "authorized").write_text(make_key(tmp_path / "client"), encoding="utf-8")
    lines, known, settings = [], [], {}
    for name, port, onward in zip(("first", "second", "target"), ports, (*ports[1:], None), strict=True):
        known.append(f"[127.0.0.1]:{port} {make_key(tmp_path / name)}")
        opened = f"PermitOpen 127.0.0.1:{onward}" if onward else "AllowTcpForwarding no"
        settings[port] = f"HostKey {tmp_path / name}\n{opened}"
        lines.append(f"Host {name}\n    HostName 127.0.0.1\n    Port {port}\n")
    lines.append("Host target\n    ProxyJump first,second\n")
    lines.append(f"Host *\n    User {getpass.getuser()}\n    IdentityFile {tmp_path}/client\n    IdentitiesOnly yes\n")
    lines.append(f"    UserKnownHostsFile {tmp_path}/known_hosts\n    GlobalKnownHostsFile /dev/null\n")
    (tmp_path / "known_hosts").write_text("".join(known), encoding="utf-8")
    (tmp_path / "ssh_config").write_text("".join(lines), encoding="utf-8")
    with sshds(tmp_path, settings):
        yield tmp_path / "ssh_config"


@needs_sshd
def test_a_host_is_reached_through_every_hop_in_order(ssh_config: Path) -> None:
    connection = connect("target", Access(ssh_config=str(ssh_config)))
    try:
        assert connection.run("echo here", b"", 10).stdout == b"here\n"
    finally:
        connection.close()


@needs_sshd
def test_hops_in_the_wrong_order_do_not_let_it_through(ssh_config: Path) -> None:
    ssh_config.write_text(ssh_config.read_text(encoding="utf-8").replace("first,second", "second,first"))
    with pytest.raises(HostError, match="cannot connect"):
        connect("target", Access(ssh_config=str(ssh_config)))


@needs_sshd
def test_the_key_of_every_hop_must_be_known(ssh_config: Path) -> None:
    known = ssh_config.parent / "known_hosts"
    first, _, target = known.read_text(encoding="utf-8").splitlines(keepends=True)
    known.write_text(first + target, encoding="utf-8")
    with pytest.raises(HostError) as raised:
        connect("target", Access(ssh_config=str(ssh_config)))
    assert (raised.value.kind, raised.value.host) == ("key unknown", "second")


def rewrite_known(ssh_config: Path, name: str, line: str) -> None:
    """What known_hosts says of that host; `{names}` and `{key}` stand for its own line's."""
    file, number = ssh_config.parent / "known_hosts", ("first", "second", "target").index(name)
    lines = file.read_text(encoding="utf-8").splitlines()
    names, _, key = lines[number].partition(" ")
    lines[number] = line.format(names=names, key=key)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def refusal(ssh_config: Path) -> HostError:
    with pytest.raises(HostError) as raised:
        connect("target", Access(ssh_config=str(ssh_config)))
    return raised.value


@needs_sshd
def test_host_key_alias_is_the_name_that_counts(ssh_config: Path) -> None:
    rewrite_known(ssh_config, "target", "compute.7 {key}")
    assert refusal(ssh_config).kind == "key unknown"
    text = ssh_config.read_text(encoding="utf-8").replace(
        "Host target\n", "Host target\n    HostKeyAlias compute.7\n", 1
    )
    ssh_config.write_text(text, encoding="utf-8")
    connect("target", Access(ssh_config=str(ssh_config))).close()


@needs_sshd
@pytest.mark.parametrize("names", few_of(1, ["{names}", "*", "a.example,[127.0.0.?]:*"]))
def test_revoked_key_is_refused_though_it_is_known(ssh_config: Path, names: str) -> None:
    rewrite_known(ssh_config, "target", f"{{names}} {{key}}\n@revoked {names} {{key}}")
    found = refusal(ssh_config)
    assert "is revoked" in found.evidence
    with pytest.raises(HostError, match="is revoked"):
        offered_key("target", Access(ssh_config=str(ssh_config)))


def revoke_by_file(ssh_config: Path, content: bytes | None) -> str:
    """A RevokedHostKeys file of that content, None for one that is not there; what is then said of the target."""
    file = ssh_config.parent / "revoked"
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    text = ssh_config.read_text(encoding="utf-8")
    if "RevokedHostKeys" not in text:
        line = f"Host target\n    RevokedHostKeys {file}\n"
        ssh_config.write_text(text.replace("Host target\n", line, 1), encoding="utf-8")
    return refusal(ssh_config).evidence


@needs_sshd
def test_a_file_of_revoked_keys_counts_as_for_ssh(ssh_config: Path) -> None:
    known = (ssh_config.parent / "known_hosts").read_text(encoding="utf-8").splitlines()
    mine, others = (known[number].partition(" ")[2] for number in (2, 0))
    assert "is revoked" in revoke_by_file(ssh_config, f"# gone\n{others}\n{mine} of the target\n".encode())
    assert "cannot be read: No such file" in revoke_by_file(ssh_config, None)
    assert "is a KRL that `ssh-keygen -Q` does not read" in revoke_by_file(ssh_config, b"SSHKRL\n\0" + bytes(40))
    (ssh_config.parent / "revoked").write_text(others + "\n", encoding="utf-8")
    connect("target", Access(ssh_config=str(ssh_config))).close()


@needs_sshd
def test_certificate_authority_is_no_known_key_and_is_said(ssh_config: Path) -> None:
    rewrite_known(ssh_config, "target", "@cert-authority *,!b.example {key}")
    found = refusal(ssh_config)
    assert found.kind == "key unknown"
    assert "@cert-authority" in found.evidence
    rewrite_known(ssh_config, "second", "{names} {key}\n@cert-authority * {key}\n@new * {key}\nnot a line\n\n# end")
    assert refusal(ssh_config).host == "target"


@needs_sshd
def test_changed_key_is_forgotten_and_shown_again_never_taken_blindly(ssh_config: Path) -> None:
    rewrite_known(ssh_config, "target", "{names} " + make_key(ssh_config.parent / "other").strip())
    found = refusal(ssh_config)
    assert found.kind == "key changed"
    assert "ssh-keyscan" not in found.hint
    assert "holmes trust" in found.hint


@pytest.mark.parametrize(
    ("place", "name", "port"),
    [
        ("jump", "jump", None),
        ("jump:2222", "jump", 2222),
        ("[2001:db8::1]:2222", "2001:db8::1", 2222),
        ("[2001:db8::1]", "2001:db8::1", None),
        ("2001:db8::1", "2001:db8::1", None),
    ],
)
def test_name_and_port_of_a_hop(place: str, name: str, port: int | None) -> None:
    assert name_and_port(place) == (name, port)
