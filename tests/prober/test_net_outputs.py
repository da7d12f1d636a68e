"""ip, ethtool and their like of many machines, on outputs that the recorded machines do not show."""

from __future__ import annotations

from holmes_core.records.inventory import Host
from prober.asking.recording import HostNotes, Recorded
from prober.read_host import read_host


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


IP_ADDR = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
2: ens1f0np0: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP group default qlen 1000
    link/ether b8:ce:f6:00:00:01 brd ff:ff:ff:ff:ff:ff
    vf 0     link/ether 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff, spoof checking off, link-state auto, trust off
3: eno2: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN group default qlen 1000
    link/ether b8:ce:f6:00:00:02 brd ff:ff:ff:ff:ff:ff
4: bond0: <BROADCAST,MULTICAST,MASTER,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default qlen 1000
    link/ether b8:ce:f6:00:00:01 brd ff:ff:ff:ff:ff:ff promiscuity 0
    bond mode 802.3ad miimon 100 updelay 0
    inet 10.0.0.5/24 brd 10.0.0.255 scope global bond0
    inet6 fe80::1/64 scope link
5: bond0.100@bond0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default
    link/ether b8:ce:f6:00:00:01 brd ff:ff:ff:ff:ff:ff
    vlan protocol 802.1Q id 100 <REORDER_HDR>
    inet 10.1.0.5/24 scope global bond0.100
6: ibp24s0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 4092 qdisc mq state UP group default qlen 256
    link/infiniband 00:00:10:49:fe:80:00:00:00:00:00:00 brd 00:ff:ff:ff:ff:12:40:1b
    inet 192.168.1.5/24 scope global ibp24s0
"""


def test_ip_without_json_is_read_as_text() -> None:
    netdevs = {netdev.name: netdev for netdev in read(("ip addr show", IP_ADDR)).netdevs}
    assert list(netdevs) == ["lo", "ens1f0np0", "eno2", "bond0", "bond0.100", "ibp24s0"]
    assert {name: netdev.addresses for name, netdev in netdevs.items() if netdev.addresses} == {
        "lo": ("127.0.0.1/8",),
        "bond0": ("10.0.0.5/24",),
        "bond0.100": ("10.1.0.5/24",),
        "ibp24s0": ("192.168.1.5/24",),
    }
    assert (netdevs["eno2"].up, netdevs["eno2"].link_detected, netdevs["eno2"].mtu) == (False, False, 1500)
    kinds = {name: netdev.kind for name, netdev in netdevs.items()}
    assert kinds | {"ens1f0np0": None, "eno2": None} == {
        "lo": "loopback",
        "ens1f0np0": None,
        "eno2": None,
        "bond0": "bond",
        "bond0.100": "vlan",
        "ibp24s0": "ipoib",
    }
    assert netdevs["ens1f0np0"].mac == "b8:ce:f6:00:00:01"


def test_ip_of_one_line_an_address_is_read() -> None:
    text = (
        "2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever\n"
        "2: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP \\    link/ether b8:ce:f6:00:00:01 brd ff:ff:ff:ff:ff:ff\n"
    )
    (eth0,) = read(("ip -o addr", text)).netdevs
    assert (eth0.addresses, eth0.mtu, eth0.mac) == (("10.0.0.5/24",), 1500, "b8:ce:f6:00:00:01")
    (alone,) = read(("ip -o -4 addr", text.splitlines(keepends=True)[0])).netdevs
    assert (alone.addresses, alone.up) == (("10.0.0.5/24",), None)


def test_brief_ip_is_read() -> None:
    text = "lo   UNKNOWN   127.0.0.1/8 ::1/128\neth0@if7   UP   10.0.0.5/24 fe80::1/64\nens2   DOWN\n"
    lo, eth0, ens2 = read(("ip -br addr", text)).netdevs
    assert (lo.name, lo.up) == ("lo", None)
    assert (eth0.name, eth0.up, eth0.addresses) == ("eth0", True, ("10.0.0.5/24",))
    assert (ens2.name, ens2.up, ens2.addresses) == ("ens2", False, ())


def test_routes_of_the_text_are_those_of_the_json() -> None:
    text = (
        "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.5 metric 100 \n"
        "default via 10.1.0.1 dev eth1 metric 50\n"
        "10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.5 metric 100 \n"
        "10.20.0.0/16 via 10.0.0.254 dev ens6 \n"
        "unreachable 10.30.0.0/16\n"
    )
    host = read(("ip route show", text))
    assert host.default_route_netdev == "eth1"
    assert [(route.prefix, route.netdev) for route in host.routes] == [
        ("10.0.0.0/24", "eth0"),
        ("10.20.0.0/16", "ens6"),
    ]


def test_ifconfig_of_net_tools_1_is_read() -> None:
    text = """\
