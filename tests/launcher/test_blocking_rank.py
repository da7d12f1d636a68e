"""The rank that others wait for is found in records of torch's flight recorder, and none is named without evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from holmes_runtime.comm.flight_record import parse_flight_record
from holmes_runtime.config.messages import RankPosition
from launcher.supervise.blocking_rank import (
    WatchedGroup,
    culprit,
    doing_in_words,
    operations_under_way,
    stuck_in_words,
)

# Two stages of two replicas: ranks 0 and 1 hold the first stage.
MEMBERS = {"dp-0": (0, 1), "dp-1": (2, 3), "edge-0": (0, 2), "edge-1": (1, 3), "all": (0, 1, 2, 3)}
GROUPS = [WatchedGroup(name, name, ranks) for name, ranks in MEMBERS.items()]
Seen = Mapping[str, Sequence[str]]
"""By group, with a * behind its name for messages, the state of each operation in order."""


def position(rank: int, seen: Seen) -> RankPosition:
    """What the rank says, whose record torch wrote as FlightRecorderDetail.hpp of 2.13 has it."""
    entries: list[dict[str, object]] = []
    for name, states in seen.items():
        for number, state in enumerate(states, 1):
            entries.append(
                {
                    "record_id": len(entries),
                    "pg_id": 1,
                    "process_group": ["1", name.rstrip("*")],
                    "collective_seq_id": 0 if name.endswith("*") else number,
                    "p2p_seq_id": number if name.endswith("*") else 0,
                    "op_id": number,
                    "profiling_name": "nccl:send" if name.endswith("*") else "nccl:all_reduce",
                    "state": state,
                    "retired": False,
                    "is_p2p": name.endswith("*"),
                }
            )
    own = [each.name for each in GROUPS if rank in each.ranks]
    return RankPosition(
        rank, "step 7", False, parse_flight_record(json.dumps({"version": "2.10", "entries": entries}), own)
    )


def found(*seen: Seen) -> tuple[int, str] | None:
    """The verdict on ranks 0, 1, ... that have done so much."""
    positions = {rank: position(rank, each) for rank, each in enumerate(seen)}
    return culprit(list(operations_under_way(GROUPS, positions)))


DONE, WAITS, HANDED_OVER = "completed", "started", "scheduled"


def test_the_rank_that_has_not_come_to_a_collective_is_named_with_it() -> None:
    verdict = found({"dp-0": [DONE, HANDED_OVER]}, {"dp-0": [DONE]})
    assert verdict == (1, "it has not reached collective 2 of group dp-0, in which rank 0 waits for it")


def test_the_first_collective_of_all_counts_too() -> None:
    assert found({"dp-0": [HANDED_OVER]}, {}) is not None


def test_who_waits_for_another_is_not_to_blame() -> None:
    """Rank 2 waits for rank 0's message, rank 3 for rank 2 in a collective: rank 0 has done nothing since."""
    verdict = found({"edge-0*": [DONE]}, {}, {"edge-0*": [DONE, HANDED_OVER]}, {"dp-1": [HANDED_OVER]})
    assert verdict is not None
    assert verdict[0] == 0
    assert "message 2 of group edge-0" in verdict[1]


def test_of_a_gpu_that_has_not_begun_what_others_are_in_the_rank_is_named() -> None:
    """Only where torch times collectives is it known what has begun."""
    verdict = found({"dp-0": [DONE, WAITS]}, {"dp-0": [DONE, HANDED_OVER]})
    assert verdict == (1, "it has not begun on its GPU collective 2 of group dp-0, in which rank 0 waits for it")


def test_where_all_have_come_to_an_operation_that_does_not_end_no_rank_is_named() -> None:
    positions = {rank: position(rank, {"dp-0": [DONE, HANDED_OVER]}) for rank in (0, 1)}
    operations = list(operations_under_way(GROUPS, positions))
    assert culprit(operations) is None
    assert stuck_in_words(operations) == "; all its ranks have reached collective 2 of group dp-0, which does not end"


def test_a_rank_that_is_late_as_its_own_network_does_not_move_is_not_named() -> None:
    """Ranks 1 and 3 are in a message that does not end: that rank 1 has not reached the collective follows from it."""
    stuck = {"edge-1*": [DONE, HANDED_OVER]}
    assert found({"dp-0": [HANDED_OVER]}, stuck, {}, stuck) is None


def test_messages_in_a_group_of_more_than_two_show_nothing() -> None:
    """Each rank counts its own: rank 0 has had three with rank 1, and none with rank 2."""
    assert found({"all*": [DONE, DONE, HANDED_OVER]}, {"all*": [DONE, DONE, HANDED_OVER]}, {}, {}) is None
    assert found({"all": [DONE, HANDED_OVER]}, {"all": [DONE]}, {"all": [DONE, HANDED_OVER]}, {}) is not None


def test_a_circle_names_nobody() -> None:
    assert found({"dp-0": [HANDED_OVER]}, {"edge-1*": [HANDED_OVER]}, {}, {}) is not None
    first = {"dp-0": [HANDED_OVER]}, {"edge-1*": [HANDED_OVER]}, {"edge-0*": [HANDED_OVER]}, {"dp-1": [HANDED_OVER]}
    assert found(*first) is None


def test_of_a_rank_that_does_not_answer_nothing_is_said() -> None:
    positions = {0: position(0, {"dp-0": [HANDED_OVER]})}
    operations = list(operations_under_way(GROUPS, positions))
    assert culprit(operations) is None
    assert stuck_in_words(operations) == ""


def test_nothing_under_way_names_nobody() -> None:
    assert found({"dp-0": [DONE]}, {"dp-0": [DONE]}, {}, {}) is None


def test_ranks_that_do_the_same_are_told_together_and_many_are_counted() -> None:
    positions = {rank: RankPosition(rank, "building the model", True, ()) for rank in range(10)}
    hosts = {rank: f"a{rank // 8 + 1}" for rank in range(11)}
    text = doing_in_words(positions, hosts, silent=[10])
    assert text.startswith("ranks 0 (a1), 1 (a1), ")
    assert text.endswith(" 7 (a1) and 2 more: building the model; rank 10 (a2): not answering")
