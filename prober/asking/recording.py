"""Raw outputs of hosts as files, from which all facts are read.

A recording is `DIR/<host>/recording.json`, a list of {file, command, exit_code}, and the files. `host.json` keeps facts
of the controller's side, `DIR/trunks.json` the trunks that hosts.yaml states, and `DIR/security.json` the encryption
that it requires between clusters. A recording made by hand has only the first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import GpuIndices, RailPatterns, StatedTrunk
from holmes_core.records.access import Access
from holmes_core.records.inventory import Finding, Hints
from holmes_core.records.link import IN_THE_CLEAR, Security
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import read_plain
from holmes_core.records.record import Record
from holmes_core.records.record_file import write_atomically
from holmes_core.records.regular_file import MIB, is_there, read_regular
from prober.asking.command_words import PROMPT, command_words
from prober.asking.parallel_shell_output import labels, lines_of, without_labels
from prober.asking.plain_text import plain_text

LINK_LAYER_ENDS = ("InfiniBand", "Ethernet", "Unspecified", "Unknown")  # the last word that RDMA tools print for a port
MAX_OUTPUT_BYTES = 16 * MIB  # of one command; a link trial of 4,096 lines is 1
TOOL_MISSING = 127
TIMED_OUT = 124
CUT_OFF = -1  # the answer ended before the command did
_TYPED = re.compile(rf"^(?:{PROMPT})[ \t]*[#$] +(\S.*)\n", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Recorded:
    """The output of a command, including standard error, and its exit code, or None if that is not known."""

    command: str
    text: str
    exit_code: int | None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the line's first command from the tool's name on, see `command_words`."""
        return command_words(self.command).words

    @property
    def call(self) -> str:
        """The words as one line without quotes: `mlxlink -d mlx5_0`."""
        return " ".join(self.words)

    @cached_property
    def tool(self) -> str:
        """The tool's name: `ibstat` for `sudo /usr/sbin/ibstat mlx5_7 | head`."""
        return self.words[0]

    @property
    def asks_python(self) -> bool:
        """True for a question to a Python interpreter of any name."""
        return " -c " in self.command and (self.tool.startswith("python") or "import " in self.command)

    @property
    def filtered(self) -> bool:
        """True if the output went through a pipe, which may have removed lines."""
        return "|" in self.command

    @property
    def columns_cut(self) -> bool:
        """True if the output went through a tool that may remove words from a line."""
        return bool(re.search(r"\|\s*(?:sudo\s+)?(?:awk|cut|sed|tr|perl|python3?|jq|grep\s+-\w*o)\b", self.command))

    @property
    def tool_missing(self) -> bool:
        """True if the shell did not find the tool."""
        return self.exit_code == TOOL_MISSING

    @cached_property
    def plain(self) -> str:
        """The text as the tool printed it, see `plain_text`. Empty if it mixes lines of several hosts."""
        labelled = command_words(self.command).labelled
        return plain_text(without_labels(self.text) if labelled else self.text, self.tool)

    @property
    def hosts_mixed(self) -> tuple[str, ...]:
        """The hosts whose lines a parallel shell has mixed in the text."""
        found = labels(self.text) if command_words(self.command).labelled else ()
        return found if len(found) > 1 else ()

    def of_host(self, name: str) -> Recorded:
        """Return the output with only the lines of that host, if a parallel shell asked several."""
        short = name.partition(".")[0]
        label = next((label for label in self.hosts_mixed if label.partition(".")[0] == short), None)
        return self if label is None else replace(self, text=lines_of(self.text, label))

    @property
    def lines(self) -> list[str]:
        """Lines of the plain text."""
        return self.plain.split("\n")

    @property
    def whole_lines(self) -> list[str]:
        """Lines that end in a newline. One that does not may be cut inside a number or a name."""
        return self.plain.split("\n")[:-1]

    def lines_ending(self, *ends: str) -> list[str]:
        """Return the lines that end in a newline, and the last one if one of `ends` shows that it is whole."""
        *whole, last = self.plain.split("\n")
        return [*whole, last] if last.endswith(ends) else whole

    def typed_commands(self) -> tuple[Recorded, ...]:
        """Return the outputs of all commands in a pasted terminal session. Only the first has the exit code.

        The output is not cut if no prompt in it shows another tool.
        """
        before, *parts = _TYPED.split(self.text.replace("\r\n", "\n"))
        typed = [Recorded(command, text, None) for command, text in zip(parts[::2], parts[1::2], strict=True)]
        if all(each.tool == self.tool for each in typed):
            return (self,)
        first = replace(self, text=before) if before.strip() else replace(typed.pop(0), exit_code=self.exit_code)
        return (first, *typed)


