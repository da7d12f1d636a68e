"""The keys by which a user logs in, in ssh's order: each with its certificates, then alone; then the agent's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.pkey import PublicBlob

from holmes_core.remote.ssh_settings import CERTIFICATE, SshSettings

_CLASSES = (paramiko.RSAKey, paramiko.ECDSAKey, paramiko.Ed25519Key)


class UserKeys:
    """A login that tries the user's keys one after the other, at a host that has been proven."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._fault: Exception | None = None
        """The last error with a key, for the message of a final refusal."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in, or raise the server's answer to the last key, or the reason why it was not tried."""
        for key in self._keys():
            try:
                more = transport.auth_publickey(self._settings.user, key)
            except (paramiko.SSHException, ValueError) as error:
                self._fault = error
                continue
            if not more:
                return
            self._fault = paramiko.AuthenticationException(f"the key is not enough, it also asks for {', '.join(more)}")
        raise self._fault or paramiko.SSHException("No authentication methods available")

    def _keys(self) -> Iterator[paramiko.PKey]:
        settings = self._settings
        files = [Path(name) for name in settings.key_files]
        for file in files:
            key = self._read_key(file)
            if key is not None:
                for certificate in _certificates(file, settings):
                    with contextlib.suppress(ValueError):  # it is for another type of key
                        key.load_certificate(str(certificate))
                        yield key
                key.public_blob = None
                yield key
        named = [_public_blob(path) for file in files for path in (Path(f"{file}.pub"), *_certificates(file, settings))]
        with contextlib.suppress(paramiko.SSHException), contextlib.closing(paramiko.Agent()) as agent:
            for held in agent.get_keys():
                if held.name.endswith(CERTIFICATE):
                    held.public_blob = PublicBlob(held.name, held.blob)  # type: ignore[assignment]
                if settings.use_agent or held.blob in named:
                    yield held

    def _read_key(self, file: Path) -> paramiko.PKey | None:
        """Read a private key; None if it cannot be read, since ssh skips such a key too."""
        if not file.is_file():
            return None
        for key_class in _CLASSES:
            try:
                return key_class.from_private_key_file(str(file))
            except paramiko.PasswordRequiredException as error:
                self._fault = error
                return None
            except (paramiko.SSHException, OSError, ValueError, IndexError):
                continue  # a key of another class
        self._fault = paramiko.AuthenticationException(f"{file} holds no private key that can be read here")
        return None


def _certificates(file: Path, settings: SshSettings) -> list[Path]:
    usual = Path(f"{file}-cert.pub")
    return [path for path in (*map(Path, settings.certificate_files), usual) if path.is_file()]


def _public_blob(file: Path) -> bytes | None:
    try:
        return PublicBlob.from_file(str(file)).key_blob
    except (OSError, ValueError):
        return None
