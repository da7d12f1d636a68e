"""The test bed itself: are its hosts, networks and tools what they claim, and does it leave nothing behind?"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.eventually import eventually
from tests.testbed.bed import Bed, BedUnavailable, missing_for_bed
from tests.testbed.bed_process import BedError
from tests.testbed.reaper import NAMESPACE_FOLDER, process_start_time

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent
HOSTS = ("a1", "a2", "b1", "b2")

# The receiver prints bits per second from the first byte to the last.
RECEIVER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
connection, _ = server.accept()
received, start = 0, None
while data := connection.recv(1 << 18):
    start = start or time.monotonic()
    received += len(data)
print(received * 8 / (time.monotonic() - start))
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=10) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""

# Sets a bed up, leaves a stranger's process in it, says what must be gone later, and waits to be killed.
OWNER = """
import subprocess, time
from tests.eventually import eventually
from tests.testbed.bed import Bed
with Bed() as bed:
    stray = subprocess.Popen(bed.on_host_command("b1", ["sleep", "600"]), start_new_session=True)
    pids = [pid for host in bed.hosts for pid in bed.pids(host.name)]
    print(bed.suffix, bed.folder, stray.pid, *pids, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def able_machine() -> None:
    if missing := missing_for_bed():
        pytest.skip(f"no test bed here, missing: {', '.join(missing)}")


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(fast_mbps=1000, slow_mbps=100) as bed:
        yield bed


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def ssh(bed: Bed, host: str, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return run(bed.controller_command(["ssh", "-F", str(bed.ssh_config), *options, host, command]))


def send(bed: Bed, sender: str, receiver: str, address: str, size_bytes: int) -> float:
    """Bits per second that `receiver` saw of `size_bytes` sent over one TCP connection."""
    command = bed.on_host_command(receiver, [sys.executable, "-S", "-c", RECEIVER, address])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        sent = run(bed.on_host_command(sender, [sys.executable, "-S", "-c", SENDER, address, str(size_bytes)]))
        if sent.returncode != 0:
            listening.kill()
        assert sent.returncode == 0, sent.stderr
        return float(listening.stdout.read())


def traces(suffix: str, folder: Path) -> list[str]:
    """What a bed has left on this machine: namespaces, its folder, processes whose command line names it."""
    left = [str(name) for name in NAMESPACE_FOLDER.iterdir() if suffix in name.name]
    left += [str(folder)] if folder.exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if suffix.encode() in command_line:
            left.append(f"process {process.name}")
    return left


@pytest.mark.parametrize("host", HOSTS)
def test_ssh_login_answers_with_the_hosts_own_name(bed: Bed, host: str) -> None:
    done = ssh(bed, host, "hostname")

    assert (done.returncode, done.stdout) == (0, f"{host}\n"), done.stderr


def test_unknown_host_key_is_refused(bed: Bed, tmp_path: Path) -> None:
    other_key = (bed.folder / "client_key.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"10.9.0.1 {other_key}")

    done = ssh(bed, "a1", "hostname", "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}")

    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_each_host_has_a_home_of_its_own(bed: Bed) -> None:
    done = ssh(bed, "b1", "pwd; echo $HOME; echo ~; cd /; python3 -c 'import os; print(os.path.expanduser(\"~\"))'")

    assert set(done.stdout.split()) == {str(bed.host("b1").home)}


def test_commands_by_ssh_and_without_find_the_same_tools(bed: Bed) -> None:
    command = "command -v ibstat ibdev2netdev nvidia-smi ethtool"
    expected = [str(bed.host("a2").tools / name) for name in ("ibstat", "ibdev2netdev", "nvidia-smi", "ethtool")]

    assert ssh(bed, "a2", command).stdout.split() == expected
    assert ssh(bed, "a2", f"bash -lc '{command}'").stdout.split() == expected
    assert run(bed.on_host_command("a2", ["bash", "-c", command])).stdout.split() == expected


def test_hosts_file_names_the_hosts_and_the_python(bed: Bed) -> None:
    content = yaml.safe_load(bed.hosts_yaml.read_text())

    assert content == {"ssh_config": str(bed.ssh_config), "python": sys.executable, "hosts": list(HOSTS)}


def test_infiniband_tools_tell_the_clusters_apart(bed: Bed) -> None:
    answers = {host: ssh(bed, host, "ibstat; ibdev2netdev").stdout for host in ("a2", "b2")}

    assert answers["a2"].count("Link layer: InfiniBand") == 1
    assert answers["a2"].endswith("mlx5_0 port 1 ==> ib0 (Up)\n")
    assert answers["b2"].count("Link layer: Ethernet") == 2
    assert answers["b2"].endswith("mlx5_0 port 1 ==> ens6 (Up)\n")


def test_nvidia_smi_selects_recorded_columns(bed: Bed) -> None:
    query = "nvidia-smi --query-gpu=name,memory.total,pci.bus_id"

    bare = ssh(bed, "a1", f"{query} --format=csv,noheader,nounits")
    full = ssh(bed, "a1", f"{query} --format=csv")

    assert bare.stdout == "NVIDIA L40S, 46068, 00000000:01:00.0\n"
    assert full.stdout == "name, memory.total [MiB], pci.bus_id\nNVIDIA L40S, 46068 MiB, 00000000:01:00.0\n"
    assert ssh(bed, "a1", "nvidia-smi -L").stdout.startswith("GPU 0: NVIDIA L40S (UUID: GPU-")


def test_nvidia_smi_refuses_a_field_it_has_not(bed: Bed) -> None:
    done = ssh(bed, "a1", "nvidia-smi --query-gpu=name,nonsense --format=csv,noheader,nounits")

    assert done.returncode == 2
    assert done.stdout.startswith('Field "nonsense" is not a valid field to query.')


def test_ethtool_tells_the_shaped_rate(bed: Bed) -> None:
    assert "Speed: 1000Mb/s" in ssh(bed, "b1", "ethtool ens6").stdout
    assert "Speed: 100Mb/s" in ssh(bed, "b1", "ethtool eno1").stdout
    missing = ssh(bed, "b1", "ethtool ib0")
    assert missing.returncode == 75
    assert "No such device" in missing.stderr


# How much less arrives depends on what else the machine does: at a load of 18 it was an eighth.
def test_fast_link_carries_no_more_than_its_rate(bed: Bed) -> None:
    rate = send(bed, "b1", "b2", bed.host("b2").fast_address, 40_000_000)

    assert 0 < rate <= 1.15e9


def test_slow_link_carries_no_more_than_its_rate_between_clusters(bed: Bed) -> None:
    rate = send(bed, "a1", "b1", bed.host("b1").slow_address, 8_000_000)

    assert 0 < rate <= 1.15e8


def test_fast_networks_do_not_reach_the_other_cluster(bed: Bed) -> None:
    with pytest.raises(AssertionError, match="unreachable"):
        send(bed, "a1", "b1", bed.host("b1").fast_address, 1)


def test_counters_count_the_bytes_of_each_interface(bed: Bed) -> None:
    before = bed.counters("a1")

    send(bed, "a1", "a2", bed.host("a2").fast_address, 3_000_000)

    after = bed.counters("a1")
    assert set(after) == {"lo", "ib0", "eth0"}
    assert after["ib0"][1] - before["ib0"][1] == pytest.approx(3_000_000, rel=0.1)
    assert after["eth0"][1] - before["eth0"][1] < 10_000


def test_link_taken_down_carries_nothing_until_it_is_up_again(bed: Bed) -> None:
    bed.set_link("a1", "ib0", False)
    assert "Link detected: no" in ssh(bed, "a1", "ethtool ib0").stdout
    with pytest.raises(AssertionError):
        send(bed, "a1", "a2", bed.host("a2").fast_address, 1000)

    bed.set_link("a1", "ib0", True)
    assert send(bed, "a1", "a2", bed.host("a2").fast_address, 1000) > 0


def test_stopped_sshd_refuses_until_it_is_started_again(bed: Bed) -> None:
    bed.stop_sshd("b2")
    assert bed.sshd_pid("b2") is None
    assert "Connection refused" in ssh(bed, "b2", "true").stderr

    bed.start_sshd("b2")
    assert ssh(bed, "b2", "hostname").stdout == "b2\n"


def test_pids_show_what_runs_on_which_host(bed: Bed) -> None:
    with subprocess.Popen(bed.on_host_command("a2", ["sleep", "60"])) as stray:
        assert eventually(lambda: stray.pid in bed.guest_pids("a2"))
        assert bed.guest_pids("a2") == [stray.pid]
        assert set(bed.pids("a2")) > {stray.pid, bed.sshd_pid("a2")}
        assert stray.pid not in bed.pids("a1")
        stray.kill()


def test_two_beds_stand_side_by_side_and_leave_nothing(bed: Bed) -> None:
    own_interfaces = Path("/proc/net/dev").read_text().count(":")

    with Bed(fast_mbps=500, slow_mbps=50) as other:
        assert ssh(other, "a1", "hostname; ethtool ib0").stdout.count("Speed: 500Mb/s") == 1
        assert ssh(bed, "a1", "hostname; ethtool ib0").stdout.count("Speed: 1000Mb/s") == 1
        assert Path("/proc/net/dev").read_text().count(":") == own_interfaces

    assert traces(other.suffix, other.folder) == []
    assert ssh(bed, "a1", "hostname").stdout == "a1\n"


def test_bed_that_fails_half_way_leaves_nothing() -> None:
    bed = Bed(fast_mbps=10**9)  # tc knows no bucket that large

    with pytest.raises(BedError, match="`tc "), bed:
        pass

    assert traces(bed.suffix, bed.folder) == []


def test_bed_of_a_killed_owner_is_removed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        suffix, folder, *pids = owner.stdout.readline().split()
        assert traces(suffix, Path(folder)) != []
        owner.kill()

    assert eventually(lambda: traces(suffix, Path(folder)) == [])
    assert len(pids) >= 9
    assert [pid for pid in pids if process_start_time(int(pid)) is not None] == []


def test_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="slow_mbps is 0"):
        Bed(slow_mbps=0)


def test_without_root_the_bed_says_so() -> None:
    assert missing_for_bed(euid=1000) == ["root"]
    assert "lacks: root" in str(BedUnavailable(["root"]))
    assert "apt-get install iproute2 openssh-server" in str(BedUnavailable(["root"]))
