"""Interfaces, counters and NCCL options; no group is opened here."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_runtime.comm.group_opening import EDGE_CTAS, nccl_fields
from holmes_runtime.comm.process_groups import check_interfaces, select_device
from holmes_runtime.config.rank_grid import Group
from holmes_runtime.config.rank_metrics import ByteCounters, counters_increase
from holmes_runtime.node.interface_counters import parse_net_dev, read_port_counters

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


def test_a_receive_that_waits_holds_few_of_the_gpu_s_processors() -> None:
    edge = Group("forward-0", "pp_forward", (0, 1), ("eth0", "eth0"), "Socket", 1, "none")

    assert nccl_fields(edge) == {"net_name": "Socket", "max_ctas": EDGE_CTAS}


def test_nccl_net_in_the_environment_is_refused_on_cuda_only() -> None:
    assert select_device("cpu", 0, {"NCCL_NET": "IB"}).type == "cpu"
    with pytest.raises(RuntimeError, match="the environment sets NCCL_NET='IB'"):
        select_device("cuda", 0, {"NCCL_NET": "IB"})


def test_nccl_net_in_a_file_that_nccl_reads_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("# the site's\nNCCL_NET=Socket\nNCCL_IB_HCA=mlx5_0\n")
    with pytest.raises(RuntimeError, match=f"{conf} sets NCCL_NET='Socket', which would override"):
        select_device("cuda", 0, {"NCCL_CONF_FILE": str(conf)})


def made_port(root: Path, port: str, **counters: str) -> None:
    """Files of counters as sysfs has them; a name with `ext_` before it lies in the folder for wide ones."""
    device, number = port.split(":")
    for name, text in counters.items():
        folder = "counters_ext" if name.startswith("ext_") else "counters"
        file = root / device / "ports" / number / folder / name.removeprefix("ext_")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_an_rdma_port_counts_words_of_four_bytes(tmp_path: Path) -> None:
    made_port(tmp_path, "mlx5_0:1", port_xmit_data="1000", port_rcv_data="5000000000")
    made_port(tmp_path, "mlx5_1:2", port_xmit_data="7", port_rcv_data="0")
    seen = read_port_counters(["mlx5_0:1", "mlx5_1:2"], tmp_path)
    assert seen == {"mlx5_0:1": ByteCounters(4000, 20_000_000_000), "mlx5_1:2": ByteCounters(28, 0)}


def test_wide_counters_come_before_those_of_32_bits(tmp_path: Path) -> None:
    wide = {"ext_port_xmit_data_64": "5000000000", "ext_port_rcv_data_64": "6000000000"}
    made_port(tmp_path, "mlx4_0:1", port_xmit_data="4294967295", port_rcv_data="17", **wide)
    assert read_port_counters(["mlx4_0:1"], tmp_path) == {"mlx4_0:1": ByteCounters(20_000_000_000, 24_000_000_000)}


@pytest.mark.parametrize(
    "counters",
    [
        {},
        {"port_xmit_data": "1000"},
        {"port_xmit_data": "N/A (no PMA)", "port_rcv_data": "N/A (no PMA)"},
        {"port_xmit_data": "4294967295", "port_rcv_data": "17"},  # full: it counts no further
    ],
    ids=["absent", "one of two", "no agent", "full"],
)
def test_a_port_whose_counters_say_nothing_is_left_out(tmp_path: Path, counters: dict[str, str]) -> None:
    made_port(tmp_path, "mlx5_0:1", **counters)
    assert read_port_counters(["mlx5_0:1"], tmp_path) == {}


def test_a_counter_that_fell_is_left_out() -> None:
    before = {"mlx5_0:1": ByteCounters(100, 100), "mlx5_1:1": ByteCounters(0, 0)}
    after = {"mlx5_0:1": ByteCounters(150, 4), "mlx5_1:1": ByteCounters(8, 8)}
    assert counters_increase(before, after) == {"mlx5_1:1": ByteCounters(8, 8)}
