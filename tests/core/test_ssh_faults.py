"""What is said of a login that failed: the kind of error, what happened, and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from holmes_core.errors import HolmesError, HostError, HostErrorKind
from holmes_core.remote.ssh_faults import explain_login, explain_session
from holmes_core.remote.ssh_settings import SshSettings

SETTINGS = SshSettings("10.0.0.1", 2222, "bob", ("/id",), False, (Path("/known"),), None, None)


def explained(error: Exception) -> HostError:
    found = explain_login("a1", SETTINGS, error)
    assert isinstance(found, HostError)
    return found


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (paramiko.PasswordRequiredException(), "refused login", "has a passphrase"),
        (paramiko.BadAuthenticationType("bad", ["password"]), "refused login", "tried /id"),
        (paramiko.SSHException("No authentication methods available"), "refused login", "tried /id"),
        (paramiko.SSHException("Error reading SSH protocol banner"), "unreachable", "protocol banner"),
        (NoValidConnectionsError({("10.0.0.1", 2222): OSError(111, "Connection refused")}), "unreachable", "refused"),
        (TimeoutError(), "unreachable", "cannot connect to bob@10.0.0.1:2222: timed out"),
        (EOFError(), "unreachable", "EOFError"),
    ],
)
def test_every_exception_has_its_kind_and_words(error: Exception, kind: HostErrorKind, words: str) -> None:
    found = explained(error)
    assert found.kind == kind
    assert words in found.evidence


def test_error_that_was_explained_already_stays_as_it_is() -> None:
    error = HolmesError("no such file", "name another")
    assert explain_login("a1", SETTINGS, error) is error


def test_a_command_to_copy_is_quoted() -> None:
    error = explain_login("a1", replace(SETTINGS, user="root;id"), TimeoutError())
    assert "`ssh -p 2222 'root;id@10.0.0.1'`" in error.hint


def test_session_beyond_the_servers_limit_is_named_as_such() -> None:
    error = explain_session("a1", paramiko.ChannelException(2, "Connect failed"))
    assert (error.host, error.kind) == ("a1", "refused session")
    assert "`MaxSessions` is too low" in error.evidence
    assert "Connect failed" not in error.evidence


@pytest.mark.parametrize("error", [EOFError(), paramiko.SSHException("gone"), paramiko.ChannelException(1, "no")])
def test_session_refused_for_another_reason_is_not_called_a_limit(error: Exception) -> None:
    assert "MaxSessions" not in explain_session("a1", error).evidence
