"""Causes that a watched run can show, each with its text, remedy and source."""

from __future__ import annotations

from dataclasses import dataclass

from prober.nccl_logs.cause_texts import Cause

MAX_LINES = 6
FAILURE = 2.0  # as `cost`, puts causes that stop a run before those that slow it


@dataclass(frozen=True)
class RunFinding:
    """A cause that the watch shows. `cost` is the share of time that it may take, FAILURE, or 0 for a remark."""

    cause: str
    says: str
    remedy: str
    evidence: tuple[str, ...]
    cost: float


@dataclass(frozen=True)
class RunCause(Cause):
    """A cause that a watched run shows."""

    def finding(self, detail: str, *lines: str, cost: float, remedy: str = "") -> RunFinding:
        """Return the finding. `detail` is added to the sentence, and `remedy` precedes the usual one."""
        return RunFinding(self.id, f"{self.says}: {detail}", self.advice(remedy), lines[:MAX_LINES], cost)


STOPPED = RunCause(
    "stopped-process",
    "A rank is stopped and all others wait for it",
    "SIGCONT resumes it; a process in a debugger resumes when that detaches. Find out who stopped it: a shell's "
    "Ctrl-Z, a scheduler that suspends jobs, `kill -STOP`.",
    "proc(5), states T and t",
)
MISSING = RunCause(
    "missing-rank",
    "A rank has ended and the others wait for it",
    "Read what that rank printed last, and the kernel log of its host for the out-of-memory killer (`dmesg | grep -i "
    "oom`); then start the run again from its last checkpoint.",
    "torchrun, LOCAL_WORLD_SIZE",
)
HANGING = RunCause(
    "hanging-rank",
    "A rank does nothing and all others wait for it",
    "See where it waits: `py-spy dump --pid PID` on its host, as the same user; the wait channel names the system "
    "call's place: nfs and fuse are file systems, pipe_read is another process, hrtimer_nanosleep a sleep.",
    "proc(5), wchan; py-spy",
)
GPU_FAULT = RunCause(
    "gpu-fault",
    "A GPU of the run reports a fault",
    "Look the Xid up in NVIDIA's catalogue; drain the host, reset the GPU, and replace it if the fault comes back.",
    "NVIDIA, Xid errors",
    "GPU-XID",
)
GPU_SLOWED = RunCause(
    "gpu-slowed",
    "A GPU's clock is held down, and the ranks of all other GPUs wait for it",
    "Thermal: check fans, airflow and the inlet's temperature. Power brake: check the power supplies and the rack's "
    "power limit. Leave the host out until it is repaired.",
    "nvml.h, clocks event reasons",
    "GPU-THROTTLE",
)
CPU_TAKEN = RunCause(
    "cpu-taken",
    "Processes outside the training keep the CPUs of a host busy, and its ranks wait for a core",
    "End or move them, or bind the ranks to separate cores (`numactl`, the scheduler's cgroups).",
    "proc(5), utime and stime",
)
DISK_WAIT = RunCause(
    "disk-wait",
    "A rank waits for a disk or a file system, and the others wait for the rank",
    "If it saves a checkpoint, save less often, from all ranks (torch.distributed.checkpoint), or asynchronously; if "
    "it reads data, put them on a local disk or read ahead. `iostat -x 1` and `nfsiostat` show the device.",
    "proc(5), state D and io",
)
DATA_LOADING = RunCause(
    "data-loading",
    "Ranks wait for the processes that load data, which are busy",
    "Give the DataLoader more workers where cores are free (num_workers, persistent_workers, prefetch_factor), or do "
    "the costly part once ahead: decode, tokenize and pack to files.",
    "PyTorch, torch.utils.data",
)
CPU_BOUND = RunCause(
    "cpu-bound",
    "The main thread keeps a core busy while its GPU idles: Python does not start kernels fast enough",
    "Move data loading out of the main process (num_workers > 0), take .item() and prints out of the step, and use "
    "torch.compile, CUDA graphs or larger micro-batches. `py-spy top --pid PID` shows the lines.",
    "PyTorch, performance tuning guide",
)
SLOW_RANK = RunCause(
    "slow-rank",
    "One rank computes nearly all the time while the others wait for it",
    "Compare its share of the data and of the model with that of the others, and its OMP_NUM_THREADS.",
    "proc(5), utime and stime",
)
TCP_NOT_RDMA = RunCause(
    "tcp-not-rdma",
    "Bytes between hosts use TCP while RDMA ports are active but idle",
    "Unset NCCL_IB_DISABLE and NCCL_NET=Socket, see that /dev/infiniband and libibverbs are in the container, and run "
    "with NCCL_DEBUG=INFO: `holmes doctor --log` says why. A run on Gloo alone has no RDMA: use NCCL.",
    "sysfs-class-infiniband; NCCL's guide",
    "NIC-NO-UVERBS",
)
SLOW_INTERFACE = RunCause(
    "slow-interface",
    "Bytes between hosts use a slower interface although both hosts have a faster one",
    "Name the fast one on every host: NCCL_SOCKET_IFNAME for NCCL, GLOO_SOCKET_IFNAME for Gloo.",
    "NCCL's guide to NCCL_SOCKET_IFNAME; PyTorch, torch.distributed",
    "NET-DOCKER-CANDIDATE",
)
ONE_NIC = RunCause(
    "one-nic-of-many",
    "Ranks of a host use one NIC of several",
    "Name all NICs in NCCL_IB_HCA or unset it, and give the container every device.",
    "sysfs-class-infiniband; NCCL's guide to NCCL_IB_HCA",
    "NIC-COUNT-DIFFERS",
)
TENSOR_ACROSS = RunCause(
    "tensor-parallel-across-hosts",
    "Tensor parallelism crosses hosts: each layer waits for the network",
    "Limit the degree to the ranks of one host, and use pipeline stages or more replicas between hosts.",
    "Megatron-LM, README: parallelism",
)
RANK_ORDER = RunCause(
    "rank-order",
    "Ranks that exchange most are in different clusters, and another order of the hosts keeps them in one",
    "Or let Holmes place the ranks: `holmes plan job.yaml --usual-order -o usual.json`, then `holmes plan job.yaml "
    "--compare usual.json` says what the step gains by the measured links, memory and speed of GPUs.",
    "NCCL and Gloo: peers of a collective follow from the numbers of ranks",
)
AUDITED = RunCause(
    "audited-fault",
    "A probe has found a fault of the run's hosts that costs speed, and nothing else stands out",
    "`holmes probe hosts.yaml` shows if it is still there, and `holmes probe --explain RULE` what it checks.",
    "the audit's rules (docs/rules.md)",
)
CAUSES = tuple(text for text in vars().copy().values() if isinstance(text, RunCause))
