"""Hosts that cannot be asked: the rule of each kind of error."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.errors import HostErrorKind
from prober.rules.rule import About

_LEFT_OUT = "nothing is known of this host; the plan leaves it out"

UNREACHABLE = About(
    "HOST-UNREACHABLE",
    "F",
    "no connection to the host's SSH port was made",
    _LEFT_OUT,
    "ping it, see that sshd listens there, and that address, port and jump hosts are right",
    "ssh(1), ssh_config(5)",
)
KEY_UNKNOWN = About(
    "SSH-HOSTKEY-UNKNOWN",
    "F",
    "the host's key is in no known_hosts file",
    _LEFT_OUT,
    "`holmes trust hosts.yaml` shows the keys and adds them when told to",
    "sshd(8), SSH_KNOWN_HOSTS FILE FORMAT",
)
KEY_CHANGED = About(
    "SSH-HOSTKEY-CHANGED",
    "F",
    "the host's key is another than known_hosts has",
    f"somebody may be between; {_LEFT_OUT}",
    "ask who reinstalled the host; then `ssh-keygen -R HOST`, and trust the new key",
    "ssh-keygen(1), ssh(1) (verifying host keys)",
)
NO_LOGIN = About(
    "SSH-AUTH",
    "F",
    "the host does not take this user's key",
    _LEFT_OUT,
    "`ssh-copy-id` the key there, load it into an agent, or name `user:` and `identity_file:` in hosts.yaml",
    "ssh(1), ssh-copy-id(1), sshd_config(5)",
)

RULE_OF_ERROR: Mapping[HostErrorKind, str] = {
    "unreachable": UNREACHABLE.id,
    "key unknown": KEY_UNKNOWN.id,
    "key changed": KEY_CHANGED.id,
    "refused login": NO_LOGIN.id,
    "refused session": "PROBE-TOOL-FAILED",
    "timed out": "PROBE-TRUNCATED",
}
"""Nothing is written on a host that is probed, so that there is no rule for "files"."""

ABOUT = (UNREACHABLE, KEY_UNKNOWN, KEY_CHANGED, NO_LOGIN)
