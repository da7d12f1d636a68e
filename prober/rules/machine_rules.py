"""Rules on the machine itself: software, limits, clock, names, and settings that conflict with the plan."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Host
from holmes_core.units import format_memory
from prober.facts.machine.limits import UNLIMITED
from prober.rule_text import FIELD, EvidenceLine
from prober.rules.gpu_rules import is_given_a_part
from prober.rules.port_rules import active_ports
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, below, differing

MIN_FILES = 65536
NCCL_PINS_BYTES = 64 * 1024**2  # a few channels of NCCL_BUFFSIZE, 4 MiB each; distributions set 64 KiB or 8 MiB
DOCKER_SHM_BYTES = 64 * 1024**2
MAX_SKEW_S = 1.0
SLOW_SSH_S = 2.0
ROCE_NEEDS_NCCL = (2, 21)
PLANNED_VARIABLES = ("NCCL_NET", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX")
_OF_ONE_HOST = (*PLANNED_VARIABLES, "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_TOPO_FILE")
_PREPARED = (
    "make `activate:` and `container:` of hosts.yaml work there in a shell without a terminal; an image that is not "
    "there is not fetched: pull it first"
)
MEMORY_ALIKE = 0.95  # of two machines with the same modules


def _software_missing(host: Host) -> Evidence:
    if not host.python_asked:
        return
    access, software = host.access, host.software
    if software.python is None:
        why = f": {host.python_failure}" if host.python_failure else ""
        seen = f"{access.python_in_words} does not run{why}"
        yield seen if access.activate is None and access.container is None else EvidenceLine(seen, _PREPARED)
    elif software.torch is None:
        yield f"{access.python_in_words} (Python {software.python}) has no torch"


def _small_memlock(host: Host) -> Evidence:
    if _is_limited(host) and (host.memlock_bytes or 0) < NCCL_PINS_BYTES and _is_bound_by_it(host):
        yield f"`ulimit -l` in a non-interactive shell: {host.memlock_bytes} bytes, without CAP_IPC_LOCK"


def _finite_memlock(host: Host) -> Evidence:
    if _is_limited(host) and ((host.memlock_bytes or 0) >= NCCL_PINS_BYTES or not _is_bound_by_it(host)):
        yield f"`ulimit -l` in a non-interactive shell: {host.memlock_bytes} bytes"


def _is_limited(host: Host) -> bool:
    """Return True if the limit applies: not in Holmes's Docker containers, nor with CAP_IPC_LOCK."""
    finite = host.memlock_bytes not in (None, UNLIMITED)
    own = host.access.container is not None and host.access.container.engine == "docker"
    return finite and any(active_ports(host)) and not own and not _is_exempt(host)


def _is_exempt(host: Host) -> bool:
    """Return True for a user with CAP_IPC_LOCK, which root has unless a container removed it.

    Source: Linux, drivers/infiniband/core/umem.c.
    """
    if host.may_lock_memory is not None:
        return host.may_lock_memory
    return host.user_is_root is True and host.container == "none"


def _is_bound_by_it(host: Host) -> bool:
    """Return True if the user is known not to be exempt. By default, only root is."""
    return host.may_lock_memory is False or host.user_is_root is not True


def _few_files(host: Host) -> Evidence:
    if host.nofile is not None and UNLIMITED < host.nofile < MIN_FILES:
        yield f"`ulimit -n`: {host.nofile}"


def _small_shm(host: Host) -> Evidence:
    if host.shm_bytes is not None and host.shm_bytes <= DOCKER_SHM_BYTES:
        yield f"/dev/shm has {host.shm_bytes // 1024**2} MiB"


def _time_skew(host: Host) -> Evidence:
    if host.clock_skew_s is not None and abs(host.clock_skew_s) > MAX_SKEW_S:
        yield f"clock is {host.clock_skew_s:+.1f} s from the controller's"


def _slow_ssh(host: Host) -> Evidence:
    if host.round_trip_s is not None and host.round_trip_s > SLOW_SSH_S:
        yield f"the login shell took {host.round_trip_s:.1f} s before and after what was asked"


def _name_is_loopback(host: Host) -> Evidence:
    if host.access.transport == "ssh" and any(address.startswith("127.") for address in host.name_resolves_to):
        yield f"{host.hostname} resolves to {', '.join(host.name_resolves_to)}"


