"""Hosts that cannot be asked: the rule of each kind of error."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.errors import HostErrorKind

RULE_OF_ERROR: Mapping[HostErrorKind, str] = {
    "unreachable": "HOST-UNREACHABLE",
    "key unknown": "SSH-HOSTKEY-UNKNOWN",
    "key changed": "SSH-HOSTKEY-CHANGED",
    "refused login": "SSH-AUTH",
    "refused session": "PROBE-TOOL-FAILED",
    "timed out": "PROBE-TRUNCATED",
}
"""Nothing is written on a host that is probed, so that there is no rule for "files"."""
