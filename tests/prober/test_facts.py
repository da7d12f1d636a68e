"""Parsers of single tools, on outputs that the recorded machines do not show."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.access import Access
from holmes_core.records.inventory import Host
from prober.asking.commands import Command, cut, script
from prober.asking.recording import CUT_OFF, HostNotes, Recorded
from prober.facts.gpu.gpu_query import parse_query
from prober.facts.machine.software import software_command
from prober.facts.netdev import ip_routes, ip_tool
from prober.findings.tool_findings import tool_findings
from prober.read_host import commands, read_host


def read(*outputs: Recorded, **pinned: float) -> Host:
    return read_host("host", outputs, HostNotes(speeds_gbps=pinned))


def output(command: str, text: str, exit_code: int | None = 0) -> Recorded:
    return Recorded(command, text, exit_code)


@given(text=st.text(max_size=400), command=st.sampled_from([command.shell for command in commands(Access())]))
def test_no_tool_s_foreign_output_crashes_the_reading(text: str, command: str) -> None:
    read(output(command, text, 1), output(command, text, None))
    tool_findings("host", (output(command, text, 1),))


def test_devices_are_ordered_by_number_not_as_text() -> None:
    lines = "".join(f"mlx5_{number} port 1 ==> ib{number} (Up)\n" for number in (10, 2, 0))
    assert [nic.device for nic in read(output("ibdev2netdev", lines)).nics] == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_first_source_wins_and_the_conflict_is_kept() -> None:
    sysfs = "/sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE\n"
    ibstat = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tRate: 200\n\t\tLink layer: InfiniBand\n"
    host = read(output("grep -Hs . /sys/class/infiniband/*", sysfs), output("ibstat", ibstat))
    (nic,), (conflict,) = host.nics, host.conflicts
    assert (nic.state, nic.rate_gbps, nic.kind) == ("Active", 200, "InfiniBand")
    assert (conflict.subject, conflict.fact, conflict.value_a, conflict.value_b) == (
        "mlx5_0:1",
        "state",
        "Active",
        "Down",
    )


def test_a_rate_that_may_be_cut_is_not_known() -> None:
    (nic,) = read(output("ibstat", "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 40")).nics
    assert nic.rate_gbps is None


def test_rdma_json_and_text_say_the_same() -> None:
    text = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens6 netdev_index 3 \n"
    json = '[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"ens6"}]'
    assert read(output("rdma link", text)).nics == read(output("rdma -j link show", json)).nics


def test_iwarp_is_told_by_its_protocol() -> None:
    text = "0: irdma0: node_type rnic protocol iw fw 1.0 \n"
    link = "link irdma0/1 state ACTIVE physical_state LINK_UP netdev ens1 \n"
    (nic,) = read(output("rdma dev", text), output("rdma link", link)).nics
    assert (nic.kind, nic.usable_by_nccl_ib) == ("iWARP", False)


def test_omni_path_is_no_infiniband() -> None:
    text = "Infiniband device 'hfi1_0' port 1 status:\n\tstate:\t4: ACTIVE\n\tlink_layer:\tInfiniBand\n"
    (nic,) = read(output("ibstatus", text)).nics
    assert (nic.kind, nic.usable_by_nccl_ib) == ("Omni-Path", True)


def test_a_virtual_function_is_told_by_its_link_in_sysfs() -> None:
    sysfs = "/sys/class/infiniband/mlx5_7/ports/1/state:4: ACTIVE\n"
    links = "lrwxrwxrwx 1 root root 0 Jan 1 00:00 /sys/class/infiniband/mlx5_7/device/physfn -> ../0000:1a:00.0\n"
    (nic,) = read(
        output("grep -r . /sys/class/infiniband/", sysfs), output("ls -ld /sys/class/infiniband/*", links)
    ).nics
    assert nic.virtual_function is True


def test_gpu_rows_are_read_and_warnings_left_out() -> None:
    text = "WARNING: infoROM is corrupted\n0, NVIDIA L40S, GPU-0, 46068, 00000000:01:00.0\n1, X, [N/A], [N/A], [N/A]\n"
    query = "nvidia-smi --query-gpu=index,name,uuid,memory.total,pci.bus_id --format=csv,noheader,nounits"
    first, second = parse_query(output(query, text))
    assert (first.name, first.memory_bytes, first.pci_address) == ("NVIDIA L40S", 46068 * 1024**2, "0000:01:00.0")
    assert (second.uuid, second.memory_bytes, second.pci_address) == (None, None, None)


def test_a_field_the_driver_does_not_know_is_no_failure() -> None:
    refused = output(
        "nvidia-smi --query-gpu=nonsense --format=csv", 'Field "nonsense" is not a valid field to query.\n', 2
    )
    answered = output("nvidia-smi --query-gpu=index,name --format=csv", "index, name\n0, NVIDIA L40S\n")
    host = read(refused, answered)
    assert ([gpu.name for gpu in host.gpus], host.nvidia_smi_failure) == (["NVIDIA L40S"], None)


def test_gpus_of_lspci_do_not_stand_in_for_a_failing_nvidia_smi() -> None:
    lspci = output("lspci -nn", "06:00.0 3D controller [0302]: NVIDIA Corporation GA102GL [A10] [10de:2236] (rev a1)\n")
    missing = output("nvidia-smi -L", "sh: nvidia-smi: not found\n", 127)
    host = read(lspci, missing)
    assert (host.gpus, host.gpu_count_lspci) == ((), 1)


def test_routes_leave_out_the_default_and_what_is_no_prefix() -> None:
    text = """[{"dst":"default","dev":"eth0"},{"dst":"10.20.0.0/16","dev":"ens6"},{"dst":"10.9.0.5","dev":"eth0"},
    {"dst":"unreachable","dev":"eth0"},{"dst":"10.20.0.0/16"}]"""
    routes = ip_routes.parse_routes([Recorded("ip -j route show", text, 0)])
    assert [(route.prefix, route.netdev) for route in routes] == [("10.20.0.0/16", "ens6"), ("10.9.0.5", "eth0")]


IP_ADDR = """[{"ifname":"lo","flags":["LOOPBACK","UP"],"mtu":65536,"addr_info":[{"family":"inet","local":"127.0.0.1",
"prefixlen":8}]},{"ifname":"eth0","flags":["UP","LOWER_UP"],"mtu":1500,"addr_info":[{"family":"inet6","local":"fe80::1",
"prefixlen":64},{"family":"inet","local":"10.9.0.1","prefixlen":24}]},{"ifname":"eth1","flags":["NO-CARRIER","UP"]}]"""


def test_netdevs_have_ipv4_addresses_and_the_pinned_speed_wins() -> None:
    speed = output("ethtool eth0", "Settings for eth0:\n\tSpeed: 10000Mb/s\n\tLink detected: yes\n")
    lo, eth0, eth1 = read(output("ip -j addr show", IP_ADDR), speed, eth0=25.0).netdevs
    assert (lo.addresses, lo.speed_bytes_per_s) == (("127.0.0.1/8",), None)
    assert (eth0.addresses, eth0.speed_bytes_per_s, eth0.up) == (("10.9.0.1/24",), 3.125e9, True)
    assert eth1.up is False


def test_interfaces_of_another_network_namespace_are_not_the_host_s() -> None:
    sysfs = output("grep -Hs . /sys/class/net/*/mtu", "/sys/class/net/eth9/mtu:1500\n/sys/class/net/eth0/mtu:1500\n")
    assert [netdev.name for netdev in read(output("ip -j addr show", IP_ADDR), sysfs).netdevs] == ["lo", "eth0", "eth1"]


def test_bond_slaves_have_their_mii_status() -> None:
    lines = ("Bonding Mode: 802.3ad", "MII Status: up", "Slave Interface: ens1", "MII Status: down")
    text = "".join(f"/proc/net/bonding/bond0:{line}\n" for line in lines)
    (bond,) = read(output("grep -Hs . /proc/net/bonding/*", text)).netdevs
    assert bond.kind == "bond"
    assert [(slave.name, slave.mii_status) for slave in bond.bond_slaves or ()] == [("ens1", "down")]


def test_limits_are_bytes_and_unlimited_is_minus_one() -> None:
    host = read(output("ulimit -l", "unlimited\n"), output("ulimit -n", "1024\n"))
    assert (host.memlock_bytes, host.nofile) == (-1, 1024)
    assert read(output("ulimit -l", "64\n")).memlock_bytes == 65536
    listed = "max locked memory       (kbytes, -l) 64\nopen files                      (-n) 1024\n"
    assert (read(output("ulimit -a", listed)).memlock_bytes, read(output("ulimit -a", listed)).nofile) == (65536, 1024)


def test_shared_memory_is_read_in_every_unit() -> None:
    head = "Filesystem 1K-blocks Used Available Use% Mounted on\n"
    assert read(output("df -kP /dev/shm", head + "shm 65536 0 65536 0% /dev/shm\n")).shm_bytes == 64 * 1024**2
    assert read(output("df -h /dev/shm", head + "tmpfs 1.5G 0 1.5G 0% /dev/shm\n")).shm_bytes == 1536 * 1024**2


def test_name_and_kernel_of_single_questions() -> None:
    host = read(output("hostname -s", "node1\n"), output("uname -r", "5.15.0-91-generic\n"))
    assert (host.hostname, host.kernel) == ("node1", "5.15.0-91-generic")


def test_files_of_a_braced_cat_are_told_apart() -> None:
    command = "cat /sys/class/infiniband/mlx5_0/ports/1/{rate,state,link_layer}"
    (nic,) = read(output(command, "400 Gb/sec (4X NDR)\n4: ACTIVE\nInfiniBand\n")).nics
    assert (nic.rate_gbps, nic.state, nic.kind) == (400, "Active", "InfiniBand")


def test_a_service_is_read_from_is_active_and_from_status() -> None:
    for command, text in (("is-active", "failed\n"), ("status", "x.service\n   Active: failed (Result: exit)\n")):
        assert read(output(f"systemctl {command} nvidia-fabricmanager", text, 3)).fabric_manager == "failed"


def test_nccl_settings_name_where_they_stand() -> None:
    host = read(
        output("env | grep '^NCCL_'", "NCCL_IB_HCA==mlx5_0\n"),
        output("grep -Hs . /etc/nccl.conf", "/etc/nccl.conf:NCCL_SOCKET_IFNAME==ens1f0\n/etc/nccl.conf:# a word\n"),
    )
    assert [(found.where, found.name, found.value) for found in host.nccl_settings] == [
        ("environment", "NCCL_IB_HCA", "=mlx5_0"),
        ("/etc/nccl.conf", "NCCL_SOCKET_IFNAME", "=ens1f0"),
    ]


def test_software_without_torch_is_known_to_lack_it() -> None:
    assert read(output("python3 -c 'print()'", "python 3.11.7\n")).software.torch is None
    assert read(output("python3 -c 'print()'", "python 3.11.7\ntorch 2.13.0+cpu\n")).software.torch == "2.13.0+cpu"
    assert read().software.python is None


FAKE_PYTHON = "#!/bin/sh\nprintf 'python 3.9.9\\ntorch %s\\n' \"$WHERE\"\n"
FAKE_DOCKER = '#!/bin/sh\nwhile [ "$1" != \'my image\' ]; do shift; done\nshift\nWHERE="$WHERE.image" exec "$@"\n'


@pytest.mark.parametrize("engine", [None, "docker", "apptainer"])
@pytest.mark.parametrize("activated", [False, True])
def test_versions_are_read_where_the_ranks_will_run(tmp_path: Path, engine: str | None, activated: bool) -> None:
    for name, text in (("python3", FAKE_PYTHON), ("docker", FAKE_DOCKER), ("apptainer", FAKE_DOCKER)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    use_fakes = f"export WHERE=shell PATH={tmp_path}:$PATH"
    container = {"engine": engine, "image": "my image", "options": ["--volume", "/a b:/c"]}
    activate = f"{use_fakes} WHERE=activated"
    access = Access.model_validate(
        {"activate": activate if activated else None, "container": container if engine else None}
    )
    asked = f"{use_fakes}\n{script([software_command(access)], '@@t')}"
    answer = subprocess.run(["/bin/sh"], input=asked, capture_output=True, text=True, check=True).stdout
    expected = ("activated" if activated else "shell") + (".image" if engine else "")
    assert read(*cut(answer, "@@t")).software.torch == expected


def test_answer_is_cut_where_the_script_marked_it() -> None:
    answer = "@@t begin ls a\nline\n\n@@t end 0\n@@t begin b\nsh: no such tool\n\n@@t end 127\n@@t begin c\nhalf"
    whole, missing, half = cut("banner\n" + answer, "@@t")
    assert whole == Recorded("ls a", "line\n", 0)
    assert missing.tool_missing
    assert half == Recorded("c", "half", CUT_OFF)
    assert [finding.rule for finding in tool_findings("host", (half,))][-1] == "PROBE-TRUNCATED"


def test_script_runs_every_command_whatever_the_others_do() -> None:
    asked = (
        Command("exit 3"),
        Command("cat"),
        Command("echo out; echo err >&2"),
        Command("echo 'it''s' \"$n\"", each="/proc/self /no/such", skip="a* b*"),
        Command("echo never", when='[ "$code" != 0 ]'),
    )
    text = script(asked, "@@token")
    answer = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=True).stdout
    assert cut(answer, "@@token") == (
        Recorded("exit 3", "", 3),
        Recorded("cat", "", 0),
        Recorded("echo out; echo err >&2", "out\nerr\n", 0),
        Recorded("echo 'it''s' self", "its self\n", 0),
    )


def test_all_outputs_leave_the_host_in_one_piece() -> None:
    """Over SSH each piece is a packet. A socket that keeps pieces apart shows them."""
    text = script((Command("echo one"), Command("echo two")), "@@t")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        subprocess.run(["sh", "-s"], input=text.encode(), stdout=theirs.fileno(), check=True)
        theirs.close()
        answer, rest = ours.recv(65536).decode(), ours.recv(65536)
    assert [found.text for found in cut(answer, "@@t")] == ["one\n", "two\n"]
    assert rest == b""


def test_a_host_without_dd_answers_all_the_same() -> None:
    text = "dd() { return 127; }\n" + script((Command("echo one"),), "@@t")
    answer = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=True).stdout
    assert cut(answer, "@@t") == (Recorded("echo one", "one\n", 0),)


def test_a_command_waits_for_its_time_since_the_first_one() -> None:
    """A clock of its own, which `sleep` sets forward: the script began at 100 s."""
    clock = 'now=100; date() { echo "$now"; }; sleep() { now=$((now + $1)); }\n'
    waits = script([Command("date", after_s=after_s) for after_s in (None, 7, 7, 9)], "@@t")
    answer = subprocess.run(["sh", "-s"], input=clock + waits, capture_output=True, text=True, check=True).stdout
    assert [found.text for found in cut(answer, "@@t")] == ["100\n", "107\n", "107\n", "109\n"]


def test_a_tool_that_hangs_at_one_device_is_not_asked_about_the_next() -> None:
    text = script((Command('echo "$n"; exit 124', each="/proc/self /proc/1"),), "@@t")
    answer = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=True).stdout
    assert [found.text for found in cut(answer, "@@t")] == ["self\n"]


def counters(port: str, **values: int) -> str:
    return "".join(f"/sys/class/infiniband/{port}/counters/{name}:{value}\n" for name, value in values.items())


def test_counters_grow_between_the_first_reading_and_the_last() -> None:
    one, two = "mlx5_0/ports/1", "mlx5_1/ports/1"
    first = counters(one, link_downed=2, symbol_error=5) + counters(two, link_downed=7)
    last = counters(one, link_downed=3, symbol_error=5) + counters(two, link_downed=0)
    read_counters = "grep -Hs . /sys/class/infiniband/*/ports/*/counters/link_downed"
    host = read(
        output("date +%s.%N", "1700000000.250000000\n"),
        output(read_counters, first),
        output(read_counters, last),
        output("date +%s.%N", "1700000010.450000000\n"),
    )
    assert [nic.counter_growth for nic in host.nics] == [(("link_downed", 1),), ()]
    assert host.counter_interval_s == 10.2
    once = read(output(read_counters, first))
    assert ([nic.counter_growth for nic in once.nics], once.counter_interval_s) == ([None, None], None)


def test_what_only_root_may_read_is_told_once() -> None:
    lspci = output("lspci -vvv", "19:00.0 PCI bridge: PLX\n\tCapabilities: <access denied>\n" * 3)
    kernel_log = output("dmesg | grep Xid", "dmesg: read kernel buffer failed: Operation not permitted\n", 1)
    (finding,) = tool_findings("host", (lspci, kernel_log))
    assert (finding.rule, finding.severity) == ("PROBE-NO-PERMISSION", "I")
    assert finding.evidence == (
        "dmesg: dmesg: read kernel buffer failed: Operation not permitted; lspci: Capabilities: <access denied>"
    )
    assert tool_findings("host", (output("lspci -vvv", "19:00.0 PCI bridge: PLX\n"),)) == []


def tool_faults(*outputs: Recorded) -> list[str]:
    return [finding.rule for finding in tool_findings("host", outputs)]


IBSTAT_PORT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n"


def test_a_block_without_its_closing_field_is_told_as_cut_off() -> None:
    whole = IBSTAT_PORT + "\t\tLink layer: InfiniBand\n"
    assert tool_faults(output("ibstat", whole + IBSTAT_PORT)) == ["PROBE-TRUNCATED"]
    assert tool_faults(output("ibstat", IBSTAT_PORT.rstrip("\n"))) == ["PROBE-TRUNCATED"]
    assert tool_faults(output("ibstat", whole + whole)) == []
    assert tool_faults(output("ibstat", IBSTAT_PORT)) == [], "ibstat of OFED 1.4 prints no link layer"


def test_a_port_without_its_device_belongs_to_nobody_and_is_told() -> None:
    text = "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tEthernet\n"
    nameless = output("ibv_devinfo -v", text)
    assert read(nameless).nics == ()
    assert tool_faults(nameless) == ["PROBE-TRUNCATED"]
    assert [nic.device for nic in read(output("ibv_devinfo -d mlx5_3", text)).nics] == ["mlx5_3"]
    assert tool_faults(output("ibv_devinfo -d mlx5_3", text)) == []


def test_ip_that_knows_no_json_is_no_failure() -> None:
    assert tool_faults(output("ip -j addr show", 'Option "-j" is unknown, try "ip -help".\n', 255)) == []
    assert tool_faults(output("ip -j addr show", "Cannot open netlink socket\n", 1)) == ["PROBE-TOOL-FAILED"]


ALL_TABLES = """[{"dst":"default","gateway":"10.9.0.254","dev":"bond0"},
{"dst":"default","gateway":"10.1.0.1","dev":"eth0","table":"101"},
{"dst":"10.2.0.0/16","dev":"eth1","table":"rail1"},{"dst":"10.3.0.0/16","dev":"eth2","table":"old"},
{"type":"local","dst":"10.1.0.5","dev":"eth0","table":"local"},
{"dst":"10.4.0.0/16","nexthops":[{"dev":"eth0"},{"dev":"eth1"}]},
{"dst":"default","gateway":"fe80::1","dev":"bond1","metric":0,"pref":"medium"},
{"dst":"fd00:1::/64","dev":"eth0","pref":"medium"},{"dst":"fe80::/64","dev":"eth0","pref":"medium"}]"""
RULE_LIST = """[{"priority":0,"src":"all","table":"local"},{"priority":100,"src":"10.1.0.5","table":"101"},
{"priority":101,"src":"10.2.0.5","table":"rail1"},{"priority":32766,"src":"all","table":"main"}]"""


def test_routes_of_tables_that_a_rule_names_are_read_and_those_of_other_tables_are_not() -> None:
    asked = [
        Recorded("ip -j route show table all", ALL_TABLES, 0),
        Recorded("ip -j rule show", RULE_LIST, 0),
    ]
    found = [(route.prefix, route.netdev, route.table) for route in ip_routes.parse_routes(asked)]
    assert found == [
        ("0.0.0.0/0", "eth0", "101"),
        ("10.2.0.0/16", "eth1", "rail1"),
        ("10.4.0.0/16", "eth0", None),
        ("10.4.0.0/16", "eth1", None),
        ("fd00:1::/64", "eth0", None),
    ]
    assert ip_routes.parse_default_route(asked) == "bond0"
    assert "old" in {route.table for route in ip_routes.parse_routes(asked[:1])}


def test_routes_and_rules_as_text_say_the_same_as_the_json() -> None:
    routes = """default via 10.9.0.254 dev bond0 proto dhcp metric 100
