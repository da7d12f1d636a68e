"""How far a rank is with its groups, read from torch's flight recorder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.comm.flight_record import dump_flight_record, parse_flight_record
from holmes_runtime.config.messages import GroupProgress
from tests.free_ports import free_port


def entry(
    number: int, group: str, state: str, p2p: bool = False, record_id: int | None = None, **more: Any
) -> dict[str, Any]:
    """An operation as torch 2.13 writes it: FlightRecorderDetail.hpp, dump_json."""
    return {
        "record_id": number if record_id is None else record_id,
        "pg_id": 3,
        "process_group": ["5", group],
        "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0,
        "op_id": number,
        "profiling_name": "nccl:send" if p2p else "nccl:all_reduce",
        "time_created_ns": 1,
        "state": state,
        "retired": state == "completed",
        "is_p2p": p2p,
        **more,
    }


def dump(entries: Sequence[dict[str, Any]]) -> str:
    """A whole record."""
    first = [{**each, "record_id": each["record_id"] if position else 0} for position, each in enumerate(entries)]
    return json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": first})


def test_the_last_handed_over_begun_and_completed_are_told_apart() -> None:
    record = dump([entry(1, "dp-0", "completed"), entry(2, "dp-0", "started"), entry(3, "dp-0", "scheduled")])
    assert parse_flight_record(record, ["dp-0"]) == (GroupProgress("dp-0", False, 3, 2, 1),)


def test_messages_and_collectives_of_a_group_are_counted_apart() -> None:
    record = dump(
        [entry(1, "e", "completed", p2p=True), entry(1, "e", "scheduled"), entry(2, "e", "scheduled", p2p=True)]
    )
    assert parse_flight_record(record, ["e"]) == (GroupProgress("e", False, 1, 0, 0), GroupProgress("e", True, 2, 1, 1))


def test_messages_of_one_batch_are_completed_with_it() -> None:
    single = [entry(1, "e", "scheduled", p2p=True) for _ in range(2)]
    record = dump([*single, entry(1, "e", "completed", p2p=True, profiling_name="nccl:coalesced")])
    assert parse_flight_record(record, ["e"]) == (GroupProgress("e", True, 1, 1, 1),)


def test_of_groups_of_one_name_the_last_counts() -> None:
    """Names begin anew where a script destroys its groups and makes others."""
    old = [entry(number, "dp-0", "completed", pg_id=1) for number in range(1, 9)]
    record = dump([*old, entry(1, "dp-0", "completed", pg_id=4), entry(2, "dp-0", "scheduled", pg_id=4)])
    assert parse_flight_record(record, ["5"], by="name") == (GroupProgress("5", False, 2, 1, 1),)


def test_an_operation_that_torch_gave_up_is_not_completed() -> None:
    record = dump([entry(1, "dp-0", "scheduled", retired=True)])
    assert parse_flight_record(record, ["dp-0"]) == (GroupProgress("dp-0", False, 1, 0, 0),)


def test_a_group_without_operations_is_at_none_while_the_record_is_whole() -> None:
    whole, cut = entry(1, "dp-0", "completed", record_id=0), entry(9, "dp-0", "completed", record_id=8)
    assert GroupProgress("tp-0", False, 0, 0, 0) in parse_flight_record(dump([whole]), ["tp-0"])
    text = json.dumps({"version": "2.10", "entries": [cut]})
    assert parse_flight_record(text, ["tp-0", "dp-0"]) == (GroupProgress("dp-0", False, 9, 9, 9),)


@pytest.mark.parametrize("text", ['{"version": "3.0", "entries": []}', "{}", "[]", "no JSON"])
def test_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"flight recorder has a format|Expecting value"):
        parse_flight_record(text, ["dp-0"])


def test_torch_of_today_writes_that_format() -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        group = dist.new_group([0], group_desc="recorded", backend="gloo")
        for _ in range(2):
            dist.all_reduce(torch.ones(1), group=group)
        record = dump_flight_record("cpu")
        name = group.group_name
    finally:
        dist.destroy_process_group()
    progress, by_name = parse_flight_record(record, ["recorded"]), parse_flight_record(record, [name], by="name")
    assert [each[1:] for each in by_name] == [each[1:] for each in progress]
    assert progress[0][:3] == ("recorded", False, 2)
    assert progress[0].completed <= 2