eth0      Link encap:Ethernet  HWaddr 00:25:90:AA:BB:CC
          inet addr:10.0.0.5  Bcast:10.0.0.255  Mask:255.255.255.0
          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1

ib0       Link encap:UNSPEC  HWaddr 80-00-00-02-FE-80-00-00-00-00-00-00-00-00-00-00
          inet addr:192.168.1.5  Bcast:192.168.1.255  Mask:255.255.255.0
          UP BROADCAST MULTICAST  MTU:2044  Metric:1
"""
    eth0, ib0 = read(("/sbin/ifconfig -a", text)).netdevs
    assert (eth0.addresses, eth0.mtu, eth0.up, eth0.kind) == (("10.0.0.5/24",), 1500, True, None)
    assert (ib0.addresses, ib0.mtu, ib0.up, ib0.kind) == (("192.168.1.5/24",), 2044, False, "ipoib")


def test_interfaces_of_unknown_software_are_virtual() -> None:
    text = """[ {
        "ifname": "wg0", "flags": [ "UP" ], "mtu": 1420, "link_type": "none",
        "linkinfo": { "info_kind": "wireguard" }, "addr_info": [ ]
    } ]"""
    assert [netdev.kind for netdev in read(("ip -j -p -d addr", text)).netdevs] == ["virtual"]


def test_firmware_is_the_version_alone() -> None:
    firmware = {
        "enp1s0f0": "227.0.131.0/pkg 227.1.111.0",
        "ens2": "22.43.1014 (MT_0000000359)",
        "eno1": "9.20 0x8000d8c5 22.5.7",
        "eth0": "N/A",
        "ens3": "",
    }
    outputs = [
        (f"ethtool -i {name}", f"driver: x\nfirmware-version: {text}\nbus-info: \n") for name, text in firmware.items()
    ]
    assert {netdev.name: netdev.firmware for netdev in read(*outputs).netdevs} == {
        "enp1s0f0": "227.0.131.0",
        "ens2": "22.43.1014",
        "eno1": "9.20",
        "eth0": None,
        "ens3": None,
    }


def test_speeds_from_one_to_four_hundred_gigabit_and_unknown() -> None:
    speeds = {"eno1": "1000Mb/s", "ens1": "25000Mb/s", "ens2": "400000Mb/s", "ens3": "Unknown!"}
    outputs = [
        (f"ethtool {name}", f"Settings for {name}:\n\tSpeed: {speed}\n\tLink detected: yes\n")
        for name, speed in speeds.items()
    ]
    assert [netdev.speed_bytes_per_s for netdev in read(*outputs).netdevs] == [1.25e8, 3.125e9, 5e10, None]


def test_bond_is_read_from_cat_and_from_head() -> None:
    text = "Bonding Mode: fault-tolerance (active-backup)\nMII Status: up\n\nSlave Interface: ens1\nMII Status: up\n"
    for tool in ("cat", "head -20"):
        (bond,) = read((f"{tool} /proc/net/bonding/bond1", text)).netdevs
        assert [(slave.name, slave.mii_status) for slave in bond.bond_slaves or ()] == [("ens1", "up")]


def test_speeds_that_disagree_are_told_in_the_unit_of_the_tools() -> None:
    settings = "Settings for eth0:\n\tSpeed: 25000Mb/s\n\tLink detected: yes\n"
    (conflict,) = read(("ethtool eth0", settings), ("grep -Hs . x", "/sys/class/net/eth0/speed:10000\n")).conflicts
    assert (conflict.subject, conflict.fact) == ("eth0", "speed_mbps")
    assert (conflict.source_a, conflict.value_a) == ("ethtool", "25000.0")
    assert (conflict.source_b, conflict.value_b) == ("sysfs", "10000.0")
