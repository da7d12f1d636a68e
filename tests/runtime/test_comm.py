"""Interfaces, counters and NCCL options; no group is opened here."""

from __future__ import annotations

import pytest

from holmes_runtime.comm.interface_counters import counters_increase, parse_net_dev
from holmes_runtime.comm.process_groups import check_interfaces, nccl_fields, select_device
from holmes_runtime.config.rank_grid import Group
from holmes_runtime.config.rank_metrics import ByteCounters

from .launched_runs import make_config

NET_DEV = """Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    3193   29    0    0    0     0          0         0     3194   29    0    0    0     0       0          0
  eth0:66792941 1977    0    0    0     0          0         0   134142 1226    0    0    0     0       0          0
"""


def test_net_dev_gives_bytes_per_interface() -> None:
    assert parse_net_dev(NET_DEV) == {"lo": ByteCounters(3194, 3193), "eth0": ByteCounters(134142, 66792941)}


def test_the_increase_leaves_out_interfaces_that_came_or_went() -> None:
    before = {"lo": ByteCounters(1, 2), "gone": ByteCounters(1, 1)}
    after = {"lo": ByteCounters(11, 22), "new": ByteCounters(5, 5)}

    assert counters_increase(before, after) == {"lo": ByteCounters(10, 20)}


def test_an_interface_this_host_lacks_is_named_with_host_group_and_what_there_is() -> None:
    config = make_config(pipelines=((0, 1),), cuts=(0, 1, 3), interface="ib7")

    with pytest.raises(RuntimeError, match=r"host host1, rank 1: group forward-0-0 needs interface 'ib7'.* lo"):
        check_interfaces(config, rank=1)


@pytest.mark.parametrize(
    ("net_name", "fields"), [("IB", {"net_name": "IB"}), ("Libfabric", {"net_name": "Libfabric"}), (None, {})]
)
def test_nccl_is_told_the_network_of_the_group(net_name: str | None, fields: dict[str, str]) -> None:
    group = Group("dp-0", "dp", (0, 1), ("ib0", "ib0"), net_name, 1, "none")  # type: ignore[arg-type]

    assert nccl_fields(group) == fields


def test_nccl_net_in_the_environment_is_refused_on_cuda_only() -> None:
    assert select_device("cpu", 0, {"NCCL_NET": "IB"}).type == "cpu"
    with pytest.raises(RuntimeError, match="NCCL_NET='IB' is set"):
        select_device("cuda", 0, {"NCCL_NET": "IB"})