default via 10.1.0.1 dev eth0 table 101
10.2.0.0/16 via 10.2.0.1 dev eth1 table rail1
10.4.0.0/16 proto bgp metric 20
\tnexthop via 10.1.0.1 dev eth0 weight 1
\tnexthop via 10.2.0.1 dev eth1 weight 1
local 10.1.0.5 dev eth0 table local proto kernel scope host src 10.1.0.5
unreachable 10.66.0.0/16 dev lo
default via fe80::1 dev bond1 proto ra metric 50 pref medium
"""
    rules = "0:\tfrom all lookup local\n100:\tfrom 10.1.0.5 lookup 101\n101:\tfrom 10.2.0.5 lookup rail1\n"
    asked = [Recorded("ip route show table all", routes, 0), Recorded("ip rule show", rules, 0)]
    assert [(route.prefix, route.netdev, route.table) for route in ip_routes.parse_routes(asked)] == [
        ("0.0.0.0/0", "eth0", "101"),
        ("10.2.0.0/16", "eth1", "rail1"),
        ("10.4.0.0/16", "eth0", None),
        ("10.4.0.0/16", "eth1", None),
    ]
    assert ip_routes.parse_default_route(asked) == "bond0"


def test_tables_count_where_a_rule_leaves_the_choice_to_vrfs() -> None:
    routes = Recorded("ip -j route show table all", '[{"dst":"10.0.0.0/8","dev":"eth1","table":"1001"}]', 0)
    rules = Recorded("ip rule show", "1000:\tfrom all lookup [l3mdev-table]\n0:\tfrom all lookup local\n", 0)
    assert [route.table for route in ip_routes.parse_routes([routes, rules])] == ["1001"]


def test_an_ipv6_address_that_is_called_inet_is_no_address() -> None:
    text = "2: ens6: <BROADCAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP\n    inet fe80::1/64 scope global ens6\n"
    (netdev,) = ip_tool.parse_ip(Recorded("ip addr show", text, 0))
    assert (netdev.addresses, netdev.ipv6_addresses) == ((), ())


def test_netdevs_say_what_they_are_made_on_and_part_of() -> None:
    text = """2: eth2: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP mode DEFAULT
    link/ether b8:3f:d2:00:00:02 brd ff:ff:ff:ff:ff:ff
