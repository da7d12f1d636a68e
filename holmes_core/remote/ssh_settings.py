"""Where and as whom to log in to a host: hosts.yaml first, then the SSH configuration, then ssh's own defaults."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import paramiko

from holmes_core.errors import HolmesError
from holmes_core.records.access import Access

SSH_PORT = 22
LEAST_RSA_BITS = 1024
ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""Those of ssh's own that paramiko has, in ssh's order: no SHA-1, no keys on hardware tokens."""
CERTIFICATE = "-cert-v01@openssh.com"
CERTIFIED = tuple(name + CERTIFICATE for name in ALGORITHMS)


@dataclass(frozen=True)
class SshSettings:
    """What ssh needs to log in to one host."""

    address: str
    port: int
    user: str
    key_files: tuple[str, ...]
    use_agent: bool
    known_hosts: tuple[Path, ...]
    """Files of known host keys; a new key goes to the first."""
    proxy_command: str | None
    proxy_jump: str | None
    """Hosts to pass before this one, `user@first:2222,second`."""
    key_alias: str | None = None
    """HostKeyAlias: the name in known-hosts files where that is not the address."""
    revoked: tuple[Path, ...] = ()
    """RevokedHostKeys: files of keys that no host is believed by."""
    key_algorithms: tuple[str, ...] = (*CERTIFIED, *ALGORITHMS)
    """HostKeyAlgorithms, those preferred first."""
    keeps_order: bool = False
    """Whether HostKeyAlgorithms says in which order; else those by which the host is known come first."""
    authority_algorithms: tuple[str, ...] = ALGORITHMS
    """CASignatureAlgorithms: how the authority of a host's certificate may have signed it."""
    least_rsa_bits: int = LEAST_RSA_BITS
    """RequiredRSASize."""

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
        """The name by which paramiko looks for the host's key."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"


def ssh_settings(host: str, access: Access) -> SshSettings:
    """The settings of `host`. Raises HolmesError naming the SSH configuration that cannot be read."""
    found = _configuration(access).lookup(access.address or host)
    keys = [access.identity_file] if access.identity_file else found.get("identityfile", [])
    known = found.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    known += found.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2").split()
    algorithms = found.get("hostkeyalgorithms", "+")
    return SshSettings(
        address=found["hostname"],
        port=access.port or int(found.get("port", SSH_PORT)),
        user=access.user or found.get("user") or getpass.getuser(),
        key_files=tuple(str(Path(key).expanduser()) for key in keys),
        use_agent=found.get("identitiesonly", "no") != "yes",
        known_hosts=tuple(Path(name).expanduser() for name in known),
        proxy_command=_unless_none(found.get("proxycommand")),
        proxy_jump=_unless_none(found.get("proxyjump")),
        key_alias=found.get("hostkeyalias"),
        key_algorithms=_assembled(algorithms, (*CERTIFIED, *ALGORITHMS)),
        keeps_order=algorithms[:1] not in ("+", "-"),
        authority_algorithms=_assembled(found.get("casignaturealgorithms", "+"), ALGORITHMS),
        least_rsa_bits=int(found.get("requiredrsasize", LEAST_RSA_BITS)),
        revoked=tuple(Path(name).expanduser() for name in (_unless_none(found.get("revokedhostkeys")) or "").split()),
    )


def _configuration(access: Access) -> paramiko.SSHConfig:
    """The user's SSH configuration, or the one hosts.yaml names; empty where there is none."""
    file = Path(access.ssh_config or "~/.ssh/config").expanduser()
    if not file.exists():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(file))
    except (paramiko.ConfigParseError, OSError, UnicodeDecodeError) as error:
        hint = "correct it; `ssh -G HOST` checks it"
        raise HolmesError(f"{file}: not an SSH configuration: {error}", hint) from None


def _assembled(words: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The algorithms that a list of ssh's chooses of the `usual` ones: `+` adds, `-` takes away, `^` puts first."""
    patterns = words.lstrip("+-^").split(",")
    named = tuple(dict.fromkeys(each for pattern in patterns for each in usual if fnmatchcase(each, pattern)))
    if words.startswith("+"):
        return usual
    if words.startswith("-"):
        return tuple(each for each in usual if each not in named)
    return tuple(dict.fromkeys((*named, *usual))) if words.startswith("^") else named


def _unless_none(word: str | None) -> str | None:
    """ssh takes the word `none` for no proxy, and for no file."""
    return None if word == "none" else word


def last_jump(settings: SshSettings, access: Access) -> tuple[str, Access, str]:
    """The last host of the ProxyJump list, how to log in to it, and the list of those before it."""
    before, _, last = (settings.proxy_jump or "").rpartition(",")
    user, _, address = last.strip().removeprefix("ssh://").rpartition("@")
    name, port = name_and_port(address)
    return name, Access(address=name, user=user or None, port=port, ssh_config=access.ssh_config), before.strip()


def name_and_port(address: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `[2001:db8::1]:port` and `2001:db8::1`."""
    match = re.fullmatch(r"\[?((?<=\[)[^\]]+|[^:\]]+)\]?:(\d+)", address)
    return (match.group(1), int(match.group(2))) if match else (address.strip("[]"), None)
