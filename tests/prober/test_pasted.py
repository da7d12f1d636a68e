"""What people paste: commands behind prompts and prefixes, outputs with labels, quoting marks and padded columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holmes_core.records.inventory import Host
from prober.asking.recording import HostNotes, HostRecording, Recorded, read_recorded_hosts
from prober.probe import inventory_of, replay
from prober.read_host import read_host

LINK = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth2 \n"


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("chroot /host ibstat mlx5_0", "ibstat mlx5_0"),
        ("sudo chroot --userspec=root /host /usr/sbin/ibstat -s", "ibstat -s"),
        ("nsenter -t 1 -m -u -n -i -- ibdev2netdev", "ibdev2netdev"),
        ("nsenter --target 1 --net rdma link", "rdma link"),
        ("nsenter --net=/var/run/netns/a rdma link", "rdma link"),
        ("docker exec nccl show_gids", "show_gids"),
        ("sudo docker --context a exec -it -u root -e A=1 nccl bash -c 'show_gids | head'", "show_gids"),
        ("podman exec -w /tmp nccl nvidia-smi topo -m", "nvidia-smi topo -m"),
        ("kubectl exec -it -n gpu worker-0 -- ibstat", "ibstat"),
        ("kubectl -n gpu exec worker-0 -c main -- sh -c 'ibstat'", "ibstat"),
        ("kubectl exec worker-0 ibv_devinfo -v", "ibv_devinfo -v"),
        ("oc debug node/gpu1 -- chroot /host lspci -nn", "lspci -nn"),
        ("oc rsh -n default rdma-pod ibstat", "ibstat"),
        ("srun -N 1 --nodelist=n1 --pty ibstat", "ibstat"),
        ("srun -w n1 -- ibstat -l", "ibstat -l"),
        ("pdsh -w n[1-4] ibstat | dshbak -c", "ibstat"),
        ('pdsh -R ssh -w n1,n2 "ibv_devinfo | grep -e state -e hca_id"', "ibv_devinfo"),
        ("clush -w n1 -L 'LC_ALL=C rdma link'", "rdma link"),
        ("ssh -p 2222 root@n1 'sudo ibstat | grep State'", "ibstat"),
        ("ssh n1 nvidia-smi -L", "nvidia-smi -L"),
        ("timeout -k 5 30 env LC_ALL=C /opt/mellanox/iproute2/sbin/rdma link", "rdma link"),
        ("NCCL_DEBUG=INFO LD_LIBRARY_PATH=/x nvidia-smi", "nvidia-smi"),
        ("ip netns exec blue ip -j addr show", "ip -j addr show"),
        ("apptainer exec --nv -B /dev image.sif nvidia-smi -L", "nvidia-smi -L"),
        ("srun ls -l /dev", "ls -l /dev"),
        ("sudo su - root -c 'ibstat mlx5_0'", "ibstat mlx5_0"),
        ("watch -n 1 nvidia-smi", "nvidia-smi"),
        ("numactl -N 0 taskset 0xf lspci", "lspci"),
        ("root@gpu-1:~# ibstat", "ibstat"),
        ("[root@node3 bin]# ./rdma link", "rdma link"),
        (
            "bash-4.2$ cat /sys/class/infiniband/mlx5_0/ports/1/pkeys/1",
            "cat /sys/class/infiniband/mlx5_0/ports/1/pkeys/1",
        ),
        ("sh-5.1# ibstatus", "ibstatus"),
        ("(base) me@n1:/work$ nvidia-smi -L", "nvidia-smi -L"),
        ("$ ibdev2netdev | column -t", "ibdev2netdev"),
        ("cd /opt && ./ibstat", "ibstat"),
        ("source /etc/profile; module load cuda; nvidia-smi -L", "nvidia-smi -L"),
        ("ibv_devinfo 2>&1 | grep -e 'a|b'", "ibv_devinfo"),
        ("env | grep '^NCCL_'", "env"),
        ("ip -j addr show", "ip -j addr show"),
        ("docker ps", "docker ps"),
        ("kubectl get pods", "kubectl get pods"),
        ("sudo", "sudo"),
    ],
)
def test_what_stands_before_a_tool_is_left_out(command: str, words: str) -> None:
    assert Recorded(command, "", 0).words == tuple(words.split())


def test_the_label_of_a_parallel_shell_is_left_out() -> None:
    text = f"pdsh@head: n1: ssh exited with exit code 1\nn1: {LINK}"
    (nic,) = read(("pdsh -w n1 rdma link", text)).nics
    assert (nic.hca, nic.netdev) == ("mlx5_0:1", "eth2")


def test_the_number_of_a_device_is_no_label() -> None:
    (nic,) = read(("rdma link", LINK), ("rdma dev", "0: mlx5_0: node_type ca fw 1.2.3 \n")).nics
    assert nic.firmware == "1.2.3"


def test_lines_of_several_hosts_are_not_mixed() -> None:
    text = "".join(f"{host}: {LINK.replace('eth2', netdev)}" for host, netdev in (("n1", "eth2"), ("n2", "eth3")))
    assert read(("pdsh -w n1,n2 rdma link", text)).nics == ()


def test_a_recorded_host_takes_its_own_lines_of_a_parallel_shell(tmp_path: Path) -> None:
    text = "".join(f"{host}: {LINK.replace('eth2', netdev)}" for host, netdev in (("n1", "eth2"), ("n2", "eth3")))
    for host in ("n1.example.org", "n2", "n3"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "all.txt").write_text(text)
        entries = [{"file": "all.txt", "command": "pdsh -w n1,n2 rdma link", "exit_code": 0}]
        (tmp_path / host / "recording.json").write_text(json.dumps(entries))
    inventory = replay(tmp_path)
    assert [[nic.netdev for nic in host.nics] for host in inventory.hosts] == [["eth2"], ["eth3"], []]
    (finding,) = [finding for finding in inventory.findings if finding.rule == "PROBE-HOSTS-MIXED"]
    assert (finding.hosts, "n1, n2" in finding.evidence) == (("n3",), True)
    assert read_recorded_hosts(tmp_path)["n3"].outputs[0].text == text


@pytest.mark.parametrize(
    "text",
    [
        f"root@gpu-1:~# rdma link\n{LINK}root@gpu-1:~# ",
        f"$ rdma link show\n{LINK}$ ",
        f"> {LINK}>\n",
        f"        {LINK}        {LINK.replace('mlx5_0', 'mlx5_1')}",
        f"\ufeff\x1b[1m{LINK}".replace("\n", "\r\n"),
        LINK.replace(" ", "   "),
    ],
)
def test_a_pasted_output_is_read_as_the_tool_printed_it(text: str) -> None:
    nic = read(("rdma link", text)).nics[0]
    assert (nic.hca, nic.kind, nic.state, nic.netdev) == ("mlx5_0:1", "RoCE", "Active", "eth2")


def kinds(*outputs: tuple[str, str]) -> dict[str, tuple[str, str | None, bool | None]]:
    return {nic.hca: (nic.kind, nic.state, nic.usable_by_nccl_ib) for nic in read(*outputs).nics}


CUT = {
    "ibstat of one device, without its headers": (
        "ibstat mlx5_7 | grep -e State -e Rate -e 'Link layer'",
        "State: Active\nRate: 400\nLink layer: InfiniBand\n",
        {"mlx5_7:1": ("InfiniBand", "Active", True)},
    ),
    "ibstat of the second port": (
        "ibstat mlx4_0 2 | grep -E 'State|Link'",
        "State: Down\nLink layer: Ethernet\n",
        {"mlx4_0:2": ("RoCE", "Down", False)},
    ),
    "ibstat without port lines": (
        'ibstat | grep -E "CA \'|State:|Link layer"',
        "CA 'mlx4_0'\n\t\tState: Active\n\t\tLink layer: InfiniBand\n\t\tState: Down\n\t\tLink layer: Ethernet\n"
        "CA 'mlx5_1'\n\t\tState: Active\n\t\tLink layer: Ethernet\n",
        {
            "mlx4_0:1": ("InfiniBand", "Active", True),
            "mlx4_0:2": ("RoCE", "Down", False),
            "mlx5_1:1": ("RoCE", "Active", True),
        },
    ),
    "ibstat of which only ports are left": (
        "ibstat | grep -A9 Port",
        "\tPort 1:\n\t\tState: Active\n\t\tLink layer: InfiniBand\n",
        {},
    ),
    "ibv_devinfo without port lines": (
        "ibv_devinfo | grep -e hca_id -e state -e link_layer",
        "hca_id:\tmlx5_0\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tInfiniBand\n"
        "hca_id:\tmlx5_1\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tlink_layer:\t\tEthernet\n",
        {"mlx5_0:1": ("InfiniBand", "Active", True), "mlx5_1:1": ("RoCE", "Down", False)},
    ),
    "ibv_devinfo of a named device": (
        "ibv_devinfo -d mlx5_2 -i 2 | egrep 'state|link'",
        "state: PORT_ACTIVE (4)\nlink_layer: Ethernet\n",
        {"mlx5_2:2": ("RoCE", "Active", True)},
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_headers_that_grep_took_are_put_back_where_one_reading_is_possible(case: str) -> None:
    command, text, expected = CUT[case]
    assert kinds((command, text)) == expected


SILENT = {
    "no lid in rdma link": (
        ("rdma link", "link mlx5_0/1 state DOWN physical_state DISABLED \n"),
        {"mlx5_0:1": ("RoCE", "Down", False)},
    ),
    "no lid where awk may have taken it": (
        ("rdma link | awk '{print $1,$2,$3,$4}'", "link mlx5_0/1 state ACTIVE\n"),
        {"mlx5_0:1": ("unknown", "Active", None)},
    ),
    "statistics say nothing of a link layer": (
        ("rdma statistic show", "link mlx5_0/1 rx_write_requests 0 out_of_sequence 3 \n"),
        {"mlx5_0:1": ("unknown", None, None)},
    ),
    "Active without a subnet manager": (
        ("ibv_devinfo", "hca_id: x_0\n port: 1\n  state: PORT_ACTIVE (4)\n  sm_lid: 0\n  port_lid: 0\n"),
        {"x_0:1": ("RoCE", "Active", True)},
    ),
    "a default GID made of a MAC": (
        ("show_gids", "x_0\t1\t0\tfe80:0000:0000:0000:bace:f6ff:fe2f:2550\t\tv1\n"),
        {"x_0:1": ("RoCE", None, None)},
    ),
    "an Azure InfiniBand GUID, of a MAC but without the bit": (
        ("ibstat | grep -v layer", "CA 'mlx5_0'\nPort 1:\nState: Down\nPort GUID: 0x00155dfffe33ff34\n"),
        {"mlx5_0:1": ("unknown", "Down", False)},
    ),
    "no link layer anywhere": (
        ("ibstat", "CA 'm_0'\nPort 1:\nState: Down\nSM lid: 0\nPort 2:\nState: Down\nSM lid: 0\n"),
        {"m_0:1": ("InfiniBand", "Down", False), "m_0:2": ("InfiniBand", "Down", False)},
    ),
    "no link layer in a last block that may be cut": (
        ("ibstat", "CA 'm_0'\nPort 1:\nState: Down\nSM lid: 0\n"),
        {"m_0:1": ("unknown", "Down", False)},
    ),
    "IPoIB that is down": (
        ("ibdev2netdev | column -t", "mlx5_0  port  1  ==>  ibP2p3s0  (Down)  # rail 1\n"),
        {"mlx5_0:1": ("InfiniBand", None, None)},
    ),
    "IPoIB that is up": (
        ("ibdev2netdev", "mlx5_0 port 1 ==> ibs17 (Up)\n"),
        {"mlx5_0:1": ("InfiniBand", "Active", True)},
    ),
    "an Ethernet interface that is down": (
        ("ibdev2netdev", "roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)\n"),
        {"roceP2p1s0f0:1": ("RoCE", "Down", False)},
    ),
    "a port without an interface": (
        ("ibdev2netdev", "mlx5_0 port 1 ==>  (Down)\n"),
        {"mlx5_0:1": ("unknown", None, None)},
    ),
    "a Grace InfiniBand name alone": (
        ("ibstat | grep -v layer", "CA 'ibP2p3s0'\nPort 1:\nState: Active\n"),
        {"ibP2p3s0:1": ("InfiniBand", "Active", True)},
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_a_tool_does_not_say_is_a_fact(case: str) -> None:
    output, expected = SILENT[case]
    assert kinds(output) == expected


def test_only_infiniband_takes_its_prefix_and_guid_from_the_default_gid() -> None:
    text = (
        "hca_id: {0}\n port: 1\n  state: PORT_ACTIVE (4)\n  link_layer: {1}\n"
        "  GID[  0]: fe80:0000:0000:0001:1070:fd03:0080:0b12\n\n"
    )
    ib, roce = read(("ibv_devinfo -v", text.format("a_0", "InfiniBand") + text.format("b_0", "Ethernet"))).nics
    assert (ib.subnet_prefix, ib.port_guid) == ("fe80:0000:0000:0001", "1070:fd03:0080:0b12")
    assert (roce.subnet_prefix, roce.port_guid) == (None, "1070:fd03:0080:0b12")


IMPOSSIBLE = {
    "a rate": (
        "ibstat",
        "CA 'mlx5_0'\nPort 1:\nState: Active\nRate: 100000\nLink layer: InfiniBand\n",
        "rate_gbps '100000'",
    ),
    "a port": ("rdma link", "link mlx5_0/100000 state ACTIVE physical_state LINK_UP netdev eth2 \n", "port '100000'"),
    "a name": ("ibv_devinfo", "hca_id:\tefa_0\ttransport:\tx\n\tport:\t1\n\t\tstate: PORT_ACTIVE (4)\n", "transport"),
    "a lid": (
        "ibstat",
        "CA 'mlx5_0'\nPort 1:\nState: Active\nBase lid: 65536\nLink layer: InfiniBand\n",
        "lid '65536'",
    ),
    "other digits": (
        "ibstat",
        "CA 'mlx5_0'\nPort 1:\nState: Active\nRate: ٤٠٠\nLink layer: InfiniBand\n",
        "'Rate: ٤٠٠'",
    ),
    "a speed": (
        "ethtool eth0",
        "Settings for eth0:\n\tSpeed: 99999999Mb/s\n\tLink detected: yes\n",
        "speed_bytes_per_s",
    ),
    "a netdev": ("ip -br addr", "eth\u00e9 UP 10.0.0.1/24\n", "netdev has name"),
    "links": ("nvidia-smi nvlink -s", "GPU 0: A (UUID: GPU-1)\n" + "\t Link 1: 25 GB/s\n" * 65, "nvlinks_total '65'"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_value_that_cannot_be_is_not_known_and_told(case: str) -> None:
    command, text, evidence = IMPOSSIBLE[case]
    inventory = inventory_of({"host": HostRecording((Recorded(command, text, 0),))})
    (finding,) = [finding for finding in inventory.findings if finding.rule == "PROBE-VALUE-IMPOSSIBLE"]
    assert evidence in finding.evidence
    assert finding.evidence.startswith(command.split()[0])
    (host,) = inventory.hosts
    assert all(nic.rate_gbps is None and nic.port < 256 and " " not in nic.device for nic in host.nics)
    assert all(netdev.speed_bytes_per_s is None for netdev in host.netdevs)
    assert all(gpu.nvlinks_total is None for gpu in host.gpus)


def test_the_greatest_possible_values_are_kept() -> None:
    (nic,) = read(
        ("ibstat", "CA 'x'\nPort 255:\nState: Active\nRate: 3200\nBase lid: 65535\nLink layer: Ethernet\n")
    ).nics
    assert (nic.port, nic.rate_gbps, nic.lid) == (255, 3200, 65535)


STATISTIC = (
    "link mlx5_0/1 rx_write_requests 7 out_of_buffer 135 out_of_sequence 3 rnr_nak_retry_err 0 packet_seq_err 0 "
    "local_ack_timeout_err 2 roce_adp_retrans 0 \n"
)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("/opt/mellanox/iproute2/sbin/rdma statistic show", STATISTIC),
        ("rdma -p stat show link mlx5_0/1", STATISTIC.replace("/1 ", "/1\n\t").replace(" 7 ", " 7\n\t")),
        (
            "rdma -j statistic show",
            '[{"ifname":"mlx5_0","port":1,"rx_write_requests":7,"out_of_sequence":3,"packet_seq_err":0,'
            '"local_ack_timeout_err":2,"rnr_nak_retry_err":0,"roce_adp_retrans":0}]\n',
        ),
    ],
)
def test_counters_of_rdma_statistic(command: str, text: str) -> None:
    (nic,) = read((command, text)).nics
    assert (nic.hca, dict(nic.counters)["out_of_sequence"], dict(nic.counters)["local_ack_timeout_err"]) == (
        "mlx5_0:1",
        3,
        2,
    )
    assert len(nic.counters) == 5


def test_p_keys_stand_at_their_index() -> None:
    root = "/sys/class/infiniband"
    text = (
        f"{root}/mlx5_0/ports/1/link_layer:InfiniBand\n{root}/mlx5_0/ports/1/pkeys/0:0x7fff\n"
        f"{root}/mlx5_0/ports/1/pkeys/2:0x8003\n{root}/mlx5_1/ports/1/link_layer:Ethernet\n"
        f"{root}/mlx5_1/ports/1/pkeys/0:0xffff\n{root}/mlx5_2/ports/1/link_layer:InfiniBand\n"
    )
    pkeys = {nic.device: nic.pkeys for nic in read((f"grep -H . {root}/*/ports/1/*", text)).nics}
    assert pkeys == {"mlx5_0": (0x7FFF, 0, 0x8003), "mlx5_1": None, "mlx5_2": None}


def test_gpus_of_a_report_of_which_grep_left_the_names() -> None:
    text = "    Product Name                          : NVIDIA H100 80GB HBM3\n" * 2
    gpus = read(("nvidia-smi -q | grep 'Product Name'", text)).gpus
    assert [(gpu.index, gpu.name, gpu.pci_address) for gpu in gpus] == [
        (0, "NVIDIA H100 80GB HBM3", None),
        (1, "NVIDIA H100 80GB HBM3", None),
    ]


def test_options_of_a_prefix_are_not_the_tool_s() -> None:
    qos = "PFC configuration:\n\tpriority    0   1\n\tenabled     0   1\n\nPriority trust state: dscp\n"
    (netdev,) = read(("docker exec -i -u 0 nccl mlnx_qos -i 'eth2'", qos)).netdevs
    assert netdev.name == "eth2"
    link = "State : Active\nPhysical state : LinkUp\nSpeed : IB-NDR\nWidth : 4x\n"
    (nic,) = read(("podman exec -d -e P=7 nccl mlxlink -d mlx5_3", link)).nics
    assert nic.hca == "mlx5_3:1"


ADDRESSES = """\
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000
    inet 10.0.0.1/24 brd 10.0.0.255 scope global dynamic noprefixroute eth0
    inet 10.1.0.1/24 scope global hsn0
    inet 10.2.0.1/24 scope global secondary rail0:2
    inet 10.3.0.1/24 scope global