7: eth2.200@eth2: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default
    inet 10.1.2.5/24 brd 10.1.2.255 scope global eth2.200
9: net1@if5: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default
"""
    found = {netdev.name: (netdev.parent, netdev.master) for netdev in ip_tool.parse_ip(Recorded("ip addr", text, 0))}
    assert found == {"eth2": (None, "bond0"), "eth2.200": ("eth2", None), "net1": (None, None)}
    (entry,) = ip_tool.parse_ip(Recorded("ip -j addr", '[{"ifname":"v","link":"eth2","master":"vrf1","flags":[]}]', 0))
    assert (entry.parent, entry.master) == ("eth2", "vrf1")


def test_a_roce_port_without_netdev_and_gid_is_of_another_namespace_where_netdevs_are_known() -> None:
    def usable(*outputs: Recorded) -> bool | None:
        return read_host("h", outputs, HostNotes()).nics[0].usable_by_nccl_ib

    tree = "".join(
        f"/sys/class/infiniband/mlx5_0/{file}:{value}\n"
        for file, value in (
            ("node_type", "1: CA"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)"),
        )
    )
    sysfs = Recorded("grep -Hs . /sys/class/infiniband/*/node_type", tree, 0)
    addresses = Recorded("ip -j addr show", '[{"ifname":"eth0","flags":["UP"],"addr_info":[]}]', 0)
    assert usable(sysfs) is True
    assert usable(sysfs, addresses) is False