def _nccl_settings(host: Host) -> Evidence:
    for setting in host.nccl_settings:
        if setting.name in PLANNED_VARIABLES:
            inside = "" if setting.where == "environment" else f" from {setting.where}"
            seen = f"{setting.where} sets {setting.name}={setting.value}"
            yield EvidenceLine(seen, f"take {setting.name} out{inside}; the environment wins over files")


def _old_nccl(host: Host) -> Evidence:
    version = host.software.nccl
    if version and any(nic.kind == "RoCE" for nic in active_ports(host)):
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if len(numbers) == 2 and numbers < ROCE_NEEDS_NCCL:
            yield f"NCCL {version}, which does not choose the RoCE GID by itself"


def _release(version: str | None) -> str | None:
    """Return `2.13` for `2.13.0+cu126`."""
    return ".".join(version.partition("+")[0].split(".")[:2]) if version else None


def _builds_differ(hosts: Sequence[Host]) -> PeerEvidence:
    """Compare patches and CUDA builds of one release of torch, and Pythons."""
    if len({_release(host.software.torch) for host in hosts if host.software.torch}) == 1:
        yield from differing(hosts, "torch", lambda host: host.software.torch)
    yield from differing(hosts, "CUDA that torch is built for", lambda host: host.software.cuda)
    yield from differing(hosts, "Python", lambda host: _release(host.software.python))


def _shared_settings(host: Host) -> str:
    """Return the NCCL variables that all ranks need alike and that the plan does not set."""
    chosen = {each.name: each.value for each in reversed(host.nccl_settings)}
    kept = [f"{name}={value}" for name, value in sorted(chosen.items()) if name not in _OF_ONE_HOST]
    return ", ".join(kept) or "none"


def _smaller(peers: Sequence[Host]) -> PeerEvidence:
    """Yield hosts with fewer CPUs, or with less memory by more than the kernel reserves."""
    whole = [host for host in peers if not is_given_a_part(host)]
    yield from below(whole, "CPUs", lambda host: host.cpu_count, "{:g}".format)
    memory = {host.name: host.memory_bytes for host in whole if host.memory_bytes}
    most = max(memory.values(), default=0)
    low = {name: size for name, size in memory.items() if size < MEMORY_ALIKE * most}
    if 0 < 2 * len(low) <= len(memory):
        shown = ", ".join(f"{format_memory(size)} on {name}" for name, size in low.items())
        yield tuple(low), f"memory: {shown}; {format_memory(most)} on most hosts of the cluster"


def _nccl_differs(hosts: Sequence[Host]) -> PeerEvidence:
    yield from differing(hosts, "NCCL", lambda host: host.software.nccl)


