"""A test bed: two clusters of two hosts on this machine, with real networks of given rates and real sshd.

Each host is a network namespace with its own host name, a fast interface inside its cluster and a slow one to
everywhere. The slow network is one switch, or with a trunk one for each cluster and between them a cable that all
share. GPU and InfiniBand tools on the hosts replay recorded outputs of real machines. The controller namespace, on the
slow network, is where `holmes` is run. `python -m tests.testbed.bed` starts one and waits for Ctrl-C.
"""

import math
import secrets
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import yaml

from tests.testbed import bed_gateways, bed_layout
from tests.testbed.bed_estate import Estate
from tests.testbed.bed_layout import BedHost
from tests.testbed.bed_machine import BedMachine
from tests.testbed.bed_needs import BedUnavailable, missing_for_bed, missing_for_trunk
from tests.testbed.bed_network import make_network
from tests.testbed.bed_process import SYSTEM_PATH, run_tool
from tests.testbed.bed_ssh import make_keys
from tests.testbed.bed_tools import install_tools
from tests.testbed.bed_trunk import BedTrunk
from tests.testbed.reaper import NAMESPACE_FOLDER, pids_in_namespaces

__all__ = ["Bed", "BedHost", "BedUnavailable", "missing_for_bed"]


class Bed:
    """Two clusters of two hosts, from `with` to the end of the block or of this process, however it ends."""

    def __init__(
        self,
        fast_mbps: int = 2000,
        slow_mbps: int = 100,
        python: Path | None = None,
        trunk_mbps: int | None = None,
        trunk_delay_ms: float = 0,
        with_sshd: bool = True,
        behind_nat: bool = False,
    ) -> None:
        """Makes nothing yet. `python` is the interpreter hosts.yaml names; by default the one running.

        Without sshd the bed's own SSH server stands in for it. `behind_nat`: all hosts but the last are in sites that
        masquerade.

        `trunk_mbps` is what all between the clusters share, each way, and `trunk_delay_ms` what the trunk adds to
        each way; without a trunk only the hosts' own interfaces limit. Raises ValueError for a rate below 1 Mbit/s
        (tc would take it and mean something else), a delay below 0, or a delay without a trunk.
        """
        for name, rate_mbps in (("fast_mbps", fast_mbps), ("slow_mbps", slow_mbps)):
            _check_rate(name, rate_mbps)
        if trunk_mbps is not None:
            _check_trunk(trunk_mbps, trunk_delay_ms)
        elif trunk_delay_ms != 0:
            raise ValueError(f"trunk_delay_ms is {trunk_delay_ms}, but there is no trunk; give trunk_mbps")
        self.fast_mbps = fast_mbps
        self.slow_mbps = slow_mbps
        self.trunk_mbps = trunk_mbps
        self.trunk_delay_ms = trunk_delay_ms
        self.with_sshd = with_sshd
        self.python = Path(sys.executable) if python is None else python
        self.suffix = _free_suffix()
        self.folder = _bed_folder(self.suffix)
        self.hosts_yaml = self.folder / "hosts.yaml"
        self.ssh_config = self.folder / "ssh_config"
        self.behind_nat = behind_nat
        sites = bed_gateways.SITE_NETWORKS if behind_nat else bed_layout.NO_SITES
        self.hosts: tuple[BedHost, ...] = bed_layout.bed_hosts(self.suffix, self.folder, sites)
        self.controller_namespace = bed_layout.host_namespace(self.suffix, "controller")
        self.switch_namespace = bed_layout.host_namespace(self.suffix, "switch")
        self._estate: Estate | None = None
        self._machines: dict[str, BedMachine] = {}
        self._trunk: BedTrunk | None = None

    def __enter__(self) -> "Bed":
        """Sets everything up; raises BedUnavailable where that cannot work, and leaves nothing if it fails half-way."""
        missing = missing_for_bed(with_sshd=self.with_sshd) or ([] if self.trunk_mbps is None else missing_for_trunk())
        if missing:
            raise BedUnavailable(missing)
        assert self._estate is None, "a Bed is used once"
        self._estate = Estate()
        try:
            self._set_up(self._estate)
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes everything the bed made; raises BedError if something stays."""
        self._take_down()

    def host(self, name: str) -> BedHost:
        """The host called `name`."""
        return next(host for host in self.hosts if host.name == name)

    def controller_command(self, command: Sequence[str]) -> list[str]:
        """`command` as run on the controller, which reaches every host over the slow network."""
        return ["ip", "netns", "exec", self.controller_namespace, *command]

    def on_host_command(self, host: str, command: Sequence[str]) -> list[str]:
        """`command` as run on `host`, without SSH, with the host's name, files and tools."""
        return self._machines[host].inside(command)

    def pids(self, host: str) -> list[int]:
        """Every process on `host`, the bed's own included."""
        return pids_in_namespaces([self._machines[host].host.namespace])

    def guest_pids(self, host: str) -> list[int]:
        """Every process on `host` but the bed's own two: SSH sessions and what they started."""
        machine = self._machines[host]
        return [pid for pid in self.pids(host) if pid not in (machine.init_pid, machine.sshd_pid)]

    def sshd_pid(self, host: str) -> int | None:
        """The listening sshd of `host`; None while it is stopped."""
        return self._machines[host].sshd_pid

    def stop_sshd(self, host: str) -> None:
        """Ends the listening sshd of `host`: new logins are refused, open sessions go on."""
        self._machines[host].stop_sshd()

    def start_sshd(self, host: str) -> None:
        """Starts the stopped sshd of `host` and returns when it listens."""
        self._machines[host].start_sshd()
        self._machines[host].wait_sshd()

    def counters(self, host: str) -> dict[str, tuple[int, int]]:
        """Bytes received and bytes sent by each interface of `host` since the bed began."""
        lines = Path(f"/proc/{self._machines[host].init_pid}/net/dev").read_text().splitlines()[2:]
        counted = {}
        for line in lines:
            interface, _, columns = line.partition(":")
            counts = [int(column) for column in columns.split()]
            counted[interface.strip()] = (counts[0], counts[8])
        return counted

    def set_link(self, host: str, interface: str, up: bool) -> None:
        """Takes an interface of `host` down, as if its cable were pulled, or up again."""
        namespace = self._machines[host].host.namespace
        run_tool(["ip", "-n", namespace, "link", "set", "dev", interface, "up" if up else "down"])

    def set_trunk(self, rate_mbps: int | None = None, delay_ms: float | None = None, flip_every: int = 0) -> None:
        """Changes rate or delay of the trunk, or both; what is None stays. Raises ValueError as the bed's maker.

        With `flip_every` it flips a bit of every so manieth large TCP packet from now on, each way.
        """
        assert self._trunk is not None, "the bed has no trunk"
        assert self.trunk_mbps is not None
        rate_mbps = self.trunk_mbps if rate_mbps is None else rate_mbps
        delay_ms = self.trunk_delay_ms if delay_ms is None else delay_ms
        _check_trunk(rate_mbps, delay_ms)
        self._trunk.set(rate_mbps, delay_ms, flip_every)
        self.trunk_mbps, self.trunk_delay_ms = rate_mbps, delay_ms

    @property
    def trunk_pid(self) -> int:
        """The process that is the trunk."""
        assert self._trunk is not None, "the bed has no trunk"
        return self._trunk.relay_pid

    def _set_up(self, estate: Estate) -> None:
        estate.record_folder(self.folder)
        self.folder.mkdir(mode=0o700)
        for host in self.hosts:
            self._make_host_folder(host)
        make_keys(self.folder, self.hosts)
        self.hosts_yaml.write_text(self._hosts_yaml_text())
        self._make_network(estate)
        self._start_hosts(estate)

    def _make_network(self, estate: Estate) -> None:
        rates = (self.fast_mbps, self.slow_mbps)
        if self.trunk_mbps is None:
            wires = bed_layout.bed_wires(self.hosts, self.controller_namespace, *rates)
            wires += bed_gateways.gateway_wires(self.suffix) if self.behind_nat else ()
            make_network(estate, self.switch_namespace, wires)
            if self.behind_nat:
                bed_gateways.open_gateways(self.suffix, self.controller_namespace, self.hosts)
            return
        wires = bed_layout.bed_wires(self.hosts, self.controller_namespace, *rates, trunk=True)
        ends = bed_layout.trunk_ends()
        make_network(estate, self.switch_namespace, wires, ends)
        rate_and_delay = (self.trunk_mbps, self.trunk_delay_ms)
        self._trunk = BedTrunk(estate, self.switch_namespace, ends, *rate_and_delay, self.folder / "trunk.log")

    def _make_host_folder(self, host: BedHost) -> None:
        """The host's home, tools, temporary folder, and the few files it has in place of the machine's own in /etc."""
        for folder in (host.folder, host.home, host.folder / "tmp", host.folder / "etc"):
            folder.mkdir(mode=0o700)
        install_tools(host, self.fast_mbps, self.slow_mbps)
        etc = host.folder / "etc"
        (etc / "passwd").write_text(_passwd_text(Path("/etc/passwd").read_text(), host.home))
        (etc / "shadow").write_text("root:*:19000:0:99999:7:::\n")  # no password, yet not locked
        # A dual-stack server sees its peers by mapped addresses, and torch asks for their names.
        forms = ("{}", "::ffff:{}")
        names = "".join(f"{form.format(host.slow_address)} {host.name}\n" for form in forms for host in self.hosts)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        # Login shells read /etc/profile, which sets PATH anew.
        (host.home / ".profile").write_text(f"export PATH={shlex.quote(f'{host.tools}:{SYSTEM_PATH}')}\n")

    def _hosts_yaml_text(self) -> str:
        content = {
            "ssh_config": str(self.ssh_config),
            "python": str(self.python),
            "hosts": [host.name for host in self.hosts],
        }
        return yaml.safe_dump(content, sort_keys=False)

    def _start_hosts(self, estate: Estate) -> None:
        """Boots all hosts and starts their sshds, side by side."""
        self._machines = {host.name: BedMachine(host, estate, self.with_sshd) for host in self.hosts}
        machines = self._machines.values()
        for machine in machines:
            machine.boot()
        for machine in machines:
            machine.wait_booted()
            machine.start_sshd()
        for machine in machines:
            machine.wait_sshd()

    def _take_down(self) -> None:
        assert self._estate is not None, "the bed was never set up"
        self._estate.settle()
        for machine in self._machines.values():
            machine.collect()
        if self._trunk is not None:
            self._trunk.collect()


