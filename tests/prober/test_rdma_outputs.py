"""RDMA tools of many cards and versions, on outputs that the recorded machines do not show: a case is a machine."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holmes_core.records.inventory import Host
from prober.asking.recording import HostNotes, Recorded
from prober.read_host import read_host


class Port(NamedTuple):
    """What should be read of a port."""

    name: str
    kind: str
    state: str | None = "Active"
    usable: bool | None = True
    rate_gbps: float | None = None
    netdev: str | None = None


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


def ports(*outputs: tuple[str, str]) -> list[Port]:
    return [
        Port(nic.hca, nic.kind, nic.state, nic.usable_by_nccl_ib, nic.rate_gbps, nic.netdev)
        for nic in read(*outputs).nics
    ]


def devinfo(device: str, transport: str, vendor: str, layer: str, state: str = "PORT_ACTIVE (4)") -> str:
    """A block as ibv_devinfo prints it without -v."""
    return (
        f"hca_id:\t{device}\n\ttransport:\t\t\t{transport}\n\tfw_ver:\t\t\t\t1.2.3\n\tvendor_id:\t\t\t{vendor}\n"
        f"\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\t{state}\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tsm_lid:\t\t\t0\n\t\t\tlink_layer:\t\t{layer}\n\n"
    )


VERBS = "InfiniBand (0)"
IBV_DEVINFO = {
    "Intel E810, RoCE": (devinfo("rocep24s0f0", VERBS, "0x8086", "Ethernet"), Port("rocep24s0f0:1", "RoCE")),
    "Intel E810, iWARP": (
        devinfo("iwp24s0f0", "iWARP (1)", "0x8086", "Ethernet"),
        Port("iwp24s0f0:1", "iWARP", usable=False),
    ),
    "Chelsio T6": (devinfo("cxgb4_0", "iWARP (1)", "0x1425", "Ethernet"), Port("cxgb4_0:1", "iWARP", usable=False)),
    "EFA, new rdma-core": (
        devinfo("rdmap16s27", "unspecified (4)", "0x1d0f", "Unspecified"),
        Port("rdmap16s27:1", "EFA", usable=False),
    ),
    "Omni-Path": (devinfo("hfi1_0", VERBS, "0x1175", "InfiniBand"), Port("hfi1_0:1", "Omni-Path")),
    "Soft-RoCE under a persistent name": (
        devinfo("rocep0s3", VERBS, "0x0000", "Ethernet"),
        Port("rocep0s3:1", "SoftRoCE"),
    ),
    "Marvell FastLinQ": (devinfo("qedr0", VERBS, "0x1077", "Ethernet"), Port("qedr0:1", "RoCE")),
    "Alibaba eRDMA": (devinfo("erdma_0", VERBS, "0x1ded", "Ethernet"), Port("erdma_0:1", "RoCE")),
    "Microsoft Azure MANA": (devinfo("mana_0", VERBS, "0x1414", "Ethernet"), Port("mana_0:1", "RoCE")),
    "Broadcom, port down": (
        devinfo("bnxt_re0", VERBS, "0x14e4", "Ethernet", "PORT_DOWN (1)"),
        Port("bnxt_re0:1", "RoCE", "Down", False),
    ),
    "Mellanox under the name that rdma-core gives EFA": (
        devinfo("rdmap0s2", VERBS, "0x02c9", "Ethernet"),
        Port("rdmap0s2:1", "RoCE"),
    ),
    "HiSilicon": (devinfo("hns_0", VERBS, "0x19e5", "Ethernet"), Port("hns_0:1", "RoCE")),
}


@pytest.mark.parametrize("machine", IBV_DEVINFO)
def test_ibv_devinfo_of(machine: str) -> None:
    text, port = IBV_DEVINFO[machine]
    assert ports(("ibv_devinfo", text)) == [port]
    assert ports(("LC_ALL=C sudo -u root /usr/bin/ibv_devinfo | cat", text.replace("\n", "\r\n"))) == [port]


CONNECTX3_VPI = """\
hca_id:	mlx4_0
	transport:			InfiniBand (0)
	vendor_id:			0x02c9
	vendor_part_id:			4099
	Device ports:
		port:	1
			state:			PORT_ACTIVE (4)
			sm_lid:			1
			link_layer:		InfiniBand
			active_width:		4X (2)
			active_speed:		14.0 Gbps (16)
			GID[  0]:		fe80:0000:0000:0000:0002:c903:00a1:b2c1

		port:	2
			state:			PORT_ACTIVE (4)
			sm_lid:			0
			link_layer:		Ethernet
			active_width:		4X (2)
			active_speed:		10.0 Gbps (4)
			GID[  0]:		fe80:0000:0000:0000:0202:c9ff:fea1:b2c2
