"""Throw-away keys and the configuration of both ends of SSH."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.testbed.bed_layout import BedHost
from tests.testbed.bed_process import SYSTEM_PATH


def make_keys(folder: Path, hosts: Sequence[BedHost]) -> None:
    """Makes the client's key and every host's own key, lets the client in, and writes known_hosts and ssh_config."""
    client_key = folder / "client_key"
    make_key(client_key)
    for host in hosts:
        make_key(host_key(host))
        (host.folder / "authorized_keys").write_text(public_key(client_key))
        (host.folder / "sshd_config").write_text(sshd_config(host))
    known = [f"{host.name},{host.slow_address} {public_key(host_key(host))}" for host in hosts]
    (folder / "known_hosts").write_text("".join(known))
    (folder / "ssh_config").write_text("\n".join(ssh_config(folder, host) for host in hosts))


def make_key(path: Path) -> None:
    """Makes an ed25519 key pair without a passphrase: `path` and `path`.pub."""
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(secret)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_suffix(".pub").write_text(f"{public} holmes test bed\n")


def host_key(host: BedHost) -> Path:
    """The host's private key."""
    return host.folder / "host_key"


def public_key(path: Path) -> str:
    """The public half of the key at `path`, as one line."""
    return path.with_suffix(".pub").read_text()


def host_environment(host: BedHost) -> dict[str, str]:
    """What every command on the host finds in its environment: stub tools first, temporary files in the bed folder."""
    return {"PATH": f"{host.tools}:{SYSTEM_PATH}", "TMPDIR": str(host.folder / "tmp")}


def sshd_config(host: BedHost) -> str:
    """The host's sshd configuration. All variables are on one SetEnv line: sshd heeds only the first such line."""
    variables = " ".join(f'"{name}={value}"' for name, value in host_environment(host).items())
    return f"""\
Port 22
ListenAddress {host.slow_address}
HostKey "{host_key(host)}"
AuthorizedKeysFile "{host.folder / "authorized_keys"}"
PidFile none
UsePAM no
StrictModes no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
SetEnv {variables}
"""


def ssh_config(folder: Path, host: BedHost) -> str:
    """The client's configuration for one host."""
    return f"""\
Host {host.name}
    HostName {host.slow_address}
    User root
    Port 22
    IdentityFile "{folder / "client_key"}"
    IdentitiesOnly yes
    UserKnownHostsFile "{folder / "known_hosts"}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
"""