HOST_RULES = (
    Rule(
        "HOST-OS-LIB",
        "F",
        "the host's Python does not run, or has no torch",
        "nothing can be trained there",
        "install Python >= 3.10 with torch, or name one that has it: `python: /path/to/python` in hosts.yaml",
        "Holmes, pyproject.toml (requires-python, torch)",
        _software_missing,
    ),
    Rule(
        "HOST-MEMLOCK",
        "F",
        "the limit on locked memory is below 64 MiB for a user without CAP_IPC_LOCK, on a host with Active RDMA ports",
        "RDMA memory cannot be registered: `ibv_reg_mr` or `ibv_create_qp` fails",
        "`* - memlock unlimited` in /etc/security/limits.d/memlock.conf, and a new login; where sshd does not use PAM, "
        "`LimitMEMLOCK=infinity` in its unit; `--ulimit memlock=-1` in a container",
        "Linux, drivers/infiniband/core/umem.c (ib_umem_get); NCCL user guide, networking troubleshooting",
        _small_memlock,
    ),
    Rule(
        "HOST-MEMLOCK",
        "W",
        "the limit on locked memory is finite on a host with Active RDMA ports, and large or perhaps not in force",
        "registering RDMA memory fails once it is reached; the kernel exempts processes with CAP_IPC_LOCK",
        "`* - memlock unlimited` in /etc/security/limits.d/memlock.conf, and a new login",
        "Linux, drivers/infiniband/core/umem.c (ib_umem_get); NCCL user guide, networking troubleshooting",
        _finite_memlock,
    ),
    Rule(
        "HOST-NOFILE",
        "W",
        "fewer than 65536 files may be open",
        "many ranks run out of sockets",
        "`* - nofile 131072` in /etc/security/limits.d/nofile.conf, and a new login",
        "NCCL user guide, runtime issues (file descriptors)",
        _few_files,
    ),
    Rule(
        "HOST-SHM",
        "W",
        "/dev/shm has 64 MiB or less",
        "NCCL's shared memory does not fit: `failed to extend /dev/shm/nccl-...`",
        "`--shm-size=1g` (or more, or `--ipc=host`) where the container is started",
        "NCCL user guide, runtime issues (shared memory)",
        _small_shm,
    ),
    Rule(
        "HOST-TIME-SKEW",
        "W",
        "the clock is more than 1 s from the controller's",
        "timestamps in the hosts' logs do not match",
        "`chronyc makestep`, and see that chronyd or systemd-timesyncd runs",
        "chronyc(1)",
        _time_skew,
    ),
    Rule(
        "PROBE-SLOW-SSH",
        "W",
        "starting a shell on the host takes more than 2 s",
        "every command waits for it",
        "look at what the shell reads at its start (`bash -xc true`): modules, conda, a slow network file system",
        "bash(1), INVOCATION; sshd(8), LOGIN PROCESS",
        _slow_ssh,
    ),
    Rule(
        "HOST-NAME-LOOPBACK",
        "I",
        "the host's name resolves to 127.x on itself",
        "Gloo and rendezvous by name would use the loopback",
        "nothing with Holmes, which uses addresses and GLOO_SOCKET_IFNAME; by hand, correct /etc/hosts",
        "pytorch/pytorch#150532; aws-samples/aws-do-eks#50",
        _name_is_loopback,
    ),
    Rule(
        "HOST-NCCL-CONF",
        "W",
        "the host already sets an NCCL variable that the plan sets",
        "it conflicts with the plan's settings",
        "unset it; the environment wins over files",
        "NCCL user guide, environment variables (nccl.conf); NCCL, src/misc/param.cc",
        _nccl_settings,
    ),
    Rule(
        "HOST-NCCL-VERSION",
        "W",
        "NCCL is older than 2.21 on a host with RoCE",
        "NCCL does not choose the GID itself; with the wrong one it does not connect",
        "use NCCL 2.21 or newer, or set NCCL_IB_GID_INDEX to the index that `show_gids` shows",
        "NCCL user guide, networking troubleshooting (RoCE)",
        _old_nccl,
    ),
)

PEER_RULES = (
    PeerRule(
        "HOST-NCCL-CONF",
        "W",
        "NCCL variables that the plan does not set differ between hosts of a cluster",
        "ranks that choose different algorithms or transports hang, or all run at the pace of the slowest",
        "set the same NCCL variables on all hosts: see the environment, /etc/nccl.conf and ~/.nccl.conf",
        "NCCL user guide, environment variables (nccl.conf); " + FIELD,
        lambda hosts: differing(hosts, "NCCL variables", _shared_settings),
    ),
    PeerRule(
        "HOST-SMALLER",
        "W",
        "a host has fewer CPUs or less memory than most hosts of its cluster",
        "CPUs or a memory module are missing or switched off; its data loaders and checkpoints are slower",
        "look at the event log of its management controller, at `lscpu` (Hyper-Threading) and `dmidecode -t memory`",
        "lscpu(1), dmidecode(8); " + FIELD,
        _smaller,
    ),
    PeerRule(
        "HOST-OS-LIB",
        "F",
        "hosts of the job have different releases of torch",
        "ranks of one job may not understand each other's messages",
        "one torch on all hosts",
        FIELD,
        lambda hosts: differing(hosts, "torch", lambda host: _release(host.software.torch)),
        scope="job",
    ),
    PeerRule(
        "HOST-OS-LIB",
        "W",
        "hosts of the job have different patches or builds of torch, or different Pythons",
        "uneven speed, and faults on some hosts only",
        "one Python and torch on all hosts",
        FIELD,
        _builds_differ,
        scope="job",
    ),
    PeerRule(
        "HOST-NCCL-VERSION",
        "F",
        "hosts with GPUs have different versions of NCCL",
        "NCCL ends with `Mismatched NCCL version detected` when the first group is made",
        "install the same torch (which includes NCCL) on all hosts; look for another libnccl in LD_LIBRARY_PATH",
        "NCCL, src/init.cc (initTransportsRank)",
        lambda hosts: _nccl_differs([host for host in hosts if host.gpus]),
        scope="job",
    ),
    PeerRule(
        "HOST-NCCL-VERSION",
        "W",
        "hosts without visible GPUs have different versions of NCCL",
        "with GPUs NCCL would refuse to start",
        "one torch on all hosts",
        "NCCL, src/init.cc (initTransportsRank)",
        lambda hosts: () if any(host.gpus for host in hosts) else _nccl_differs(hosts),
        scope="job",
    ),
)
