"""Proof of a host's identity: the key or certificate it offers against known-hosts files, as ssh decides.

Always strict, whatever StrictHostKeyChecking says: an unknown key is refused. Source: OpenSSH's sshconnect.c.
"""

from __future__ import annotations

import shlex
import socket
import time
from dataclasses import dataclass
from ipaddress import ip_address

import paramiko

from holmes_core.errors import HostError
from holmes_core.remote.host_certificate import HostCertificate, read_certificate
from holmes_core.remote.known_hosts import (
    CERTIFICATE_AUTHORITY,
    REVOKED,
    KnownLine,
    fingerprint,
    known_lines,
    type_of,
)
from holmes_core.remote.revoked_keys import is_revoked
from holmes_core.remote.ssh_settings import CERTIFICATE, SshSettings


class UnknownHost(HostError):
    """No known-hosts entry of the host could prove or disprove its key."""


@dataclass(frozen=True)
class _Refusal:
    """The reason to refuse a host, with the hint for the user."""

    is_unknown: bool
    what: str
    hint: str


def reached_address(session: paramiko.Transport) -> str | None:
    """Return the address at the other end; None if a proxy resolves it."""
    return session.sock.getpeername()[0] if isinstance(session.sock, socket.socket) else None


def key_algorithms(host: str, settings: SshSettings) -> tuple[str, ...]:
    """Return the host key algorithms to ask for, those that can prove the host first.

    Raises:
        HostError: A known-hosts file cannot be read.
    """
    wanted = settings.key_algorithms
    lines = known_lines(host, settings, settings.known_name)
    known = {line.key_type for line in lines if line.marker is None}
    if settings.keeps_order or not wanted or _key_type(wanted[0]) in known:
        return wanted
    is_certified = any(line.marker == CERTIFICATE_AUTHORITY for line in lines)
    proving = [each for each in wanted if _key_type(each) in known or (is_certified and each.endswith(CERTIFICATE))]
    return tuple(dict.fromkeys((*proving, *wanted)))


