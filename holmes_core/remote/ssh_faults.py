"""The causes of failed logins: paramiko's exceptions as errors with remedies."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import paramiko

from holmes_core.errors import HolmesError, HostError, HostErrorKind
from holmes_core.remote.ssh_settings import SshSettings


@dataclass(frozen=True)
class _Explanation:
    """The message for an exception. `what` and `hint` have holes for the names in `_words`."""

    exception: type[Exception]
    kind: HostErrorKind
    what: str
    hint: str


SESSION_REFUSED = 2
NOT_CONFIGURED = "; ~/.ssh/config was not read, as there is no `ssh` here"

_REFUSED = _Explanation(
    paramiko.AuthenticationException,
    "refused login",
    "{target} refused the login ({error}); tried {keys}",
    "put your public key into the host's authorized_keys, or name the right `user` and `identity_file`",
)
_EXPLANATIONS = (  # the first that fits counts, so a class comes before its base classes
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
        "check that the host is up and its sshd runs: `ssh -p {port} {login}`; or take the host out of hosts.yaml",
    ),
)


def explain_login(host: str, settings: SshSettings, error: Exception) -> HolmesError:
    """Return the error for a failed login to `host`, with a remedy."""
    if isinstance(error, HolmesError):
        return error
    explanation = _explanation(error)
    words = _words(settings, error)
    what = explanation.what.format(**words) + ("" if settings.is_configured else NOT_CONFIGURED)
    return HostError(host, explanation.kind, what, explanation.hint.format(**words))


def explain_session(host: str, error: Exception) -> HostError:
    """Return the error for an open connection that gives no further session, with a remedy.

    sshd answers "connect failed" (2) for a session beyond its limit. Source: OpenSSH, serverloop.c; RFC 4254, 5.1.
    """
    if isinstance(error, paramiko.ChannelException) and error.code == SESSION_REFUSED:
        text = "sshd opens no further session on this connection: its `MaxSessions` is too low"
        hint = "set `MaxSessions 10`, the default, or more in the host's sshd_config, and reload sshd"
        return HostError(host, "refused session", text, hint)
    text = f"the SSH session was refused: {error or 'connection lost'}"
    return HostError(host, "refused session", text, "look at the host's sshd log; try again")


def _explanation(error: Exception) -> _Explanation:
    """Return the first explanation that fits. paramiko raises a plain SSHException when it has no usable key at all."""
    if type(error) is paramiko.SSHException and "uthentication" in str(error):
        return _REFUSED
    return next(each for each in _EXPLANATIONS if isinstance(error, each.exception))


def _words(settings: SshSettings, error: Exception) -> dict[str, object]:
    return {
        "target": settings.target,
        "login": shlex.quote(f"{settings.user}@{settings.address}"),
        "port": settings.port,
        "keys": ", ".join(_shown_keys(settings)) or "the agent's and the default keys",
        "error": error,
        "reason": _reason(error),
    }


def _shown_keys(settings: SshSettings) -> tuple[str, ...]:
    """Return the key files that are there, or the only one: ssh has a list of usual names."""
    there = tuple(name for name in settings.key_files if Path(name).exists())
    return there or (settings.key_files if len(settings.key_files) == 1 else ())


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return "; ".join(str(getattr(cause, "strerror", cause)).lower() for cause in error.errors.values())
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
