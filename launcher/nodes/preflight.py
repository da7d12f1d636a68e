"""The named checks that must pass before ranks start, and the faults that they find.

A fault refuses the launch unless its check is forced by name. Checks of what every launch needs cannot be forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError, HostError

PROBE_AGAIN = "`holmes probe` and `holmes plan` again, or restore the host to its earlier state"


@dataclass(frozen=True)
class Check:
    """A named check: its condition, the remedy if it fails, and whether a launch may continue regardless."""

    name: str
    makes_sure: str
    remedy: str
    can_be_forced: bool = True


@dataclass(frozen=True)
class Fault:
    """A check that failed on a host. `evidence` has the value seen. `remedy`, if set, replaces the check's own."""

    check: str
    host: str
    evidence: str
    remedy: str | None = None


CHECKS = (
    Check("reachable", "every host can be logged in to", "start the host and its sshd", False),
    Check("host-keys", "every host's key is known", "`holmes trust HOST` shows and adds keys", False),
    Check("files", "the run's files can be written", "make room in the home folder; see that it is writable", False),
    Check(
        "agent",
        "Python starts the node agent",
        "install Python >= 3.10 there, or name it: `python: /path/to/python` in hosts.yaml, and probe again",
        False,
    ),
    Check(
        "torch",
        "torch is there",
        "`PYTHON -m pip install torch`, or name a Python that has it: `python:` in hosts.yaml",
        False,
    ),
    Check(
        "torch-build",
        "the version of torch can run the plan, and on GPUs the driver can run its CUDA",
        "install a build that fits: `PYTHON -m pip install 'torch>=2.13,<2.15'` is for the newest CUDA; for an older "
        "driver add `--index-url https://download.pytorch.org/whl/cu126`, or take a newer driver or container",
    ),
    Check("versions", "Python, torch and NCCL are the same on all hosts", "install the same versions everywhere"),
    Check("gpus", "the GPUs are those of the inventory", PROBE_AGAIN),
    Check("gpus-taken", "no other run has claimed the planned GPUs", "`holmes launch --wait`, or plan without them"),
    Check("gpus-free", "no process uses the planned GPUs", "end it, or wait for it"),
    Check("rdma-ports", "the planned RDMA ports are active", "look at cable, switch and subnet manager with `ibstat`"),
    Check(
        "net-plugin",
        "the library by which NCCL reaches the cluster's fabric is there",
        "install it there, mount it into the container, or set its own NCCL_NET_PLUGIN in `launch.environment`",
    ),
    Check(
        "encryption",
        "traffic between clusters can be encrypted as hosts.yaml asks",
        "open UDP port 51820 and following between the hosts; or take `security:` out of hosts.yaml, probe and plan "
        "again",
        False,
    ),
    Check("interfaces", "the planned interfaces are up and have their addresses", PROBE_AGAIN),
    Check(
        "checkpoints",
        "checkpoints outlive the run, and none is overwritten or missing",
        "continue from it with `--resume`; or name another `checkpoint: {path: ...}` in job.yaml and plan again",
        False,
    ),
    Check(
        "inputs",
        "the data, tokenizer, weights and model files that job.yaml names are there",
        "copy or mount them at the same absolute path on every host, in the container if there is one; or correct "
        "job.yaml",
    ),
    Check(
        "contents",
        "the data match job.yaml",
        "as that line says; or name other data in job.yaml, and plan again",
        False,
    ),
    Check("compiler", "layers can be compiled", "install it on the host, or set `compile: false` and plan again"),
    Check("fp8", "layers can be multiplied in FP8", "install it on the host, or leave `fp8` out and plan again"),
    Check("disk", "there is room for logs and checkpoints", "make room, or name another folder"),
    Check(
        "shared-memory",
        "/dev/shm has room for NCCL",
        "raise it: `mount -o remount,size=8G /dev/shm`; in Docker `--shm-size`",
    ),
    Check(
        "host-memory",
        "the host's memory has room for the optimizer states the plan puts there",
        "end what takes it, or set `parallel.optimizer_offload: false` in job.yaml and plan again",
    ),
    Check("memlock", "RDMA may pin memory", "`ulimit -l unlimited` for the SSH user: /etc/security/limits.d"),
    Check("nccl-settings", "no NCCL setting of the host contradicts the plan", "remove that line"),
    Check(
        "rendezvous",
        "a port is free for the rendezvous",
        "end what uses the ports (`ss -ltnp` shows it), or set another `master_port:` in job.yaml and plan again",
        False,
    ),
    Check("network", "the nodes reach each other where the plan says", "look at firewall and routes between them"),
)
_BY_NAME = {check.name: check for check in CHECKS}
_CHECK_OF_KIND = {"key unknown": "host-keys", "key changed": "host-keys", "files": "files", "too much": "files"}


@dataclass(frozen=True)
class Preflight:
    """The outcome of the checks: faults, names of forced checks, and steps of the checkpoints found on hosts."""

    faults: tuple[Fault, ...]
    forced: frozenset[str]
    saved_steps: frozenset[int] = frozenset()

    @property
    def refusing(self) -> tuple[Fault, ...]:
        """The faults that keep the ranks from starting."""
        return tuple(
            fault for fault in self.faults if not (fault.check in self.forced and _BY_NAME[fault.check].can_be_forced)
        )

    @property
    def passed(self) -> bool:
        """True if the ranks may start."""
        return not self.refusing

    @property
    def may_pass_later(self) -> bool:
        """True if only other users of the GPUs keep the ranks from starting."""
        return {fault.check for fault in self.refusing} <= {"gpus-taken", "gpus-free"}


class PreflightFailed(HolmesError):
    """The checks refuse the launch. No rank was started, and nothing is left on any host."""

    def __init__(self, preflight: Preflight) -> None:
        first = preflight.refusing[0]
        names = dict.fromkeys(fault.check for fault in preflight.refusing)
        count = "one check" if len(names) == 1 else f"{len(names)} checks in all"
        forcing = " ".join(f"--force {name}" for name in names)
        or_force = f"; or continue anyway: `{forcing}`" if all(_BY_NAME[n].can_be_forced for n in names) else ""
        super().__init__(
            f"host {first.host}: preflight check {first.check} failed: {first.evidence}",
            f"{count} failed; the remedies are above{or_force}",
            ANSWER_IS_NO,
        )
        self.preflight = preflight


def remedy_of(fault: Fault) -> str:
    """Return the remedy for a fault."""
    return fault.remedy or _BY_NAME[fault.check].remedy


def host_fault(error: HostError) -> Fault:
    """Return the fault of a host that could not be prepared."""
    return Fault(_CHECK_OF_KIND.get(error.kind, "reachable"), error.host, error.evidence, error.hint)


def unreadable_fault(host: str, reason: str) -> Fault:
    """Return the fault of a host whose agent and this controller cannot read each other's messages."""
    remedy = "see that nothing else prints to standard output there, such as a shell's start-up files; launch again"
    return Fault("agent", host, f"agent and controller do not understand each other: {reason}", remedy)
