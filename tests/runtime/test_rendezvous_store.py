"""The meeting of islands as torch uses it: through a node's gate, to the controller's dictionary and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistStoreError, ProcessGroupGloo

from holmes_runtime.config.islands.rendezvous_messages import EVERY_CONNECTION, MEETING, FromMeeting
from holmes_runtime.outer.rendezvous_store import RendezvousStore, open_meeting
from tests.runtime.meeting_place import MeetingPlace


@pytest.fixture
def place() -> MeetingPlace:
    return MeetingPlace()


def store(place: MeetingPlace, node: int) -> RendezvousStore:
    return open_meeting({MEETING: place.addresses[node]})


def test_what_one_island_sets_another_reads(place: MeetingPlace) -> None:
    here, there = PrefixStore("islands", store(place, 0)), PrefixStore("islands", store(place, 1))
    here.set("a", "one")
    assert there.get("a") == b"one"
    assert [here.add("n", 2), there.add("n", 3), here.get("n")] == [2, 5, b"5"]
    assert [there.check(["a", "n"]), there.check(["a", "b"])] == [True, False]
    assert [here.compare_set("c", "", "first"), there.compare_set("c", "", "second")] == [b"first", b"first"]
    assert [there.delete_key("a"), here.check(["a"])] == [True, False]
    here.set("long", b"\x00\xff" * 300_000)  # type: ignore[arg-type]
    assert there.get("long") == b"\x00\xff" * 300_000


def test_who_waits_hears_as_soon_as_another_has_set_it(place: MeetingPlace) -> None:
    here, there = store(place, 0), store(place, 1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(here.multi_get, ["a", "b"])
        there.multi_set(["b", "a"], ["2", "1"])
        assert waiting.result(timeout=600) == [b"1", b"2"]


def test_a_thread_that_waits_keeps_no_other_from_asking(place: MeetingPlace) -> None:
    mine = store(place, 0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(mine.get, "a")
        assert not mine.check(["a"])
        mine.set("a", "x")
        assert waiting.result(timeout=600) == b"x"


def test_waiting_has_an_end_and_the_store_goes_on(place: MeetingPlace) -> None:
    mine = store(place, 0)
    with pytest.raises(DistStoreError, match=r"no answer to get of "):
        mine.wait(["never"], timedelta(seconds=0.1))
    mine.set("a", "x")
    assert mine.get("a") == b"x"


def test_answers_lost_on_the_way_are_asked_for_again(place: MeetingPlace) -> None:
    """As when the controller has made its connection to the node anew."""
    here, there = store(place, 0), store(place, 1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(here.get, "a")
        place.gates[0].hand_on(FromMeeting(EVERY_CONNECTION, ""))
        there.set("a", "x")
        assert waiting.result(timeout=600) == b"x"


def test_a_gloo_group_of_two_islands_is_made_of_it(place: MeetingPlace) -> None:
    def add_up(rank: int) -> float:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(interface="lo")]
        group = ProcessGroupGloo(PrefixStore("lane", store(place, rank)), rank, 2, options)
        total = torch.full((3,), float(rank + 1))
        group.allreduce([total]).wait()  # type: ignore[attr-defined]
        return float(total[0])

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(add_up, range(2))) == [3.0, 3.0]


def test_a_process_of_no_island_has_no_meeting() -> None:
    with pytest.raises(RuntimeError, match=MEETING):
        open_meeting({})
