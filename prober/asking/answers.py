"""Answers to `holmes probe --script` as files from the user: one for each host, or one from a parallel shell."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.regular_file import read_regular
from holmes_core.remote.transport import MAX_ANSWER_BYTES
from prober.asking.commands import cut
from prober.asking.parallel_shell_output import by_host
from prober.asking.recording import HostRecording, host_name, read_recorded_hosts

TOKEN = "@@[0-9a-f]{16}"
_BEGIN = re.compile(rf"^({TOKEN}) begin ", re.MULTILINE)
_LABELLED = re.compile(rf"^[\w.-]+: {TOKEN} begin ", re.MULTILINE | re.ASCII)
_HEADED = re.compile(rf"^-{{8,}}\n\s*{TOKEN} begin ", re.MULTILINE)
_UNLABELLED = re.compile(r"^(?![\w.-]+:(?: |$)).*\n?", re.MULTILINE | re.ASCII)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # `>` of Windows PowerShell


def read_hosts(folder: Path) -> dict[str, HostRecording]:
    """Return every host of a recording, or of a folder with an answer in HOST.txt for each host.

    Raises:
        HolmesError: A file or key cannot be read. The message names it.
    """
    if not folder.is_dir() or any(folder.glob("*/recording.json")):
        return read_recorded_hosts(folder)
    found: dict[str, HostRecording] = {}
    for file in sorted(folder.glob("[!.]*.txt")):  # archives of macOS hold a ._NAME for each file
        answers = _read_answers(file)
        twice = next((name for name in answers if name in found), None)
        if twice is not None:
            raise HolmesError(f"{file}: host {twice} also has an answer in another file", "keep one answer per host")
        found.update(answers)
    return found or read_recorded_hosts(folder)


def _read_answers(file: Path) -> dict[str, HostRecording]:
    """Return the hosts of one file: the hosts named by a parallel shell, else the one in the file's name."""
    try:
        data = read_regular(file, MAX_ANSWER_BYTES, file.parent)
    except OSError as error:
        raise HolmesError(f"{file}: cannot be read: {error.strerror}", "check the file") from None
    text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig", errors="replace").replace("\r\n", "\n")
    if _LABELLED.search(text):
        text = _UNLABELLED.sub("", text)  # the parallel shell's own words
    answers = (
        by_host(text) if _LABELLED.search(text) or _HEADED.search(text) else {host_name(file.with_suffix("")): text}
    )
    return {name: _read_answer(file, answer) for name, answer in answers.items()}


def _read_answer(file: Path, text: str) -> HostRecording:
    """Return the outputs in one answer. There are none if the script did not run."""
    begin = _BEGIN.search(text)
    if begin is None:
        return HostRecording(())
    token = begin.group(1)
    if len(re.findall(rf"^{token} done$", text, flags=re.MULTILINE)) > 1:
        raise HolmesError(f"{file}: holds the answers of several runs of the script", "keep one answer in each file")
    return HostRecording(cut(text, token))