"""
CONNECTX6_DX = """\
hca_id:	mlx5_2
		port:	1
			state:			PORT_ACTIVE (4)
			active_mtu:		1024 (3)
			link_layer:		Ethernet
			active_width:		2X (16)
			active_speed:		50.0 Gbps (64)
			GID[  0]:		fe80::bace:f6ff:fe00:1, RoCE v1
			GID[  1]:		fe80::bace:f6ff:fe00:1, RoCE v2
			GID[  2]:		::ffff:10.0.0.5, RoCE v1
			GID[  5]:		::ffff:10.0.0.5, RoCE v2
"""


def test_two_link_layers_on_one_connectx_3() -> None:
    infiniband, roce = ports(("ibv_devinfo -v", CONNECTX3_VPI))
    assert (infiniband, roce) == (
        Port("mlx4_0:1", "InfiniBand", rate_gbps=56),
        Port("mlx4_0:2", "RoCE", rate_gbps=40),
    )


def test_width_speed_and_gids_of_a_connectx_6_dx() -> None:
    (nic,) = read(("ibv_devinfo -v -d mlx5_2", CONNECTX6_DX)).nics
    assert (nic.kind, nic.rate_gbps, nic.active_mtu, nic.gid_choice) == ("RoCE", 100, 1024, 5)


OTHERS: dict[str, tuple[str, str, list[Port]]] = {
    "ibstat of OFED 1.4, which knows no link layer": (
        "ibstat",
        "CA 'mthca0'\n\tCA type: MT25208\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 10\n"
        "\t\tSM lid: 1\n\tPort 2:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n\t\tSM lid: 0\n",
        [Port("mthca0:1", "InfiniBand", rate_gbps=10), Port("mthca0:2", "InfiniBand", "Down", False, 10)],
    ),
    "ibstat of one port": (
        "ibstat mlx5_0 1",
        "CA: 'mlx5_0'\nPort 1:\nState: Active\nPhysical state: LinkUp\nRate: 200\nSM lid: 2\nLink layer: InfiniBand\n",
        [Port("mlx5_0:1", "InfiniBand", rate_gbps=200)],
    ),
    "ibstat with byte order mark, colours and DOS line ends": (
        "ibstat",
        "\ufeffCA 'mlx5_0'\r\n\tPort 1:\r\n\t\tState: \x1b[32mActive\x1b[0m\r\n\t\tRate: 40 (FDR10)\r\n"
        "\t\tLink layer: InfiniBand",
        [Port("mlx5_0:1", "InfiniBand", rate_gbps=40)],
    ),
    "ibstat of ConnectX-8 waiting for its subnet manager": (
        "ibstat",
        "CA 'mlx5_0'\n\tCA type: MT4131\n\tPort 1:\n\t\tState: Armed\n\t\tRate: 800\n\t\tLink layer: InfiniBand\n",
        [Port("mlx5_0:1", "InfiniBand", "Armed", False, 800)],
    ),
    "ibstatus of a port that has lost its configuration": (
        "ibstatus",
        "Infiniband device 'mlx5_2' port 1 status:\n\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0000\n"
        "\tbase lid:\t 0xffff\n\tsm lid:\t\t 0x0\n\tstate:\t\t 2: INIT\n\tphys state:\t 5: LinkUp\n"
        "\trate:\t\t 2.5 Gb/sec (1X SDR)\n\tlink_layer:\t InfiniBand\n\n",
        [Port("mlx5_2:1", "InfiniBand", "Initializing", False, 2.5)],
    ),
    "ibdev2netdev": (
        "ibdev2netdev",
        "mlx5_0 port 1 ==> ibp24s0 (Up)\nmlx5_1 port 1 ==> ens2f0np0 (Down)\nmlx5_2 port 1 ==> rdma0 (Up)\n"
        "mlx5_3 port 1 ==>  (Down)\n",
        [
            Port("mlx5_0:1", "InfiniBand", netdev="ibp24s0"),
            Port("mlx5_1:1", "RoCE", "Down", False, netdev="ens2f0np0"),
            Port("mlx5_2:1", "unknown", usable=None, netdev="rdma0"),
            Port("mlx5_3:1", "unknown", None, None),
        ],
    ),
    "ibdev2netdev -v of OFED 2, without PCI addresses": (
        "ibdev2netdev -v",
        "mlx4_0 (MT26428 - MT1006X00034) FALCON QDR      fw 2.9.1000 port 1 (ACTIVE) ==> ib0 (Up)\n"
        "mlx4_0 (MT26428 - MT1006X00034) FALCON QDR      fw 2.9.1000 port 2 (DOWN  ) ==> ib1 (Down)\n",
        [Port("mlx4_0:1", "InfiniBand", netdev="ib0"), Port("mlx4_0:2", "InfiniBand", "Down", False, netdev="ib1")],
    ),
    "rdma link of iproute2 4.18": (
        "rdma link",
        "0/1: mlx5_0/1: subnet_prefix fe80:0000:0000:0000 lid 13399 sm_lid 49151 lmc 0 state ACTIVE "
        "physical_state LINK_UP\n1/1: mlx5_1/1: state DOWN physical_state DISABLED netdev eth2 netdev_index 4\n",
        [Port("mlx5_0:1", "InfiniBand"), Port("mlx5_1:1", "RoCE", "Down", False, netdev="eth2")],
    ),
    "rdma link, pretty": (
        "rdma -j -p link show",
        '[ {\n        "ifindex": 0,\n        "ifname": "mlx5_0/1",\n        "port": 1,\n        "state": "ACTIVE",\n'
        '        "netdev": "ens1"\n    } ]\n',
        [Port("mlx5_0:1", "RoCE", netdev="ens1")],
    ),
    "rdma link with software RDMA": (
        "rdma link show",
        "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0 \n"
        "link siw0/1 state ACTIVE physical_state LINK_UP netdev eth1 \n",
        [Port("rxe0:1", "SoftRoCE", netdev="eth0"), Port("siw0:1", "iWARP", usable=False, netdev="eth1")],
    ),
    "rdma link without its last newline": (
        "rdma link",
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1 netdev_index 3",
        [Port("mlx5_0:1", "RoCE", netdev="ens1")],
    ),
    "rdma link, cut inside a name": (
        "rdma link",
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1",
        [Port("mlx5_0:1", "RoCE")],
    ),
    "rdma link, detailed": (
        "rdma -d link",
        "link rocep1s0f1/1 state DOWN physical_state DISABLED \n    caps: <CM, IP_BASED_GIDS>\n",
        [Port("rocep1s0f1:1", "RoCE", "Down", False)],
    ),
    "mlxlink of NDR InfiniBand": (
        "mlxlink -d mlx5_0",
        "\x1b[1mOperational Info\x1b[0m\n----------------\nState              : \x1b[32mActive\x1b[0m\n"
        "Physical state     : LinkUp\nSpeed              : IB-NDR\nWidth              : 4x\n",
        [Port("mlx5_0:1", "InfiniBand", rate_gbps=400)],
    ),
    "mlxlink of half the lanes": (
        "mlxlink -d mlx5_5 -m -c",
        "State              : Active\nPhysical state     : LinkUp\nSpeed    : IB-HDR\nWidth   : 2x\n",
        [Port("mlx5_5:1", "InfiniBand", rate_gbps=100)],
    ),
    "mlxlink without a cable": (
        "mlxlink -d mlx5_1 -p 1",
        "State              : Polling\nPhysical state     : ETH_AN_FSM_ENABLE\nSpeed    : N/A\nWidth   : N/A\n",
        [Port("mlx5_1:1", "RoCE", "Down", False)],
    ),
    "mlxlink of a PCI address, whose port has no name": (
        "mlxlink -d 0000:18:00.0",
        "State              : Active\nPhysical state     : LinkUp\nSpeed    : 200G\nWidth   : 4x\n",
        [],
    ),
    "head of files": (
        "head /sys/class/infiniband/*/ports/*/link_layer /sys/class/infiniband/*/ports/*/state",
        "==> /sys/class/infiniband/mlx5_0/ports/1/link_layer <==\nInfiniBand\n\n"
        "==> /sys/class/infiniband/mlx5_0/ports/1/state <==\n4: ACTIVE\n",
        [Port("mlx5_0:1", "InfiniBand")],
    ),
}


@pytest.mark.parametrize("machine", OTHERS)
def test_ports_of(machine: str) -> None:
    command, text, expected = OTHERS[machine]
    assert ports((command, text)) == expected


def test_gids_of_several_show_gids_versions() -> None:
    text = (
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
        "mlx5_2\t1\t3\t0000:0000:0000:0000:0000:FFFF:0A01:0005\t10.1.0.5  \tv2\tens2\n"
        "bnxt_re0        1       5       0000:0000:0000:0000:0000:ffff:c0a8:0105 192.168.1.5     RoCE v2      eth2\n"
        "n_gids_found=2\n"
    )
    chosen = {nic.device: (nic.kind, nic.gid_choice, nic.netdev) for nic in read(("show_gids", text)).nics}
    assert chosen == {"mlx5_2": ("RoCE", 3, "ens2"), "bnxt_re0": ("RoCE", 5, "eth2")}


SM = "sminfo: sm lid 3 sm guid 0xe41d2d0300100001, activity count 1234568 priority 15 state 3 SMINFO_MASTER\n"


@pytest.mark.parametrize(
    ("command", "text", "manager"),
    [
        ("sminfo -C mlx5_0 -P 1", SM, "e41d:2d03:0010:0001"),
        ("sudo sminfo --Ca mlx5_0 --Port 1", SM, "e41d:2d03:0010:0001"),
        ("sminfo", SM, None),
        ("sminfo -C mlx5_0 -P 1", SM.rstrip("\n"), None),
        ("sminfo -C mlx5_0 -P 1", SM.replace("3 SMINFO_MASTER", "2 SMINFO_STANDBY"), None),
        ("sminfo -C mlx5_0 -P 1", "sminfo: iberror: failed: Failed to open 'mlx5_0' port '1'\n", None),
    ],
)
def test_the_subnet_manager_of_the_port_that_was_asked(command: str, text: str, manager: str | None) -> None:
    ibstat = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tSM lid: 3\n\t\tLink layer: InfiniBand\n"
    (port,) = read(("ibstat", ibstat), (command, text)).nics
    assert (port.sm_lid, port.sm_guid) == (3, manager)


def test_a_host_whose_kernel_lists_no_rdma_device_has_none() -> None:
    card = "Settings for ens1:\n\tSupported ports: [ FIBRE ]\n\tSpeed: 100000Mb/s\n\tLink detected: yes\n"
    assert ports(("ethtool ens1", card), ("rdma link show", "")) == [
        Port("ens1:0", "Ethernet", usable=False, rate_gbps=100, netdev="ens1")
    ]
    assert ports(("ethtool ens1", card))[0].usable is None