def _key_type(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm.removesuffix(CERTIFICATE)


def check_host(host: str, settings: SshSettings, key: paramiko.PKey, address: str | None) -> None:
    """Check that known-hosts files prove `host` by the key it offers, or by its certificate.

    `address`: where it was reached, None through a proxy.

    Raises:
        UnknownHost: Nothing is known of the host.
        HostError: The host is not proven.
    """
    plain = key.asbytes()
    offered = plain if key.public_blob is None else key.public_blob.key_blob  # with its certificate if it has one
    if key.get_name() == "ssh-rsa" and key.get_bits() < settings.least_rsa_bits:
        text = f"host key of {settings.target} has {key.get_bits()} bits; RequiredRSASize is {settings.least_rsa_bits}"
        raise HostError(host, "key unknown", text, "make a longer key on the host: `ssh-keygen -A` after removing it")
    certificate = None
    if offered != plain:
        try:
            certificate = read_certificate(offered)
        except ValueError as error:
            text = f"the certificate that {settings.target} shows for its key cannot be read: {error}"
            hint = "have its certificate renewed; `ssh-keygen -L -f` on the host shows the one it has"
            raise HostError(host, "key unknown", text, hint) from None
        if certificate.key != plain:
            text = f"the certificate that {settings.target} shows is for another key than it uses"
            raise HostError(host, "key unknown", text, "do not log in to it; ask who runs it")
    refusal = _revoked_by_file(host, settings, offered, plain, certificate) or _Proof(host, settings, plain).refusal(
        settings.known_name, certificate
    )
    if refusal is None and certificate is None and settings.checks_address and address is not None:
        refusal = _other_at_address(host, settings, plain, address)
    if refusal is not None:
        if refusal.is_unknown:
            raise UnknownHost(host, "key unknown", refusal.what, refusal.hint)
        raise HostError(host, "key changed", refusal.what, refusal.hint)


def _revoked_by_file(
    host: str, settings: SshSettings, offered: bytes, plain: bytes, certificate: HostCertificate | None
) -> _Refusal | None:
    keys = (plain,) if certificate is None else (plain, certificate.authority)
    for file in settings.revoked:
        if is_revoked(host, file, offered, keys):
            return _revoked(settings, plain, f"{file}, RevokedHostKeys of the SSH configuration")
    return None


def _revoked(settings: SshSettings, key: bytes, where: str) -> _Refusal:
    return _Refusal(
        False,
        f"host key of {settings.target}, {fingerprint(key)}, is revoked by {where}",
        "do not log in to it: who holds that key can stand for the host; ask who revoked it",
    )


def _other_at_address(host: str, settings: SshSettings, key: bytes, address: str) -> _Refusal | None:
    """Return a refusal if other keys, and not the offered one, are known for the address that the name leads to."""
    if address == settings.address or ip_address(address.partition("%")[0]).is_loopback:
        return None
    names = [settings.with_port(address)]
    if settings.key_alias is None and not _plain_lines(host, settings, settings.known_name):
        names.append(address)  # the host itself is known whatever the port
    for name in names:
        known = _plain_lines(host, settings, name)
        if known and all(line.key != key for line in known):
            what = (
                f"host key of {settings.target} is {fingerprint(key)}; of {name}, to which it leads, "
                f"{fingerprint(known[0].key)} is known: {known[0]}, and CheckHostIP is yes"
            )
            hint = f"find out whether the name leads to the right host; if it does: {forget(name, known[0])}"
            return _Refusal(False, what, hint)
    return None


def _plain_lines(host: str, settings: SshSettings, name: str) -> list[KnownLine]:
    return [line for line in known_lines(host, settings, name) if line.marker is None]


class _Proof:
    """The check of one host's key against the known-hosts lines."""

    def __init__(self, host: str, settings: SshSettings, key: bytes) -> None:
        self._host = host
        self._settings = settings
        self._key = key
        self._aside = ""
        """The fault of the certificate, for the message of a final refusal."""

    def refusal(self, name: str, certificate: HostCertificate | None) -> _Refusal | None:
        """Return None if the host is proven. If the certificate does not prove it, the key itself may."""
        lines = known_lines(self._host, self._settings, name)
        keys = (self._key,) if certificate is None else (self._key, certificate.authority)
        revoking = next((line for line in lines if line.marker == REVOKED and line.key in keys), None)
        if revoking is not None:
            whose = "" if revoking.key == self._key else f", which names the authority {fingerprint(revoking.key)}"
            return _revoked(self._settings, self._key, f"{revoking}{whose}")
        if certificate is None:
            return self._without_certificate(name, lines)
        if self._is_certified(name, lines, certificate):
            return None
        return self.refusal(name, None)

    def _is_certified(self, name: str, lines: tuple[KnownLine, ...], certificate: HostCertificate) -> bool:
        settings = self._settings
        line = next(
            (each for each in lines if each.marker == CERTIFICATE_AUTHORITY and each.key == certificate.authority), None
        )
        if line is None:
            self._aside = (
                f"; its certificate is signed by {fingerprint(certificate.authority)}, no @cert-authority for it"
            )
            bare = self._name_without_port(name)
            return bare is not None and self.refusal(bare, certificate) is None
        fault = certificate.fault(
            settings.key_alias or settings.address.lower(), time.time(), settings.authority_algorithms
        )
        if fault is not None:
            self._aside = f"; its certificate, by the @cert-authority of {line}, {fault}"
        return fault is None

    def _without_certificate(self, name: str, lines: tuple[KnownLine, ...]) -> _Refusal | None:
        known = [line for line in lines if line.marker is None]
        if any(line.key == self._key for line in known):
            return None
        if known:
            return self._changed(known)
        bare = self._name_without_port(name)
        return self._unknown(lines) if bare is None else self.refusal(bare, None)

    def _name_without_port(self, name: str) -> str | None:
        """Return the bare address, to which ssh falls back for any port; None for itself and for HostKeyAlias."""
        return self._settings.address if name not in (self._settings.address, self._settings.key_alias) else None

    def _changed(self, known: list[KnownLine]) -> _Refusal:
        settings = self._settings
        line = next((line for line in known if line.key_type == type_of(self._key)), known[0])
        what = f"host key of {settings.target} is {fingerprint(self._key)}, known is {fingerprint(line.key)}: {line}"
        remove = forget(settings.known_name, line)
        hint = (
            f"find out why; if the host was reinstalled: {remove}, then `holmes trust {self._host}`, "
            "or your hosts.yaml, shows the new key to compare"
        )
        return _Refusal(False, what + self._aside, hint)

    def _unknown(self, lines: tuple[KnownLine, ...]) -> _Refusal:
        settings = self._settings
        what = f"host key of {settings.target} is not known: {fingerprint(self._key)}"
        where = f"; no line for {settings.known_name} in {', '.join(map(str, settings.known_hosts))}"
        authority = next((line for line in lines if line.marker == CERTIFICATE_AUTHORITY), None)
        if authority is not None and not self._aside:
            self._aside = f"; the host shows no certificate by the @cert-authority of {authority}"
        trust = f"`holmes trust {self._host}`, or your hosts.yaml, adds it"
        hint = f"compare this fingerprint with the host's own; then {trust}"
        if self._aside:
            hint = f"have a certificate made for the host by an authority you trust; or {hint}"
        return _Refusal(True, what + (self._aside or where), hint)


def forget(name: str, line: KnownLine) -> str:
    """Return the way to remove the known key of a name: a command, or the line if no command can."""
    if line.is_pattern or not line.file.is_file():
        return f"remove line {line.number} of {line.file}"
    return f"`ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(str(line.file))}`"
