"""The CPUs near a GPU are divided among its NUMA node's ranks: each CPU to one rank, as evenly as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Host
from planner.problem.near_cores import cpu_ranges, first_shared, near_cores


def host(lists: list[str | None]) -> Host:
    gpus = [
        Gpu(index=index, name=None, uuid=None, memory_bytes=None, pci_address=None, cpus=cpus)
        for index, cpus in enumerate(lists)
    ]
    return Host(name="a1", access=Access(), reachable=True, gpus=tuple(gpus))


def members(cpus: str) -> set[int]:
    return {cpu for first, last in cpu_ranges(cpus) for cpu in range(first, last + 1)}


@pytest.mark.parametrize(
    ("lists", "cores"),
    [
        (["0-7", "0-7"], ["0-3", "4-7"]),
        (["0-2", "0-2"], ["0", "1-2"]),
        (["0-3,8-11", "0-3,8-11", "4-7,12-15"], ["0-1,8-9", "2-3,10-11", "4-7,12-15"]),
        (["0,2,4,6", "0,2,4,6", "1,3,5,7"], ["0,2", "4,6", "1,3,5,7"]),
        (["0", "0"], [None, None]),
        (["0-99999999999", "0-99999999999"], [None, None]),
    ],
)
def test_cpus_of_a_numa_node_are_divided(lists: list[str | None], cores: list[str | None]) -> None:
    assert near_cores(host(lists), range(len(lists))) == tuple(cores)


def test_only_gpus_that_train_get_cpus() -> None:
    assert near_cores(host(["0-7", "0-7", "8-15", None]), [1, 2]) == ("0-7", "8-15")
    assert near_cores(host(["0-7", None]), [0, 1]) == (None, None)
    assert near_cores(host(["0-7"]), [None]) == (None,)


@given(ranks=st.integers(1, 16), cores=st.integers(1, 40), threads=st.integers(1, 3), first=st.integers(0, 5))
def test_every_cpu_goes_to_one_rank(ranks: int, cores: int, threads: int, first: int) -> None:
    near = ",".join(f"{first + 64 * each}-{first + 64 * each + cores - 1}" for each in range(threads))
    shares = [each for each in near_cores(host([near] * ranks), range(ranks)) if each is not None]
    assert len(shares) == (ranks if ranks <= cores * threads else 0)
    if shares:
        assert first_shared(map(cpu_ranges, shares)) is None
        assert set().union(*map(members, shares)) == members(near)
        sizes = [len(members(each)) for each in shares]
        assert max(sizes) - min(sizes) <= threads
        if cores >= ranks:  # whole cores: a hardware thread is where its neighbours are
            assert all(
                {cpu % 64 for cpu in members(each)} == {cpu % 64 for cpu in members(each) if cpu < 64}
                for each in shares
            )
