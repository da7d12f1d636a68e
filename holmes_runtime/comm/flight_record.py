"""The progress of this process in each of its groups, from torch's flight recorder in its JSON form.

Source: torch 2.13, include/torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. The dump holds the last
TORCH_FR_BUFFER_SIZE operations, oldest first. Each has its group's name and description, its number in the group
(collectives and messages are counted separately), and its state: scheduled, started or completed. Gloo's have no state;
they are only `retired` when done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from torch._C import _distributed_c10d

from holmes_runtime.config.messages import GroupProgress

FORMAT = "2."  # a new minor version only adds fields
_COLUMNS = {"name": 0, "description": 1}


def parse_flight_record(
    dump: str | bytes, groups: Iterable[str], by: Literal["name", "description"] = "description"
) -> tuple[GroupProgress, ...]:
    """Return this rank's progress in each of `groups`. Groups with unknown progress are left out.

    `groups` are torch's own names, or the descriptions that the groups were made with.

    A group without an operation is at 0 if no operation was overwritten; otherwise its progress is unknown. Raises
    ValueError for another format.
    """
    record = json.loads(dump)
    if not isinstance(record, dict) or not str(record.get("version")).startswith(FORMAT):
        raise ValueError(f"torch's flight recorder has a format other than {FORMAT}x")
    entries = record.get("entries", [])
    found: dict[tuple[str, bool], GroupProgress] = {}
    newest = {entry["process_group"][_COLUMNS[by]]: entry["pg_id"] for entry in entries}
    for entry in entries:
        group = entry["process_group"][_COLUMNS[by]]
        if entry["pg_id"] == newest[group]:  # else it is of a destroyed group, whose name may be in use again
            key = group, bool(entry["is_p2p"])
            found[key] = _with(found.get(key) or GroupProgress(*key, 0, 0, 0), entry)
    is_whole = not entries or entries[0]["record_id"] == 0
    progress = []
    for group in groups:
        known = [found[group, p2p] for p2p in (False, True) if (group, p2p) in found]
        progress += known or ([GroupProgress(group, p2p, 0, 0, 0) for p2p in (False, True)] if is_whole else [])
    return tuple(progress)


def _with(progress: GroupProgress, entry: dict[str, Any]) -> GroupProgress:
    """Return `progress` after one more operation.

    Messages that torch sends in one batch have an entry each, without a state, and one more entry for all of them.
    """
    number = int(entry["p2p_seq_id" if progress.p2p else "collective_seq_id"])
    is_done = entry["state"] == "completed" or (entry["retired"] and entry["profiling_name"].startswith("gloo:"))
    has_begun = is_done or entry["state"] == "started"
    return progress._replace(
        enqueued=max(progress.enqueued, number),
        started=max(progress.started, number) if has_begun else progress.started,
        completed=max(progress.completed, number) if is_done else progress.completed,
    )


def dump_flight_record(device: str) -> str | bytes:
    """Return this process's record as torch writes it: NCCL's on "cuda", Gloo's on "cpu"."""
    names = {"cuda": "_dump_nccl_trace_json", "cpu": "_dump_fr_trace_json"}
    dumped: str | bytes = getattr(_distributed_c10d, names[device])()
    return dumped
