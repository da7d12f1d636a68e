"""`holmes probe`, whole, against 8, 64 and 512 hosts: real sshd on loopback addresses, stub tools, all on this machine.

A host is a loopback address; sshd listens on at most 16 addresses, so 512 hosts are 32 instances. The tools replay the
test bed's recordings of a machine with eight GPUs and InfiniBand; Python is a stub too, since importing torch in 512
processes on one machine would measure just that. Client and servers share the cores, so a real site is faster.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.figure import print_figure
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from tests.testbed.bed_layout import BedHost
from tests.testbed.bed_process import SYSTEM_PATH
from tests.testbed.bed_ssh import make_key, public_key
from tests.testbed.bed_tools import install_tools

SIZES = (8, 64, 512)
MAX_LISTEN = 16  # MAX_LISTEN_SOCKS of OpenSSH's sshd.c
HOSTS_NICE = 10
PYTHON_STUB = """\
#!/bin/sh
# Prints what the probe's question to Python prints on a machine with torch.
printf 'python 3.12.3\\ntorch 2.13.0\\ncuda 12.8\\nnccl 2.27.5\\n'
"""
HOSTNAME_STUB = """\
#!/bin/sh
# A name for each address one can log in at.
set -- $SSH_CONNECTION
echo "host-$3" | tr . -
"""
IBSTAT_STUB = """\
#!/bin/sh
# The recorded answer with GUIDs of this host's own.
set -- $SSH_CONNECTION
mark=$(echo "$3" | awk -F. '{{ printf "%02x%02x", $3, $4 }}')
exec sed "s/GUID: 0x..../GUID: 0x$mark/" '{reply}'
"""


@dataclass(frozen=True)
class Row:
    """One probe of `hosts` hosts; `peak_mb` is the largest resident size of the command."""

    hosts: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


def main() -> None:
    """Probe each size once, smallest first."""
    with tempfile.TemporaryDirectory(prefix="holmes-scale-") as name, running_hosts(Path(name), max(SIZES)) as port:
        rows = [measure(Path(name), size, port) for size in SIZES]
    show(rows)
    for row in rows:
        print_figure(f"probe_scale.seconds.{row.hosts}", row.seconds, "s")
    print_figure(f"probe_scale.peak_mb.{rows[-1].hosts}", rows[-1].peak_mb, "MB")


def address(number: int) -> str:
    """The loopback address of the host with that number, from 0."""
    return f"127.0.{1 + number // 200}.{1 + number % 200}"


def measure(folder: Path, size: int, port: int) -> Row:
    """Run `holmes probe` for the first `size` hosts. Raises SystemExit unless every one was read."""
    hosts = folder / f"hosts-{size}.yaml"
    content = {
        "ssh_config": str(folder / "ssh_config"),
        "port": port,
        "python": str(folder / "host" / "bin" / "python3"),
        "hosts": [{"name": f"s{number:03}", "address": address(number)} for number in range(size)],
    }
    hosts.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    output = folder / f"inventory-{size}.json"
    command = [sys.executable, "-m", "holmes_cli", "probe", str(hosts), "-o", str(output)]
    row = timed(command, size)
    unread = [host.name for host in read_file(Inventory, output).hosts if not host.reachable]
    if unread:
        raise SystemExit(f"{len(unread)} of {size} hosts were not read, the first is {unread[0]}")
    return row


def timed(command: Sequence[str], size: int) -> Row:
    """The command's seconds, cores' seconds and memory. A finding that makes it exit 1 is no failure here."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"holmes probe exited with {process.returncode}:\n{said[-2000:]}")
    return Row(size, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


@contextlib.contextmanager
def running_hosts(folder: Path, count: int) -> Iterator[int]:
    """The port at which `count` hosts can be logged in while the context lasts; its sshds are ended by their ids."""
    port = free_port()
    write_hosts(folder)
    sshds: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(0, count, MAX_LISTEN):
            addresses = [address(number) for number in range(first, min(count, first + MAX_LISTEN))]
            sshds.append(start_sshd(folder, first, addresses, port))
        for number in range(0, count, MAX_LISTEN):
            wait_listening(address(number), port)
        yield port
    finally:
        for sshd in sshds:
            sshd.send_signal(signal.SIGTERM)
        for sshd in sshds:
            sshd.wait()


def write_hosts(folder: Path) -> None:
    """Keys, the client's configuration and the tools, which all hosts share."""
    make_key(folder / "client_key")
    (folder / "authorized_keys").write_text(public_key(folder / "client_key"), encoding="utf-8")
    (folder / "known_hosts").touch()
    (folder / "ssh_config").write_text(
        f"Host 127.*\n    User root\n    IdentityFile {folder}/client_key\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {folder}/known_hosts\n    GlobalKnownHostsFile /dev/null\n",
        encoding="utf-8",
    )
    host = BedHost("s", "A", "", "eth0", "lo", "", "", folder / "host")
    host.folder.mkdir()
    install_tools(host, fast_mbps=100_000, slow_mbps=10_000)
    ibstat = IBSTAT_STUB.format(reply=host.folder / "replies" / "ibstat.txt")
    for tool, text in (("python3", PYTHON_STUB), ("hostname", HOSTNAME_STUB), ("ibstat", ibstat)):
        (host.tools / tool).write_text(text, encoding="utf-8")
        (host.tools / tool).chmod(0o755)


def start_sshd(folder: Path, number: int, addresses: Sequence[str], port: int) -> subprocess.Popen[bytes]:
    """One sshd for up to 16 addresses, with a key of its own, which becomes known.

    It runs at a lower priority, as real hosts do not take the client's cores: else the client is starved.
    """
    key, config = folder / f"host_key_{number}", folder / f"sshd_config_{number}"
    make_key(key)
    with open(folder / "known_hosts", "a", encoding="utf-8") as known:
        known.writelines(f"[{at}]:{port} {public_key(key)}" for at in addresses)
    lines = [f"ListenAddress {at}:{port}" for at in addresses]
    lines += [f"HostKey {key}", f"AuthorizedKeysFile {folder}/authorized_keys", "PidFile none", "UsePAM no"]
    lines += ["StrictModes no", "UseDNS no", "PermitRootLogin prohibit-password", "PasswordAuthentication no"]
    # A home of its own keeps the shell from reading this machine's ~/.bashrc.
    variables = f'"PATH={folder}/host/bin:{SYSTEM_PATH}" "HOME={folder}/host"'
    lines += ["PrintMotd no", "MaxStartups 1000", f"SetEnv {variables}"]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sshd = shutil.which("sshd", path=SYSTEM_PATH)
    if sshd is None or os.geteuid() != 0:
        raise SystemExit("this benchmark needs root and openssh-server")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with open(folder / f"sshd_{number}.log", "wb") as log:
        return subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdout=log, stderr=log, preexec_fn=_give_way)


def _give_way() -> None:
    os.nice(HOSTS_NICE)


def free_port() -> int:
    """A port nobody listens on, below those that outgoing connections take on any of the addresses."""
    for number in range(20000, 30000):
        with contextlib.suppress(OSError), socket.create_server(("", number)):
            return number
    raise SystemExit("no port from 20000 to 29999 is free")


def wait_listening(at: str, port: int, within_s: float = 20.0) -> None:
    """Return when something listens there. Raises SystemExit if nothing does in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((at, port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"no sshd at {at} port {port}; its log says why")


def show(rows: Sequence[Row]) -> None:
    """The table for people."""
    table = Table(title="holmes probe, client and servers on the same cores", title_justify="left")
    for heading in ("hosts", "seconds", "client's CPU s", "ms a host", "peak MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        each = f"{row.seconds / row.hosts * 1e3:.0f}"
        table.add_row(str(row.hosts), f"{row.seconds:.1f}", f"{row.cpu_seconds:.1f}", each, f"{row.peak_mb:.0f}")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
