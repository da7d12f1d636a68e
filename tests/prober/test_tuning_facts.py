"""Facts on what holds a sound machine back: control groups, clocks, congestion control, bit errors, product data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holmes_core.records.inventory import Host
from prober.asking.recording import HostNotes, Recorded
from prober.facts.machine.kernel_log import LOG
from prober.read_host import read_host

IB = "/sys/class/infiniband"


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


def files(text: str) -> Host:
    return read(("grep -Hs . /sys /proc", text))


def test_the_least_limit_of_the_own_group_and_those_above_counts() -> None:
    host = files(
        "/sys/fs/cgroup/user.slice/user-1000.slice/memory.max:68719476736\n/sys/fs/cgroup/user.slice/memory.max:max\n"
        "/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max:max 100000\n"
        "/sys/fs/cgroup/user.slice/cpu.max:1600000 100000\n"
    )
    assert (host.memory_limit_bytes, host.cpu_limit) == (2**36, 16.0)


def test_the_first_version_of_control_groups_writes_a_large_number_and_minus_one_for_none() -> None:
    host = files(
        "/sys/fs/cgroup/memory/memory.limit_in_bytes:9223372036854771712\n"
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us:-1\n/sys/fs/cgroup/cpu/cpu.cfs_period_us:100000\n"
    )
    assert (host.memory_limit_bytes, host.cpu_limit) == (None, None)


def test_clocks_balancing_and_connection_tracking_are_read() -> None:
    cpu = "/sys/devices/system/cpu/cpu0/cpufreq"
    host = files(
        f"{cpu}/scaling_governor:powersave\n{cpu}/scaling_driver:acpi-cpufreq\n/proc/sys/kernel/numa_balancing:1\n"
        "/proc/sys/net/netfilter/nf_conntrack_count:250000\n/proc/sys/net/netfilter/nf_conntrack_max:262144\n"
    )
    assert (host.cpu_governor, host.cpu_frequency_driver, host.numa_balancing) == ("powersave", "acpi-cpufreq", True)
    assert host.conntrack_share == pytest.approx(0.954, abs=0.001)


@pytest.mark.parametrize(
    ("command", "text", "found"),
    [
        ("iptables -S INPUT", "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", "iptables: -P INPUT DROP"),
        (
            "iptables -S INPUT",
            "-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited\n",
            "iptables: -A",
        ),
        ("iptables -S INPUT", "-P INPUT ACCEPT\n-A INPUT -s 10.0.0.7/32 -j DROP\n", None),
        ("systemctl is-active firewalld", "active\n", "firewalld"),
        ("systemctl is-active firewalld", "inactive\n", None),
    ],
)
def test_a_filter_counts_where_it_drops_what_it_does_not_know(command: str, text: str, found: str | None) -> None:
    seen = read((command, text)).packet_filter
    assert seen is None if found is None else seen is not None and seen.startswith(found)


def test_ecn_counts_where_both_ends_of_a_flow_have_it() -> None:
    ecn = "/sys/class/net/eth2/ecn"
    host = files(
        f"/sys/class/net/eth2/mtu:9000\n{ecn}/roce_np/enable/3:1\n{ecn}/roce_rp/enable/3:1\n"
        f"{ecn}/roce_np/enable/5:1\n{ecn}/roce_rp/enable/5:0\n/sys/class/net/eth3/mtu:9000\n"
    )
    assert {netdev.name: netdev.ecn_priorities for netdev in host.netdevs} == {"eth2": (3,), "eth3": None}


def test_the_traffic_class_that_a_device_gives_all_packets_is_read() -> None:
    (nic,) = files(f"{IB}/mlx5_0/tc/1/traffic_class:Global tclass=106\n{IB}/mlx5_0/ports/1/state:4: ACTIVE\n").nics
    assert nic.traffic_class == 106


def test_bit_errors_and_error_correction_of_mlxlink_are_read() -> None:
    text = (
        "State                           : Active\nPhysical state                  : LinkUp\n"
        "Speed                           : IB-NDR\nWidth                           : 4x\n"
        "FEC                             : Standard_RS-FEC - (544,514)\n\nPhysical Counters and BER Info\n"
        "Effective Physical BER          : 2E-9\nRaw Physical BER                : 3E-6\n"
    )
    (nic,) = read(("mlxlink -d mlx5_0 -c", text)).nics
    assert (nic.rate_gbps, nic.effective_ber, nic.raw_ber) == (400, 2e-9, 3e-6)
    assert nic.fec == "Standard_RS-FEC - (544,514)"


def test_product_data_tell_the_bridge_to_the_switches_wherever_they_were_read() -> None:
    port = "\n".join(f"{IB}/mlx5_8/ports/1/{name}" for name in ("link_layer:InfiniBand", "state:4: ACTIVE"))
    by_file = read(("grep -r . /sys", f"{port}\n"), ('grep -lsa SW_MNG "$d/device/vpd"', f"{IB}/mlx5_8/device/vpd\n"))
    lspci = (
        "0000:05:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]\n"
        "\tCapabilities: [48] Vital Product Data\n\t\t\t[VA] Vendor specific: MLX:MN=MLNX:CSKU=V2:UUID=V3:SMDL=SW_MNG\n"
    )
    link = ("ls -l /sys/class/infiniband", "mlx5_8 -> ../../devices/pci0000:00/0000:05:00.0/infiniband/mlx5_8\n")
    by_lspci = read(("grep -r . /sys", f"{port}\n"), ("lspci -Dvvv", lspci), link)
    for host in (by_file, by_lspci):
        assert [(nic.nvlink_management, nic.usable_by_nccl_ib) for nic in host.nics] == [(True, False)]


def test_relaxed_ordering_is_read_off_the_control_register() -> None:
    host = read(("lspci -Dvvv", "0000:05:00.0 Ethernet controller: Mellanox X\n\t\t\tRlxdOrd- ExtTag+ PhantFunc-\n"))
    assert [device.relaxed_ordering for device in host.pci] == [False]


def test_lines_of_the_kernel_log_that_are_no_faults_are_left_out() -> None:
    faults = [
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
        "pcieport 0000:64:01.0: AER: Multiple Corrected error received: 0000:65:00.0",
        "mlx5_core 0000:9c:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded",
    ]
    others = ["pcieport 0000:64:01.0: AER: enabled with IRQ 33", "mlx5_core 0000:9c:00.0: firmware version: 28.1"]
    assert read((LOG.shell, "\n".join((*faults, *others, "")))).warnings == tuple(faults)


def test_a_flood_of_corrected_errors_hides_no_fault(tmp_path: Path) -> None:
    xid = "NVRM: Xid (PCI:0000:31:00): 79, pid=1, GPU has fallen off the bus."
    flood = [f"[{at}.0] pcieport 0000:64:01.0: AER: Corrected error received: 0000:65:00.0" for at in range(2500)]
    assert read((LOG.shell, "\n".join((xid, *flood, "")))).warnings[0] == xid
    (tmp_path / "log").write_text("\n".join((xid, *flood, "")), encoding="utf-8")
    shell = LOG.shell.replace("dmesg |", f"cat {tmp_path / 'log'} |", 1)
    answer = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert (answer[0], len(answer)) == (xid, 1001)


def test_lines_before_the_last_boot_are_no_faults() -> None:
    old = "kernel: NVRM: Xid (PCI:0000:31:00): 79, pid=1, GPU has fallen off the bus."
    new = "kernel: NVRM: Xid (PCI:0000:41:00): 63, pid=2, Row Remapper"
    for mark in ("-- Reboot --", "-- Boot 0123456789abcdef0123456789abcdef --"):
        assert read(("journalctl -k", "\n".join((old, mark, new, "")))).warnings == (new,)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband/mlx5_0\n",
            "no driver",
        ),
        ("0 HCAs found:\n", "finds no device"),
        ("No IB devices found\n", "finds no device"),
        ("Failed to get IB devices list: Function not implemented\n", "finds no device"),
        ("    device          \t   node GUID\n    ------          \t----------------\n", "finds no device"),
    ],
)
def test_a_port_that_the_verbs_library_does_not_open_is_not_usable(text: str, why: str) -> None:
    kernel = ("rdma link show", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1 \n")
    asked = "ibv_devices" if "node GUID" in text else "ibv_devinfo"
    (nic,) = (nic for nic in read(kernel, (asked, text)).nics if nic.device == "mlx5_0")
    assert (nic.usable_by_nccl_ib, why in nic.why) == (False, True)
    (other,) = (nic for nic in read(kernel, ("ibv_devinfo -d mlx5_1", text)).nics if nic.device == "mlx5_0")
    assert other.usable_by_nccl_ib is (why != "no driver")


def test_a_driver_missing_for_another_card_says_nothing_of_one_that_is_listed() -> None:
    text = "libibverbs: Warning: couldn't load driver 'libipathverbs-rdmav25.so'\nhca_id: mlx5_0\n\tport: 1\n"
    kernel = ("rdma link show", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1 \n")
    assert [nic.usable_by_nccl_ib for nic in read(kernel, ("ibv_devinfo", text)).nics] == [True]


def test_a_device_that_the_library_lists_is_usable_whatever_another_one_lacks() -> None:
    head = "    device          \t   node GUID\n    ------          \t----------------\n"
    table = f"{head}    mlx5_0          \t9c63c00300554800\n"
    kernel = ("rdma link show", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1 \n")
    assert [nic.usable_by_nccl_ib for nic in read(kernel, ("ibv_devices", table)).nics] == [True]
