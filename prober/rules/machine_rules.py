"""The machine itself: software, limits, clock, names, settings that fight the plan."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Host
from prober.clusters import VIRTUAL_NAMES
from prober.facts.machine.limits import UNLIMITED
from prober.rules.port_rules import active_ports
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing

FEWEST_FILES = 65536
DOCKER_SHM_BYTES = 64 * 1024**2
MOST_SKEW_S = 1.0
SLOW_SSH_S = 2.0
ROCE_NEEDS_NCCL = (2, 21)
PLANNED_VARIABLES = ("NCCL_NET", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX")


def _software_missing(host: Host) -> Evidence:
    if not host.python_asked:
        return
    access, software = host.access, host.software
    where = f" after `{access.activate}`" if access.activate else ""
    where += f" in {access.container.engine} image {access.container.image}" if access.container else ""
    if software.python is None:
        yield f"`{access.python}` does not run{where}"
    elif software.torch is None:
        yield f"`{access.python}` (Python {software.python}) has no torch{where}"


def _memlock(host: Host) -> Evidence:
    if host.memlock_bytes not in (None, UNLIMITED) and any(active_ports(host)):
        yield f"`ulimit -l` in a non-interactive shell: {host.memlock_bytes} bytes"


def _few_files(host: Host) -> Evidence:
    if host.nofile is not None and UNLIMITED < host.nofile < FEWEST_FILES:
        yield f"`ulimit -n`: {host.nofile}"


def _small_shm(host: Host) -> Evidence:
    if host.shm_bytes is not None and host.shm_bytes <= DOCKER_SHM_BYTES:
        yield f"/dev/shm has {host.shm_bytes // 1024**2} MiB"


def _time_skew(host: Host) -> Evidence:
    if host.clock_skew_s is not None and abs(host.clock_skew_s) > MOST_SKEW_S:
        yield f"clock is {host.clock_skew_s:+.1f} s from the controller's"


def _slow_ssh(host: Host) -> Evidence:
    if host.round_trip_s is not None and host.round_trip_s > SLOW_SSH_S:
        yield f"connecting took {host.round_trip_s:.1f} s"


def _name_is_loopback(host: Host) -> Evidence:
    if host.access.transport == "ssh" and any(address.startswith("127.") for address in host.name_resolves_to):
        yield f"{host.hostname} resolves to {', '.join(host.name_resolves_to)}"


def _nccl_settings(host: Host) -> Evidence:
    for setting in host.nccl_settings:
        if setting.name in PLANNED_VARIABLES:
            yield f"{setting.where} sets {setting.name}={setting.value}"


def _old_nccl(host: Host) -> Evidence:
    version = host.software.nccl
    if version and any(nic.kind == "RoCE" for nic in active_ports(host)):
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if len(numbers) == 2 and numbers < ROCE_NEEDS_NCCL:
            yield f"NCCL {version}, which does not choose the RoCE GID by itself"


def _hugepages(host: Host) -> Evidence:
    if host.hugepages == 0 and any(nic.kind == "EFA" for nic in host.nics):
        yield "no huge pages are reserved"


def _virtual_candidates(host: Host) -> Evidence:
    names = [n.name for n in host.netdevs if n.addresses and n.name.startswith(VIRTUAL_NAMES)]
    if names:
        yield f"{', '.join(names)} have addresses"


def _software_differs(peers: Sequence[Host]) -> PeerEvidence:
    yield from differing({host.name: host.software.torch for host in peers}, "torch")
    minors = {
        host.name: ".".join(host.software.python.split(".")[:2]) if host.software.python else None for host in peers
    }
    yield from differing({**minors}, "Python")


def _nccl_differs(peers: Sequence[Host]) -> PeerEvidence:
    yield from differing({host.name: host.software.nccl for host in peers}, "NCCL")


HOST_RULES = (
    Rule(
        "HOST-OS-LIB",
        "F",
        "nothing can be trained there",
        "install Python >= 3.10 with torch, or name one that has it: `python: /path/to/python` in hosts.yaml",
        _software_missing,
    ),
    Rule(
        "HOST-MEMLOCK",
        "F",
        "RDMA memory cannot be registered",
        "`memlock unlimited` in limits.d and sshd's unit; `--ulimit memlock=-1` in a container",
        _memlock,
    ),
    Rule("HOST-NOFILE", "W", "many ranks run out of sockets", "raise it in limits.d", _few_files),
    Rule("HOST-SHM", "W", "NCCL's shared memory does not fit", "`--shm-size` of the container", _small_shm),
    Rule("HOST-TIME-SKEW", "W", "logs of hosts do not line up", "chrony", _time_skew),
    Rule("PROBE-SLOW-SSH", "W", "every command waits for it", "DNS; `UseDNS no`; GSSAPI off", _slow_ssh),
    Rule(
        "HOST-NAME-LOOPBACK",
        "I",
        "Gloo and rendezvous by name would use the loopback",
        "nothing with Holmes, which uses addresses and GLOO_SOCKET_IFNAME; by hand, mend /etc/hosts",
        _name_is_loopback,
    ),
    Rule(
        "HOST-NCCL-CONF",
        "W",
        "it fights the plan's own settings",
        "unset it; the environment wins over files",
        _nccl_settings,
    ),
    Rule(
        "HOST-NCCL-VERSION", "W", "the wrong GID, no connection", "NCCL 2.21 or newer, or NCCL_IB_GID_INDEX", _old_nccl
    ),
    Rule("HOST-HUGEPAGES", "I", "EFA fails when processes fork", "FI_EFA_USE_HUGE_PAGE=0, or reserve some", _hugepages),
    Rule("NET-DOCKER-CANDIDATE", "I", "a loose interface filter would match", "use exact names", _virtual_candidates),
)

PEER_RULES = (
    PeerRule("HOST-OS-LIB", "F", "ranks of one job must agree", "one Python and torch on all hosts", _software_differs),
    PeerRule("HOST-NCCL-VERSION", "W", "ranks may not understand each other", "one NCCL version", _nccl_differs),
)