def _check_rate(name: str, rate_mbps: float) -> None:
    if not rate_mbps >= 1:
        raise ValueError(f"{name} is {rate_mbps}; a link carries at least 1 Mbit/s")


def _check_trunk(rate_mbps: float, delay_ms: float) -> None:
    _check_rate("trunk_mbps", rate_mbps)
    if not 0 <= delay_ms < math.inf:
        raise ValueError(f"trunk_delay_ms is {delay_ms}; a cable delays by 0 ms or more")


def _bed_folder(suffix: str) -> Path:
    return Path(tempfile.gettempdir()) / f"holmes-bed-{suffix}"


def _free_suffix() -> str:
    """A random suffix that no folder and no namespace carries yet."""
    while True:
        suffix = secrets.token_hex(4)
        taken = NAMESPACE_FOLDER / bed_layout.host_namespace(suffix, "switch")
        if not _bed_folder(suffix).exists() and not taken.exists():
            return suffix


def _passwd_text(passwd: str, home: Path) -> str:
    """/etc/passwd with `home` as root's home and a shell that can be used."""
    lines = []
    for line in passwd.splitlines():
        fields = line.split(":")
        if fields[0] == "root":
            shell = fields[6] if fields[6].endswith("sh") else "/bin/sh"
            line = ":".join([*fields[:5], str(home), shell])
        lines.append(f"{line}\n")
    return "".join(lines)


def main() -> int:
    """Starts a bed, says how to use it, and takes it down on Ctrl-C."""
    try:
        with Bed() as bed:
            print(f"test bed {bed.suffix} is up, folder {bed.folder}")
            probe = [sys.executable, "-m", "holmes_cli", "probe", str(bed.hosts_yaml)]  # PATH may not have `holmes`
            print("run holmes:", shlex.join(bed.controller_command(probe)))
            print("log in:    ", shlex.join(bed.controller_command(["ssh", "-F", str(bed.ssh_config), "a1"])))
            print("Ctrl-C takes it down", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    except BedUnavailable as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
