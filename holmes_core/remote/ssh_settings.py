"""Address, user and keys of an SSH login: from hosts.yaml, then the SSH configuration, then ssh's own defaults."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access
from holmes_core.records.ssh_names import MAX_SHOWN, checked_ssh_host, checked_ssh_user
from holmes_core.remote.ssh_config_file import PERCENT, not_read, read_ssh_config, written_out

SSH_PORT = 22
MIN_RSA_BITS = 1024
ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""ssh's algorithms that paramiko has, in ssh's order: no SHA-1, no keys on hardware tokens."""
KNOWN_HOSTS = {
    "user": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "global": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
CERTIFICATE = "-cert-v01@openssh.com"
CERTIFIED = tuple(name + CERTIFICATE for name in ALGORITHMS)


@dataclass(frozen=True)
class SshSettings:
    """The settings that ssh needs to log in to one host."""

    address: str
    port: int
    user: str
    key_files: tuple[str, ...]
    use_agent: bool
    """True if any key of the agent may be tried; else only keys whose public half lies next to a key file."""
    known_hosts: tuple[Path, ...]
    """Files of known host keys; a new key goes to the first."""
    proxy_command: str | None
    proxy_jump: str | None
    """Hosts to pass before this one, `user@first:2222,second`."""
    key_alias: str | None = None
    """HostKeyAlias: the name in known-hosts files where that is not the address."""
    revoked: tuple[Path, ...] = ()
    """RevokedHostKeys: files of keys that prove no host."""
    key_algorithms: tuple[str, ...] = (*CERTIFIED, *ALGORITHMS)
    """HostKeyAlgorithms in order of preference."""
    keeps_order: bool = False
    """True if HostKeyAlgorithms fixes the order; else algorithms of the host's known keys come first."""
    authority_algorithms: tuple[str, ...] = ALGORITHMS
    """CASignatureAlgorithms: the signatures that the authority of a host's certificate may use."""
    least_rsa_bits: int = MIN_RSA_BITS
    """RequiredRSASize."""
    known_hosts_command: tuple[str, ...] = ()
    """KnownHostsCommand, which prints known-hosts lines; `%H` in it stands for the name that is looked up."""
    certificate_files: tuple[str, ...] = ()
    """CertificateFile: certificates of the user's keys, in addition to `KEY-cert.pub`."""
    checks_address: bool = False
    """CheckHostIP: the address behind the host's name must not be known by another key either."""

    @property
    def target(self) -> str:
        """`user@address:port`, for messages."""
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def known_name(self) -> str:
        """The host's name in known-hosts files."""
        return self.key_alias or self.address_and_port

    @property
    def address_and_port(self) -> str:
        """The host's name in known-hosts files without HostKeyAlias."""
        return self.with_port(self.address)

    def with_port(self, address: str) -> str:
        """Return an address as known-hosts files name it at this port."""
        return address if self.port == SSH_PORT else f"[{address}]:{self.port}"


def ssh_settings(host: str, access: Access) -> SshSettings:
    """Return the settings of `host`. Raises HolmesError naming the SSH configuration that cannot be read."""
    name = access.address or host
    file = access.ssh_config or "~/.ssh/config"
    check_login(host, name, access.user)  # before `Match exec` gets them
    try:
        found = read_ssh_config(access.ssh_config, name).lookup(name)
    except HolmesError:
        raise
    except Exception as error:  # paramiko's own errors: a malformed number, a missing key, a failed command
        why = f"what it says of {name} cannot be used: {type(error).__name__}: {error}"
        raise not_read(file, why) from None
    address, port = found["hostname"], access.port or _number(file, found, "port", SSH_PORT)
    user = access.user or found.get("user") or getpass.getuser()
    check_login(host, address, access.user)  # a `User` of the configuration is the operator's own: ssh takes any
    words = {"%%": "%", "%h": address, "%p": str(port), "%r": user, "%n": name, "%u": getpass.getuser()}
    words |= {"%d": str(Path.home()), "%k": found.get("hostkeyalias", name)}
    proxy_command = _proxy(found, "proxycommand")
    keys = [access.identity_file] if access.identity_file else found.get("identityfile", [])
    algorithms = found.get("hostkeyalgorithms", "+")
    known = [found.get(f"{whose}knownhostsfile", usual) for whose, usual in KNOWN_HOSTS.items()]
    return SshSettings(
        address=address,
        port=port,
        user=user,
        key_files=tuple(str(Path(key).expanduser()) for key in keys),
        use_agent=not _is_yes(found, "identitiesonly"),
        known_hosts=tuple(path for value in known for path in _paths(value, words)) or (Path(os.devnull),),
        proxy_command=proxy_command and written_out(proxy_command.replace(PERCENT, "%"), words),
        proxy_jump=_proxy(found, "proxyjump"),
        key_alias=found.get("hostkeyalias"),
        key_algorithms=_assembled(algorithms, (*CERTIFIED, *ALGORITHMS)),
        keeps_order=algorithms[:1] not in ("+", "-"),
        authority_algorithms=_assembled(found.get("casignaturealgorithms", "+"), ALGORITHMS),
        least_rsa_bits=_number(file, found, "requiredrsasize", MIN_RSA_BITS),
        known_hosts_command=_command(file, found.get("knownhostscommand", "none"), words),
        certificate_files=tuple(map(str, _paths(found.get("certificatefile", "none"), words))),
        revoked=_paths(found.get("revokedhostkeys", "none"), words),
        checks_address=_is_yes(found, "checkhostip"),
    )


def check_login(host: str, address: str, user: str | None) -> None:
    """Raise HolmesError where `ssh` would not take the address or the user of `host` as one."""
    try:
        checked_ssh_host(address)
        checked_ssh_user(user or "")
    except ValueError as error:
        hint = "correct it in hosts.yaml or the SSH configuration; `ssh` does not take it either"
        raise HolmesError(f"host {host[:MAX_SHOWN]}: {error}", hint) from None


def _number(file: str, found: dict[str, str], key: str, usual: int) -> int:
    value = found.get(key, str(usual))
    if not re.fullmatch(r"[0-9]{1,5}", value):
        raise not_read(file, f"{key} is {value[:40]!r}, not a number of that size")
    return int(value)


def _paths(value: str, words: dict[str, str]) -> tuple[Path, ...]:
    """Return the files that a value names; `none` is no file."""
    found = (written_out(each, words) for each in shlex.split(value))
    return tuple(Path(each).expanduser() for each in found if each.lower() != "none")


def _command(file: str, value: str, words: dict[str, str]) -> tuple[str, ...]:
    """Return the words of a command. Words about a key have no value, as the command runs before a key is offered."""
    if value.lower() == "none":
        return ()
    words = {**words, "%I": "HOSTNAME", "%K": "NONE", "%f": "NONE", "%t": "NONE"}
    try:
        return tuple(written_out(each, words) for each in shlex.split(value))
    except ValueError as error:
        raise not_read(file, f"KnownHostsCommand: {error}") from None


def _assembled(words: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Apply ssh's list of algorithms to the `usual` ones: `+` adds, `-` takes away, `^` puts first."""
    patterns = words.lstrip("+-^").split(",")
    named = tuple(dict.fromkeys(each for pattern in patterns for each in usual if fnmatchcase(each, pattern)))
    if words.startswith("+"):
        return usual
    if words.startswith("-"):
        return tuple(each for each in usual if each not in named)
    return tuple(dict.fromkeys((*named, *usual))) if words.startswith("^") else named


def _is_yes(found: dict[str, str], key: str) -> bool:
    """Return True if the value is `yes` or `true` in any case."""
    return found.get(key, "no").lower() in ("yes", "true")


def _proxy(found: dict[str, str], key: str) -> str | None:
    """Return the value of `key` if it is the first of ProxyCommand and ProxyJump, without `ProxyJump none`."""
    said = {each: value for each, value in found.items() if each in ("proxycommand", "proxyjump")}
    first = next((each for each, value in said.items() if (each, value.lower()) != ("proxyjump", "none")), None)
    return said[key] if key == first and said[key].lower() != "none" else None


def last_jump(settings: SshSettings, access: Access) -> tuple[str, Access, str]:
    """Return the last host of the ProxyJump list, the access to it, and the list of the hosts before it."""
    before, _, last = (settings.proxy_jump or "").rpartition(",")
    user, _, address = last.strip().removeprefix("ssh://").rpartition("@")
    name, port = name_and_port(address)
    check_login(name, name, user)
    return name, Access(address=name, user=user or None, port=port, ssh_config=access.ssh_config), before.strip()


def name_and_port(address: str) -> tuple[str, int | None]:
    """Return host and port of `host`, `host:port`, `[2001:db8::1]:port` or `2001:db8::1`."""
    match = re.fullmatch(r"\[?((?<=\[)[^\]]+|[^:\]]+)\]?:(\d+)", address)
    return (match.group(1), int(match.group(2))) if match else (address.strip("[]"), None)
