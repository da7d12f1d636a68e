"""Why a login failed: paramiko's exceptions as errors that say what to do."""

from __future__ import annotations

from dataclasses import dataclass

import paramiko

from holmes_core.errors import HolmesError, HostError, HostErrorKind
from holmes_core.remote.known_hosts import certified_by, fingerprint
from holmes_core.remote.ssh_settings import SshSettings


class UnknownHostKey(Exception):
    """The host offers a key of a type that no known-hosts file has for it."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__(fingerprint(key))


class RevokedHostKey(UnknownHostKey):
    """The host offers a key that a known-hosts file says is not to be believed any more."""


@dataclass(frozen=True)
class _Explanation:
    """What to say of an exception. `what` and `hint` have holes for the names in `_words`."""

    exception: type[Exception]
    kind: HostErrorKind
    what: str
    hint: str


_REFUSED = _Explanation(
    paramiko.AuthenticationException,
    "refused login",
    "{target} refused the login ({error}); tried {keys}",
    "put your public key into the host's authorized_keys, or name the right `user` and `identity_file`",
)
_EXPLANATIONS = (  # the first that fits counts, so a class comes before its base classes
    _Explanation(
        RevokedHostKey,
        "key changed",
        "host key of {target} is revoked, by a known-hosts file or RevokedHostKeys: {error}",
        "do not log in to it: who holds that key can stand for the host; ask who revoked it",
    ),
    _Explanation(
        UnknownHostKey,
        "key unknown",
        "host key of {target} is not known: {error}{certified}",
        "compare this fingerprint with the host's own; then `holmes trust {host}`, or your hosts.yaml, adds it",
    ),
    _Explanation(
        paramiko.BadHostKeyException,
        "key changed",
        "host key of {target} differs from the one in {known_hosts}",
        "find out why; if the host was reinstalled: `{forget}`, then `holmes trust {host}`, or your hosts.yaml, shows "
        "the new key to compare",
    ),
    _Explanation(
        paramiko.PasswordRequiredException,
        "refused login",
        "the key for {target} has a passphrase",
        "load it into ssh-agent: `ssh-add`",
    ),
    _REFUSED,
    _Explanation(
        Exception,
        "unreachable",
        "cannot connect to {target}: {reason}",
        "check that the host is up and its sshd runs: `ssh -p {port} {user}@{address}`; "
        "or take the host out of hosts.yaml",
    ),
)


def explain_login(host: str, settings: SshSettings, error: Exception) -> HolmesError:
    """What went wrong at logging in to `host`, in words that say what to do."""
    if isinstance(error, HolmesError):
        return error
    explanation = _explanation(error)
    words = _words(host, settings, error)
    return HostError(host, explanation.kind, explanation.what.format(**words), explanation.hint.format(**words))


def _explanation(error: Exception) -> _Explanation:
    """paramiko raises a plain SSHException when it has no usable key at all."""
    if type(error) is paramiko.SSHException and "uthentication" in str(error):
        return _REFUSED
    return next(each for each in _EXPLANATIONS if isinstance(error, each.exception))


def _words(host: str, settings: SshSettings, error: Exception) -> dict[str, object]:
    known_hosts = settings.known_hosts[0]
    return {
        "host": host,
        "target": settings.target,
        "user": settings.user,
        "address": settings.address,
        "port": settings.port,
        "keys": ", ".join(settings.key_files) or "the agent's and the default keys",
        "known_hosts": known_hosts,
        "certified": _certified(host, settings) if isinstance(error, UnknownHostKey) else "",
        "forget": forget_command(settings),
        "error": error,
        "reason": _reason(error),
    }


def _certified(host: str, settings: SshSettings) -> str:
    """What to say where ssh would have looked at the host's certificate, which paramiko does not read."""
    file = certified_by(host, settings)
    if file is None:
        return ""
    return f"; {file} has a @cert-authority for it, and certificates of hosts are not read here: the key itself counts"


def forget_command(settings: SshSettings) -> str:
    """The command that removes the host's known key."""
    return f"ssh-keygen -R '{settings.known_name}' -f {settings.known_hosts[0]}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return "; ".join(str(getattr(cause, "strerror", cause)).lower() for cause in error.errors.values())
    return str(error) or type(error).__name__
