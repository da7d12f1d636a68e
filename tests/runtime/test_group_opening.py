"""NCCL groups are made at once, and one that is not as planned ends the run with its name; torch is a fake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holmes_runtime.comm.group_opening import Calls, GroupOpening, opening_order
from holmes_runtime.config.rank_grid import Group
from holmes_runtime.config.run_config import RunConfig

from .launched_runs import make_config
from .test_nccl_log import ROCE_2_18_5, SOCKET_2_29_7

GPU = torch.device("cuda", 0)


def cuda_config(net_name: str | None = "IB") -> RunConfig:
    """Two stages on two hosts, all groups on that network."""
    config = make_config(pipelines=((0, 1),), cuts=(0, 1, 3))
    groups = tuple(replace(group, net_name=net_name) for group in config.groups)  # type: ignore[arg-type]
    return replace(config, device="cuda", groups=groups)


class FakeTorch:
    """Takes note of what is asked for, and writes `log` when a group is made."""

    def __init__(self, log_file: Path, log: str, error: RuntimeError | None = None) -> None:
        self._log_file, self._log, self._error = log_file, log, error
        self.made: list[dict[str, Any]] = []
        self.tried: list[str] = []
        self.looked = 0

    def calls(self) -> Calls:
        """The fakes for the runtime."""
        return Calls(self._new_group, self._options, self._try_out, self._own_connections)

    def _new_group(self, ranks: list[int], **asked: Any) -> object:
        self.made.append({"ranks": ranks, **asked})
        with self._log_file.open("a") as file:
            file.write(self._log)
        if self._error is not None:
            raise self._error
        return object()

    def _options(self) -> Any:
        return SimpleNamespace(config=SimpleNamespace(), _timeout=timedelta(seconds=600))

    def _try_out(self, group: Group, *_: object) -> None:
        self.tried.append(group.name)

    def _own_connections(self) -> set[Any]:
        self.looked += 1
        return set()


Opening = Callable[..., tuple[GroupOpening, FakeTorch, Group]]


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    def make(
        log: str, net_name: str | None = "IB", rank: int = 0, error: RuntimeError | None = None, **environ: str
    ) -> tuple[GroupOpening, FakeTorch, Group]:
        file = tmp_path / "nccl.log"
        fake, config = FakeTorch(file, log, error), cuda_config(net_name)
        made = GroupOpening(config, rank, GPU, {"NCCL_DEBUG_FILE": str(file), **environ}, fake.calls())
        return made, fake, config.groups[0]

    return make


def test_a_communicator_is_made_at_once_with_the_network_and_time_of_the_plan(opening: Opening) -> None:
    made, fake, group = opening(ROCE_2_18_5)
    assert made.open(group) is not None
    (asked,) = fake.made
    assert (asked["device_id"], asked["backend"], asked["group_desc"]) == (GPU, "nccl", group.name)
    assert asked["pg_options"].config.net_name == "IB"
    assert asked["pg_options"]._timeout == asked["timeout"] == timedelta(seconds=60)
    assert fake.tried == [group.name]
    assert made.evidence == ["forward-0-0: on IB by mlx5_4:1, says NCCL's log"]


def test_a_group_planned_on_rdma_that_nccl_puts_on_sockets_ends_the_run(opening: Opening) -> None:
    made, fake, group = opening(SOCKET_2_29_7)
    with pytest.raises(RuntimeError) as error:
        made.open(group)
    assert str(error.value).startswith(
        "host host0, rank 0: group forward-0-0 (pp_forward on host0, host1): is to use IB, but NCCL's log says `Using "
        "network Socket`"
    )
    assert fake.tried == []


@pytest.mark.parametrize("planned", [None, "IB", "ib"])
def test_the_planned_network_passes_and_any_that_is_left_to_nccl(opening: Opening, planned: str | None) -> None:
    made, _, group = opening(ROCE_2_18_5, net_name=planned)
    assert made.open(group) is not None


def test_the_name_of_a_plugin_reaches_the_communicator_and_is_compared(opening: Opening) -> None:
    made, fake, group = opening("h:1:1 [0] NCCL INFO Using network AWS Libfabric\n", net_name="AWS Libfabric")
    assert made.open(group) is not None
    assert fake.made[0]["pg_options"].config.net_name == "AWS Libfabric"


def test_a_group_that_cannot_be_made_is_named_with_its_hosts_and_what_nccl_warned_of(opening: Opening) -> None:
    warning = "h:1:1 [0] plugin/net.cc:3 NCCL WARN Failed to initialize any NET plugin\n"
    made, _, group = opening(warning, error=RuntimeError("NCCL error: invalid usage"))
    with pytest.raises(RuntimeError) as error:
        made.open(group)
    assert str(error.value) == (
        "host host0, rank 0: group forward-0-0 (pp_forward on host0, host1): NCCL error: invalid usage; NCCL: "
        "Failed to initialize any NET plugin"
    )


def test_without_a_log_the_evidence_says_so(opening: Opening) -> None:
    made, _, group = opening("", NCCL_IB_HCA="=mlx5_77")
    assert made.open(group) is not None
    (evidence,) = made.evidence
    assert "NCCL wrote no log" in evidence
    assert "RDMA ports that cannot be read" in evidence


def test_a_rank_outside_a_group_takes_part_and_looks_at_nothing(opening: Opening) -> None:
    made, fake, group = opening(SOCKET_2_29_7, rank=7)
    assert made.open(group) is None
    assert len(fake.made) == 1
    assert (fake.looked, fake.tried, made.evidence) == (0, [], [])


def test_connections_of_the_process_are_looked_at_on_cpus_alone(opening: Opening) -> None:
    made, fake, group = opening(ROCE_2_18_5)
    made.open(group)
    assert fake.looked == 0


def test_however_long_a_pipeline_its_edges_are_made_in_two_turns() -> None:
    config = make_config(pipelines=(tuple(range(8)),), cuts=range(9), model=replace(make_config().model, num_layers=8))
    busy_until = [0] * 8  # by rank, when making each edge takes one turn, both directions together two
    for group in opening_order(config):
        done = max(busy_until[rank] for rank in group.ranks) + 1
        for rank in group.ranks:
            busy_until[rank] = done
    assert max(busy_until) == 4
    assert sorted(group.name for group in opening_order(config)) == sorted(group.name for group in config.groups)
