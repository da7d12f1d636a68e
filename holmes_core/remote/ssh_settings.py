"""Address, user and keys of an SSH login: from hosts.yaml, then as `ssh` reads its configuration, with its defaults."""

from __future__ import annotations

import functools
import os
import pwd
import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access
from holmes_core.records.ssh_names import MAX_SHOWN, checked_ssh_host, checked_ssh_user
from holmes_core.remote.ssh_config import not_read, read_ssh_config

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
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
USUAL_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
CERTIFICATE = "-cert-v01@openssh.com"
CERTIFIED = tuple(name + CERTIFICATE for name in ALGORITHMS)
HOST_KEY_ALGORITHMS = (*CERTIFIED, *ALGORITHMS)


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
    key_algorithms: tuple[str, ...] = HOST_KEY_ALGORITHMS
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
    is_configured: bool = True
    """False if there is no `ssh` here, so that no configuration was read."""

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
    """Return the settings of `host`.

    Raises:
        HolmesError: `ssh` refuses the configuration, the host's name or the user's.
    """
    name = access.address or host
    check_login(host, name, access.user)  # before `Match exec` gets them
    said = read_ssh_config(host, name, access)
    address, user = said.one("hostname") or name, access.user or said.one("user") or _me().pw_name
    check_login(host, address, access.user)  # a `User` of the configuration is the operator's own: ssh takes any
    port = access.port or int(said.one("port") or SSH_PORT)
    alias = next(iter(said.all("hostkeyalias")), None)
    words = {"%%": "%", "%h": address, "%p": str(port), "%r": user, "%n": name, "%k": alias or name}
    me, here = _me(), socket.gethostname()
    words |= {"%u": me.pw_name, "%d": me.pw_dir, "%i": str(me.pw_uid), "%l": here, "%L": here.partition(".")[0]}
    keys = _files(said.all("identityfile") if said.is_known else USUAL_KEYS, words)
    if access.identity_file:
        keys = (str(Path(access.identity_file).expanduser()),)
    key_algorithms = _ours(said.one("hostkeyalgorithms"), HOST_KEY_ALGORITHMS)
    known = [path for key, usual in KNOWN_HOSTS.items() for path in _paths(next(iter(said.all(key)), usual))]
    return SshSettings(
        address=address,
        port=port,
        user=user,
        key_files=keys,
        use_agent=said.one("identitiesonly") != "yes",
        known_hosts=tuple(known) or (Path(os.devnull),),
        proxy_command=_written_out(said.one("proxycommand") or "", words) or None,
        proxy_jump=_written_out(said.one("proxyjump") or "", words) or None,
        key_alias=alias,
        key_algorithms=key_algorithms,
        keeps_order=key_algorithms != tuple(each for each in HOST_KEY_ALGORITHMS if each in key_algorithms),
        authority_algorithms=_ours(said.one("casignaturealgorithms"), ALGORITHMS),
        least_rsa_bits=int(said.one("requiredrsasize") or MIN_RSA_BITS),
        known_hosts_command=_command(said.one("knownhostscommand"), words),
        certificate_files=_files(said.all("certificatefile"), words),
        revoked=_paths(_written_out(said.one("revokedhostkeys") or "none", words)),
        checks_address=said.one("checkhostip") == "yes",
        is_configured=said.is_known,
    )


def check_login(host: str, address: str, user: str | None) -> None:
    """Raise HolmesError if `ssh` would not accept the address or the user of `host`."""
    try:
        checked_ssh_host(address)
        checked_ssh_user(user or "")
    except ValueError as error:
        hint = "correct it in hosts.yaml or the SSH configuration; `ssh` does not take it either"
        raise HolmesError(f"host {host[:MAX_SHOWN]}: {error}", hint) from None


@functools.cache
def _me() -> pwd.struct_passwd:
    """Return this user's entry. A container with a number for a user may have none."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        raise HolmesError(f"no user has the uid {os.getuid()}", "SSH needs one: add it to /etc/passwd") from None


def _written_out(text: str, words: dict[str, str]) -> str:
    """Expand ssh's `%` words; unknown ones stay as they are."""
    return re.sub("%.", lambda match: words.get(match.group(), match.group()), text)


def _files(names: Sequence[str], words: dict[str, str]) -> tuple[str, ...]:
    """Return files of the user, with ssh's words and `${VARIABLE}` expanded."""
    texts = (_written_out(name, words) for name in names if name.lower() != "none")
    return tuple(_at_home(re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text)) for text in texts)


def _at_home(path: str) -> str:
    """Expand `~` as ssh does, which asks the user database and not HOME."""
    return f"{_me().pw_dir}/{path[2:]}" if path.startswith("~/") else str(Path(path).expanduser())


def _paths(value: str) -> tuple[Path, ...]:
    """Return the files of a list. ssh prints no quotes, so words that together name a file are one name."""
    words, found = value.split(" "), []
    while words:
        joined = (" ".join(words[:count]) for count in range(len(words), 1, -1))
        name = next((each for each in joined if os.path.exists(_at_home(each))), words[0])  # noqa: PTH110  # never raises
        found.append(name)
        words = words[name.count(" ") + 1 :]
    return tuple(Path(_at_home(each)) for each in found if each.lower() != "none")


def _command(value: str | None, words: dict[str, str]) -> tuple[str, ...]:
    """Return the words of a command. Words about a key have no value, as the command runs before a key is offered."""
    if value is None:
        return ()
    words = {**words, "%I": "HOSTNAME", "%K": "NONE", "%f": "NONE", "%t": "NONE"}
    try:
        return tuple(_written_out(each, words) for each in shlex.split(value))
    except ValueError as error:
        raise not_read(f"KnownHostsCommand {value[:MAX_SHOWN]}", error) from None


def _ours(algorithms: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return ssh's algorithms that `usual` contains, in ssh's order."""
    return usual if algorithms is None else tuple(each for each in algorithms.split(",") if each in usual)


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
