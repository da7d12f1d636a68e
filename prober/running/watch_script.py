"""Commands that watch the training processes of a host for some seconds. They only read, as this user.

Sources: proc(5), ss(8), nvidia-smi(1), Linux Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from prober.asking.commands import Command, script
from prober.facts.gpu.gpu_query import UNKNOWN_FIELD
from prober.running.processes import MARK

SNAPSHOTS = 6  # of states and GPUs; the first and the last also count bytes and seconds
MAX_PROCESSES = 512
MAX_KEPT_BYTES = 4 << 20  # of one command's output
MAX_LOGS = 16  # of one host
MAX_WAIT_S = 3600  # for the first rank of a command that was started
WARM_UP = 2  # times the seconds of the watch, in which ranks import modules, compile and read weights
_LOG_HEAD, _LOG_TAIL, _LOG_LINES = 1 << 20, 1 << 18, 1 << 17  # bytes of a log that are searched, and kept

READ_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", MARK),
)
"""Variables of a process that are read, and all that start with NCCL_. No other leaves its host."""

_RANK = "^(RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)="
_ALLOWED = f"^({'|'.join(READ_VARIABLES)}|NCCL_[A-Z0-9_]+)=[^[:cntrl:]]{{0,200}}"
_FIND = (
    f"pids=$(grep -lsazE '{_RANK}' /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\\n' | sort -n | "
    f"head -n {MAX_PROCESSES})"
)
_HAS_PIDS = '[ -n "$pids" ]'
# An nvidia-smi that hung is not run again. The test before the next command notes its exit code.
_HAS_GPUS = "command -v nvidia-smi >/dev/null 2>&1 && case $smi in 124|137) false;; esac"
_BOUND = f"2>/dev/null | head -c {MAX_KEPT_BYTES}"
# Keeps the program, names of scripts, modules and options, and whole numbers. Every other word becomes ***.
_MASK = (
    "awk '!/^\\/proc\\/[0-9]+\\/cmdline:/ { next } "
    '{ at = index($0, ":"); file = substr($0, 1, at); word = substr($0, at + 1); first = file != last; last = file; '
    "secret = tolower(before) ~ /secret|token|pass|key|cred|auth/ } "
    'first { sub(/ .*/, "", word); sub(/.*\\//, "", word); secret = 0 } '
    '!first && word ~ /^--?[A-Za-z]/ { name = word; sub(/=.*/, "", name); value = substr(word, length(name) + 2); '
    'if (name !~ /^--?[A-Za-z0-9_.-]+$/) name = "***"; '
    'if (name !~ /^--/ && length(name) > 2) name = substr(name, 1, 2) "***"; '
    "secret = tolower(name) ~ /secret|token|pass|key|cred|auth/; "
    'shown = !secret && value ~ /^[0-9]+$/ && length(value) < 7 ? value : "***"; '
    'print file (word ~ /=/ ? name "=" shown : name); before = name; next } '
    '!first && before == "-m" && word ~ /^[A-Za-z0-9_.]+$/ { print file word; before = ""; next } '
    '!first && word ~ /\\.py$/ && !secret { sub(/.*\\//, "", word); print file word; before = ""; next } '
    'first || (!secret && word ~ /^[0-9]+$/ && length(word) < 7) { print file word; before = ""; next } '
    '{ print file "***"; before = "" }\''
)


def _of_processes(name: str) -> str:
    return f"$(printf '/proc/%s/{name} ' $pids)"


ENVIRONMENT = Command(
    f"grep -sazoHE '{_ALLOWED}' {_of_processes('environ')} | tr '\\0' '\\n' {_BOUND}",
    when=_HAS_PIDS,
    shown="grep -azoHE VARIABLES /proc/PID/environ",
)
COMMAND_LINES = Command(
    f"grep -sazH '' {_of_processes('cmdline')} | tr '\\0' '\\n' | {_MASK} {_BOUND}",
    when=_HAS_PIDS,
    shown="grep -azH . /proc/PID/cmdline",
)
USER = Command("id -u")
CORES = Command("nproc --all")
UPTIME = Command("cat /proc/uptime")
PROCESSES = Command(f"cat /proc/[0-9]*/stat {_BOUND}", shown="cat /proc/PID/stat")
MAIN_THREADS = Command(
    f"cat $(for p in $pids; do echo /proc/$p/task/$p/stat; done) {_BOUND}",
    when=_HAS_PIDS,
    shown="cat /proc/PID/task/PID/stat",
)
WAITS = Command(f"grep -sH '' {_of_processes('wchan')} {_BOUND}", when=_HAS_PIDS, shown="grep -H . /proc/PID/wchan")
DISK = Command(
    f"grep -sHE '^(read|write)_bytes' {_of_processes('io')} {_BOUND}",
    when=_HAS_PIDS,
    shown="grep -H _bytes /proc/PID/io",
)
NETWORKS = Command(
    f"ls -1iL /proc/self/ns/net {_of_processes('ns/net')} {_BOUND}", when=_HAS_PIDS, shown="ls -1iL /proc/PID/ns/net"
)
SOCKETS = Command(
    f"ss -tinp state established | grep -A1 -E \"pid=($(echo $pids | tr ' ' '|')),\" {_BOUND}",
    when=f"{_HAS_PIDS} && command -v ss >/dev/null 2>&1",
    shown="ss -tinp state established",
)
INTERFACES = Command(f"cat /proc/net/dev {_BOUND}", when=_HAS_PIDS, shown="cat /proc/net/dev")
ADDRESSES = Command(f"ip -o addr {_BOUND}", shown="ip -o addr")
SPEEDS = Command(
    f"grep -sH '' /sys/class/net/*/speed /sys/class/net/*/operstate {_BOUND}",
    shown="grep -H . /sys/class/net/NAME/speed",
)
_PORT = "/sys/class/infiniband/*/ports/*"
PORTS = Command(
    f"grep -sH '' {_PORT}/state {_PORT}/rate {_PORT}/link_layer {_BOUND}",
    when="has /sys/class/infiniband/*",
    shown="grep -H . /sys/class/infiniband/NAME/ports/PORT/state",
)
PORT_COUNTERS = Command(
    f"grep -sH '' {_PORT}/counters/port_xmit_data {_PORT}/counters/port_rcv_data {_BOUND}",
    when="has /sys/class/infiniband/*",
    shown="grep -H . /sys/class/infiniband/NAME/ports/PORT/counters",
)
_FIELDS = "index,uuid,utilization.gpu,clocks.sm,clocks.max.sm,ecc.errors.uncorrected.volatile.total"


def _gpu_query(reasons: str, when: str) -> Command:
    fields = f"{_FIELDS},{reasons}.active"
    return Command(f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits", limited=True, when=when)


GPUS = _gpu_query("clocks_event_reasons", _HAS_GPUS)
GPUS_BEFORE_535 = _gpu_query("clocks_throttle_reasons", f"{_HAS_GPUS} && smi=$code && {UNKNOWN_FIELD}")
GPU_PROCESSES = Command(
    "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader,nounits", limited=True, when=_HAS_GPUS
)
KERNEL_LOG = Command("dmesg 2>&1 | grep -E 'NVRM: Xid|not permitted' | tail -n 100", shown="dmesg")
# A line beginning with NCCL's prefix, which printed variables do not have: `host:pid:tid [gpu] ... NCCL INFO ...`.
_NCCL_LINE = (
    r"[A-Za-z0-9_.-]{1,255}:[0-9]+:[0-9]+ \[[0-9]+\] ([^ [:cntrl:]]+ )?NCCL (INFO|WARN|TRACE) [^[:cntrl:]]{0,1000}"
    r"|^NCCL version [0-9][^ [:cntrl:]]{0,100}"
)
_SEARCH = (
    f"if [ $(wc -c <$f) -le {_LOG_HEAD} ]; then cat $f; else head -c {_LOG_HEAD} $f; echo; tail -c {_LOG_TAIL} $f; fi "
    f"2>/dev/null | grep -aoE '{_NCCL_LINE}' | head -c {_LOG_LINES}"
)
NCCL_LOGS = Command(
    f"seen= n=0; for p in $pids; do for f in /proc/$p/fd/1 /proc/$p/fd/2 "
    "$(grep -sazo '^NCCL_DEBUG_FILE=[A-Za-z0-9_./%-]*' /proc/$p/environ | tr -d '\\0' | "
    'sed "s|^[^=]*=|/proc/$p/root|; s|%p|$p|g; s|%h|$(uname -n)|g"); do '
    '[ -f $f ] && [ -r $f ] || continue; l=$(readlink -f $f); case "$seen " in *" $l "*) continue;; esac; '
    f'seen="$seen $l"; n=$((n + 1)); [ $n -le {MAX_LOGS} ] || break 2; {_SEARCH}; done; done',
    when=_HAS_PIDS,
    shown="grep -a NCCL /proc/PID/fd/1",
)


class MarkedCommand(NamedTuple):
    """A command that was started to be watched: the value of MARK in its processes, and its PID if it runs here."""

    mark: str
    pid: int | None


def watch_script(seconds: int, started: MarkedCommand | None, token: str) -> str:
    """Return the script that watches for `seconds`. Its markers start with `token`."""
    find = _FIND
    if started is not None and started.pid is not None:  # leave out other trainings on this host
        own = f"grep -lsaz '^{MARK}={started.mark}' {_of_processes('environ')} | tr -dc '0-9\\n'"
        find += f'; [ -z "$pids" ] || pids=$({own})'
    waits = "" if started is None else _waiting(find, started.pid, WARM_UP * seconds)
    return f"\n{find}\n{waits}\n{script(watch_commands(seconds, started is not None), token)}"


def _waiting(find: str, pid: int | None, warm_up_s: int) -> str:
    """Return the script that waits for the first rank while the command runs, and then for some seconds.

    It prints a line each second, so that it ends with its connection. `goes_on SECONDS` waits for a time of the watch,
    and fails once all ranks or the process that started the script have ended.
    """
    runs = "true" if pid is None else f"[ -d /proc/{pid} ]"
    return "\n".join(
        (
            'lives() { [ "$(cut -d" " -f4 /proc/$$/stat)" = "$PPID" ] || return; '
            "for p in $pids; do [ -d /proc/$p ] && return; done; return 1; }",
            "goes_on() { while lives; do left=$((began + $1 - $(date +%s)))",
            '[ "$left" -gt 0 ] && [ "$left" -le "$1" ] || return 0; sleep 1; done; ended=1; return 1; }',
            f'ended= n=0; while [ -z "$pids" ] && {runs} && [ $n -lt {MAX_WAIT_S} ]; do',
            f"echo; sleep 1; n=$((n + 1)); {find}; done",
            f"n=0; while lives && [ $n -lt {warm_up_s} ]; do echo; sleep 1; n=$((n + 1)); done; {find}",
        )
    )


def watch_commands(seconds: int, may_end: bool = False) -> list[Command]:
    """Return the commands in order: constant facts, snapshots that begin with the host's clock, and logs.

    If the ranks may end before the watch, each snapshot counts bytes and seconds, and none follows their end.
    """
    counted = (PROCESSES, DISK, SOCKETS, INTERFACES, PORT_COUNTERS)
    seen = (MAIN_THREADS, WAITS, GPUS, GPUS_BEFORE_535)
    commands = [USER, CORES, ENVIRONMENT, COMMAND_LINES, NETWORKS, ADDRESSES, SPEEDS, PORTS]
    for number in range(SNAPSHOTS):
        at_s = round(number * seconds / (SNAPSHOTS - 1))
        ends = number in (0, SNAPSHOTS - 1)
        if may_end:
            commands.append(replace(UPTIME, when=f"goes_on {at_s}"))
            unless_ended = '[ -z "$ended" ]'
            commands += (replace(each, when=f"{unless_ended} && {each.when or 'true'}") for each in (*counted, *seen))
        else:
            commands += [replace(UPTIME, after_s=at_s), *(counted if ends else ()), *seen]
    return [*commands, GPU_PROCESSES, KERNEL_LOG, NCCL_LOGS]
