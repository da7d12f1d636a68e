"""A recording to share: names and addresses are replaced, and facts about the machines are kept."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holmes_core.hosts.hosts_file import StatedTrunk
from holmes_core.records.access import Access
from holmes_core.records.link import Security
from prober.asking.anonymous_text import AnonymousText
from prober.asking.answers import read_hosts
from prober.asking.command_words import command_words
from prober.asking.parallel_shell_output import labels
from prober.asking.recording import (
    HostNotes,
    HostRecording,
    Recorded,
    read_site,
    refuse_used_folder,
    write_recording,
    write_site,
)
from prober.facts.machine.confinement import VARIABLES
from prober.findings.tool_findings import READ_TOOLS

KEY_BYTES = 32
_NAMING_TOOLS = ("uname", "hostname", "getent")
_FILE_TOOLS = ("cat", "head", "tail", "grep", "find")


def anonymize(folder: Path, to: Path) -> None:
    """Write the recording or the answers in `folder` to `to`, under a new key that is discarded.

    Raises:
        HolmesError: A file cannot be read or written, or `to` holds a recording.
    """
    refuse_used_folder(to)
    recorded, (trunks, security) = read_hosts(folder), read_site(folder)
    anonymous = AnonymousText(secrets.token_bytes(KEY_BYTES))
    for name, recording in anonymous_hosts(recorded, anonymous).items():
        write_recording(to, name, recording.outputs, recording.notes)
    pins = {recording.notes.cluster for recording in recorded.values()}
    write_site(to, [_trunk(anonymous, each, pins) for each in trunks], _security(anonymous, security))


def anonymous_hosts(recorded: Mapping[str, HostRecording], anonymous: AnonymousText) -> dict[str, HostRecording]:
    """Return the hosts in their order under other names. `anonymous` learns from all of them first."""
    for name in recorded:
        anonymous.name(name, "host")
    for name, recording in recorded.items():
        _learn(anonymous, name, recording)
    found = {}
    for position, (name, recording) in enumerate(recorded.items()):
        notes = _notes(anonymous, recording.notes).model_copy(update={"position": position})
        outputs = tuple(_output(anonymous, output) for output in recording.outputs)
        found[anonymous.name(name, "host")] = HostRecording(outputs, notes)
    return found


def _learn(anonymous: AnonymousText, name: str, recording: HostRecording) -> None:
    access = recording.notes.access
    for own_name in (*filter(None, [access.address]), *_own_names(recording.outputs)):
        if own_name.partition(".")[0] == name.partition(".")[0]:
            anonymous.alias(own_name, name)
        else:
            anonymous.name(own_name, "host")
    if access.user:
        anonymous.name(access.user, "user")
    for output in recording.outputs:
        anonymous.learn(output.command)
        anonymous.learn(output.text)


def _own_names(outputs: Iterable[Recorded]) -> Iterable[str]:
    """Yield the host's own names and the labels of a parallel shell."""
    for output in outputs:
        words = output.plain.split()
        if command_words(output.command).labelled:
            yield from labels(output.text)
        if output.tool == "uname" and words[:1] == ["Linux"]:
            yield from words[1:2]
        elif output.call in ("uname -n", "hostname", "hostname -f", "hostname -s"):
            yield from words[:1]
        elif output.tool == "getent":
            yield from (word for word in words if word[:1].isalpha() and word not in ("STREAM", "DGRAM", "RAW"))


def _output(anonymous: AnonymousText, output: Recorded) -> Recorded:
    """Return the output without names, and without lines that Holmes does not read."""
    if output.asks_python:
        command = "python3 -c 'import torch'"
    elif output.tool not in READ_TOOLS:
        return Recorded(anonymous.text(output.tool), "", output.exit_code)
    else:
        command = anonymous.text(_without_prefixes(output))
    text = output.text
    if output.tool in _FILE_TOOLS and not _asks_the_kernel(output):
        text = "".join(line for line in text.splitlines(keepends=True) if line.startswith(("/sys/", "/proc/")))
    elif output.tool in ("env", "printenv", "export"):
        text = "".join(line for line in text.splitlines(keepends=True) if _is_read(line))
    elif output.tool in _NAMING_TOOLS:
        command, text = anonymous.names_alone(command), anonymous.names_alone(text)
    return Recorded(command, anonymous.text(text), output.exit_code)


def _without_prefixes(output: Recorded) -> str:
    """Return the command without a prompt and without words before the tool, which name hosts, users and containers."""
    if output.command.startswith(output.tool):
        return output.command
    labels_stay = "pdsh -w hosts " if command_words(output.command).labelled else ""
    _, pipe, rest = output.command.partition("|")
    after = f" {pipe}{rest.rstrip(chr(39) + chr(34))}" if pipe else ""
    return f"{labels_stay}{shlex.join(output.words)}{after}"


def _asks_the_kernel(output: Recorded) -> bool:
    """Return True if all files in the command are the kernel's, or settings and libraries of NCCL."""
    paths = [word for word in output.words if word.startswith("/")]
    return bool(paths) and all(re.match(r"/(?:sys|proc)/|.*(?:nccl\.conf|\.so[0-9.]*)$", path) for path in paths)


def _is_read(line: str) -> bool:
    name = line.partition("=")[0].strip().removeprefix("declare -x ")
    return name.startswith("NCCL_") or name in VARIABLES


def _notes(anonymous: AnonymousText, notes: HostNotes) -> HostNotes:
    """Return the notes without the access to the host, and with its pin and its labels under other names."""
    hints = notes.hints.model_copy(
        update={
            "network": tuple(anonymous.name(label, "switch") for label in notes.hints.network),
            "nvlink": notes.hints.nvlink and anonymous.name(notes.hints.nvlink, "domain"),
        }
    )
    failure = notes.failure and type(notes.failure)(**_texts(anonymous, notes.failure.model_dump()))
    return notes.model_copy(
        update={
            "access": Access(transport=notes.access.transport),
            "cluster": notes.cluster and anonymous.name(notes.cluster, "cluster"),
            "hints": hints,
            "failure": failure,
        }
    )


def _texts(anonymous: AnonymousText, values: Mapping[str, Any]) -> dict[str, Any]:
    changed = {key: anonymous.text(value) for key, value in values.items() if key in ("evidence", "remedy")}
    return {**values, **changed, "hosts": tuple(anonymous.name(name, "host") for name in values["hosts"])}


def _security(anonymous: AnonymousText, security: Security) -> Security:
    """Return the settings with the hub under its other name and address."""
    hub, address = security.tunnel_hub, security.tunnel_hub_address
    update = {
        "tunnel_hub": hub and anonymous.name(hub, "host"),
        "tunnel_hub_address": address and anonymous.text(address),
    }
    return security.model_copy(update=update)


def _trunk(anonymous: AnonymousText, trunk: StatedTrunk, pins: set[str | None]) -> StatedTrunk:
    def renamed(cluster: str) -> str:
        return anonymous.name(cluster, "cluster") if cluster in pins else cluster

    between = trunk.between and (renamed(trunk.between[0]), renamed(trunk.between[1]))
    return trunk.model_copy(update={"between": between, "cluster": trunk.cluster and renamed(trunk.cluster)})