"""


def test_an_address_belongs_to_the_interface_of_its_label() -> None:
    expected = {"eth0": ("10.0.0.1/24", "10.3.0.1/24"), "hsn0": ("10.1.0.1/24",), "rail0": ("10.2.0.1/24",)}
    assert {netdev.name: netdev.addresses for netdev in read(("ip addr", ADDRESSES)).netdevs} == expected
    cut = "".join(line for line in ADDRESSES.splitlines(keepends=True) if "inet" in line)
    of_labels = {**expected, "eth0": ("10.0.0.1/24",)}
    assert {netdev.name: netdev.addresses for netdev in read(("ip a | grep inet", cut)).netdevs} == of_labels


@pytest.mark.parametrize("name", ["hsn0", "rail3", "net1", "enP2p1s0f0np0", "my-fast-port"])
def test_an_interface_with_a_port_is_a_card_whatever_its_name(name: str) -> None:
    text = f"Settings for {name}:\n\tSupported ports: [ FIBRE ]\n\tSpeed: 200000Mb/s\n\tLink detected: yes\n"
    assert [(nic.device, nic.kind, nic.rate_gbps) for nic in read((f"ethtool {name}", text)).nics] == [
        (name, "Ethernet", 200)
    ]


def test_an_interface_on_top_of_another_is_no_card() -> None:
    text = "2: eth0@if7: <UP,LOWER_UP> mtu 1400 state UP\n3: eth1: <UP,LOWER_UP> mtu 1500 state UP\n"
    assert [nic.device for nic in read(("ip link", text)).nics] == ["eth1"]


def test_lspci_of_which_grep_left_no_gpu_says_nothing_of_gpus() -> None:
    card = "18:00.0 Ethernet controller [0200]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]\n"
    assert read(("lspci -nn | grep Mellanox", card)).gpu_count_lspci is None
    assert read(("lspci -nn", card)).gpu_count_lspci == 0


def test_the_driver_s_version_stands_in_its_banner() -> None:
    banner = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16-I1)\n"
    )
    assert read(("cat /proc/driver/nvidia/version", banner)).gpu_driver_version == "570.124.06"


def test_the_netdev_of_a_device_is_the_one_in_its_folder() -> None:
    root = "/sys/class/infiniband/mlx5_0"
    outputs = (
        (f"grep . {root}/ports/1/state", f"{root}/ports/1/state:4: ACTIVE\n"),
        (f"ls {root}/device/net", "rail0\n"),
    )
    assert read(*outputs).nics[0].netdev == "rail0"


SESSION = """\
root@gpu-1:~# ibdev2netdev
mlx5_0 port 1 ==> ens6np0 (Up)
root@gpu-1:~# sudo rdma dev
0: mlx5_0: node_type ca fw 28.39.1002 node_guid a088:c203:0086:3a34
root@gpu-1:~# nvidia-smi -L | head -1
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
root@gpu-1:~#
"""


def recorded_by_hand(folder: Path, command: str, text: str, *hosts: str) -> None:
    for host in hosts:
        (folder / host).mkdir()
        (folder / host / "pasted.txt").write_text(text)
        (folder / host / "recording.json").write_text(json.dumps([{"file": "pasted.txt", "command": command}]))


@pytest.mark.parametrize("command", ["terminal session", "ibdev2netdev"])
def test_a_pasted_terminal_session_is_cut_at_its_prompts(tmp_path: Path, command: str) -> None:
    recorded_by_hand(tmp_path, command, SESSION, "gpu-1")
    (host,) = replay(tmp_path).hosts
    assert [(nic.hca, nic.netdev, nic.firmware) for nic in host.nics] == [("mlx5_0:1", "ens6np0", "28.39.1002")]
    assert [gpu.name for gpu in host.gpus] == ["NVIDIA H100 80GB HBM3"]


FOLDED = """\
----------------
n[1,3-4]
----------------
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth2
----------------
n2
----------------
link mlx5_0/1 state DOWN physical_state DISABLED netdev eth2
"""


def test_blocks_that_a_parallel_shell_folded_go_to_each_of_their_hosts(tmp_path: Path) -> None:
    recorded_by_hand(tmp_path, "pdsh -w n[1-4] rdma link | dshbak -c", FOLDED, "n1", "n2", "n4", "n5")
    states = {host.name: [nic.state for nic in host.nics] for host in replay(tmp_path).hosts}
    assert states == {"n1": ["Active"], "n2": ["Down"], "n4": ["Active"], "n5": []}


def test_an_alias_of_ifconfig_is_another_address() -> None:
    text = (
        "eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500\n"
        "        inet 10.0.0.1  netmask 255.255.255.0  broadcast 10.0.0.255\n\n"
        "eth0:1: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500\n"
        "        inet 10.0.1.1  netmask 255.255.255.0  broadcast 10.0.1.255\n\n"
    )
    host = read(("ifconfig -a", text))
    assert [(netdev.name, netdev.addresses) for netdev in host.netdevs] == [("eth0", ("10.0.0.1/24", "10.0.1.1/24"))]
    assert host.impossible == ()


@pytest.mark.parametrize("mbps", ["4294967295", "65535", "0"])
def test_a_speed_that_means_unknown_is_unknown_and_no_fault(mbps: str) -> None:
    text = f"Settings for eth0:\n\tSpeed: {mbps}Mb/s\n\tLink detected: yes\n"
    host = read(("ethtool eth0", text), ("grep . /sys/class/net/eth0/speed", f"/sys/class/net/eth0/speed:{mbps}\n"))
    assert ([netdev.speed_bytes_per_s for netdev in host.netdevs], host.impossible) == ([None], ())


def test_a_link_that_lost_its_name_leads_nowhere() -> None:
    links = (
        " -> ../../devices/pci0000:c0/0000:c3:00.0/net/eth1\nlrwxrwxrwx 1 root root 0 eth0 -> ../../virtual/net/eth0\n"
    )
    assert [netdev.name for netdev in read(("ls -l /sys/class/net", links)).netdevs] == ["eth0"]


def test_a_name_that_no_interface_can_have_is_refused() -> None:
    names = {
        name: [netdev.name for netdev in read(("ip link show", f"2: {name}: <UP> mtu 1500\n")).netdevs]
        for name in ("enp1s0f0np0v123", "enp1s0f0np0v1234")
    }
    assert names == {"enp1s0f0np0v123": ["enp1s0f0np0v123"], "enp1s0f0np0v1234": []}
    host = read(("rdma link", LINK.replace("eth2", "a" * 16)))
    assert ([nic.netdev for nic in host.nics], len(host.impossible)) == ([None], 1)