class HostNotes(Record):
    """Notes of the controller on a host: access to it, its entry in hosts.yaml and the skew of its clock.

    `position` is the host's number in hosts.yaml. `failure` is the finding on a host that could not be reached.
    `slurm_job` is the job watched there, and `started` the mark of the command that was started to be watched.
    """

    position: int | None = None
    access: Access = Access()
    cluster: str | None = None
    speeds_gbps: dict[str, float] = {}
    rails: RailPatterns | None = None
    gpus: GpuIndices | None = None
    hints: Hints = Hints()
    clock_skew_s: float | None = None
    round_trip_s: float | None = None
    failure: Finding | None = None
    slurm_job: str | None = None
    started: str | None = None


class TrunkNotes(Record):
    """The trunks between clusters that hosts.yaml states."""

    trunks: tuple[StatedTrunk, ...]


@dataclass(frozen=True)
class HostRecording:
    """One host of a recording."""

    outputs: tuple[Recorded, ...]
    notes: HostNotes = field(default_factory=HostNotes)


def write_recording(folder: Path, host: str, outputs: Sequence[Recorded], notes: HostNotes | None = None) -> None:
    """Write `folder/<host>/`.

    Raises:
        HolmesError: It cannot be written.
    """
    host_folder = folder / host
    _make_folder(host_folder)
    entries = []
    for number, output in enumerate(outputs):
        file = f"{number:02d}-{_file_name(output)}.txt"
        write_atomically(host_folder / file, output.text)
        entries.append({"file": file, "command": output.command, "exit_code": output.exit_code})
    write_atomically(host_folder / "recording.json", json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    if notes is not None:
        write_atomically(host_folder / "host.json", json.dumps(notes.model_dump(mode="json"), indent=1) + "\n")


def write_site(folder: Path, trunks: Sequence[StatedTrunk], security: Security) -> None:
    """Write `folder/trunks.json` if any trunks are stated, and `folder/security.json` if encryption is required."""
    if trunks:
        notes = TrunkNotes(trunks=tuple(trunks)).model_dump(mode="json")
        write_atomically(folder / "trunks.json", json.dumps(notes, indent=1) + "\n")
    if security != IN_THE_CLEAR:
        write_atomically(folder / "security.json", json.dumps(security.model_dump(mode="json"), indent=1) + "\n")


def read_site(folder: Path) -> tuple[tuple[StatedTrunk, ...], Security]:
    """Return the trunks and the security that hosts.yaml stated for the recording in `folder`."""
    trunks, security = folder / "trunks.json", folder / "security.json"
    return (
        parse(TrunkNotes, read_plain(trunks, inside=folder), str(trunks)).trunks if is_there(trunks) else (),
        parse(Security, read_plain(security, inside=folder), str(security)) if is_there(security) else IN_THE_CLEAR,
    )


def make_recording_folder(folder: Path) -> None:
    """Make the folder of a recording before any host is asked.

    Raises:
        HolmesError: The folder cannot be made, or holds a recording.
    """
    refuse_used_folder(folder)
    _make_folder(folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{folder}: cannot be made: {error.strerror or error}"
        raise HolmesError(what, "choose a folder that exists and is writable") from error


def refuse_used_folder(folder: Path) -> None:
    """Raise HolmesError if `folder` already holds a recording, which would be mixed with the new one."""
    used = next(folder.glob("*/recording.json"), None)
    if used is not None:
        raise HolmesError(
            f"{folder}: holds a recording of {used.parent.name}", "choose a new folder, or remove this one"
        )


def _file_name(output: Recorded) -> str:
    words = [re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_.") for word in output.words[:3]]
    return "_".join(word for word in words if word)[:60] or "output"


def read_recorded_hosts(folder: Path) -> dict[str, HostRecording]:
    """Return every host in `folder` in the order of asking, else by name.

    Raises:
        HolmesError: A file or key cannot be read. The message names it.
    """
    try:
        if not folder.is_dir():
            raise HolmesError(f"{folder}: no such folder", "name the folder that `holmes probe --record` wrote")
        folders = sorted((file.parent for file in folder.glob("*/recording.json")), key=lambda each: each.name)
    except OSError as error:
        raise HolmesError(f"{folder}: cannot be read: {error.strerror}", "check its permissions") from None
    if not folders:
        hint = "name a folder of `holmes probe --record`, or one with HOST.txt of `holmes probe --script` for each host"
        raise HolmesError(f"{folder}: no recording in it", hint)
    recorded = {host_name(each): _read_recording(each) for each in folders}
    positions = {name: recording.notes.position for name, recording in recorded.items()}
    # Hosts without a position come last, in order of name.
    order = sorted(recorded, key=lambda name: (positions[name] is None, positions[name] or 0))
    return {name: recorded[name] for name in order}


def host_name(path: Path) -> str:
    """Return the last part of a host's path.

    Raises:
        HolmesError: It is not UTF-8.
    """
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise HolmesError(
            f"{path.parent}: the name {os.fsencode(path.name)!r} is not UTF-8", "rename it to the name of the host"
        ) from None
    return path.name


def _read_recording(host_folder: Path) -> HostRecording:
    """Read a host. A recording made by hand may hold terminal sessions and the output of a parallel shell."""
    outputs, notes = _read_outputs(host_folder), _read_notes(host_folder)
    if notes is not None:
        return HostRecording(outputs, notes)
    own = (output.of_host(host_folder.name) for output in outputs)
    return HostRecording(tuple(part for output in own for part in output.typed_commands()))


def _read_outputs(host_folder: Path) -> tuple[Recorded, ...]:
    file = host_folder / "recording.json"
    entries = read_plain(file, inside=host_folder.parent)
    if not isinstance(entries, list):
        raise _malformed(file, "(whole file)", entries, "a list of {file, command, exit_code}")
    return tuple(_read_output(file, number, entry) for number, entry in enumerate(entries))


def _read_output(file: Path, number: int, entry: object) -> Recorded:
    """Read one output that `file` lists. It must be inside the recording's folder."""
    if not isinstance(entry, Mapping):
        raise _malformed(file, str(number), entry, "{file, command, exit_code}")
    unknown = sorted(set(entry) - {"file", "command", "exit_code", "note", "complete"})
    if unknown and not {"file", "command"} <= set(entry):
        raise _malformed(file, f"{number}.{unknown[0]}", entry[unknown[0]], "one of file, command, exit_code")
    name, command, exit_code = (entry.get(key) for key in ("file", "command", "exit_code"))
    if not isinstance(command, str) or not command.strip():
        raise _malformed(file, f"{number}.command", command, "the command as it was run")
    if not (exit_code is None or (isinstance(exit_code, int) and not isinstance(exit_code, bool))):
        raise _malformed(file, f"{number}.exit_code", exit_code, "a whole number or null")
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise _malformed(file, f"{number}.file", name, "a file beside recording.json")
    try:
        text = read_regular(file.parent / name, MAX_OUTPUT_BYTES, file.parent.parent).decode("utf-8", errors="replace")
    except OSError as error:
        raise _malformed(file, f"{number}.file", name, f"a readable file of the recording ({error.strerror})") from None
    return Recorded(command, text, exit_code)


def _read_notes(host_folder: Path) -> HostNotes | None:
    """Return the notes that `holmes probe --record` made, or None if there are none."""
    file = host_folder / "host.json"
    return parse(HostNotes, read_plain(file, inside=host_folder.parent), str(file)) if is_there(file) else None


def _malformed(file: Path, key: str, value: object, wanted: str) -> HolmesError:
    return HolmesError(f"{file}: {key}: {str(value)[:60]!r} is not {wanted}", "correct recording.json, or record again")
