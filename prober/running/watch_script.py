"""Commands that observe a host's training processes for a few seconds.

They only read, and need no privileges beyond the user's own.

Sources: proc(5), ss(8), nvidia-smi(1), Linux Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from prober.asking.commands import Command, script
from prober.facts.gpu.gpu_query import UNKNOWN_FIELD
from prober.running.processes import MARK

SNAPSHOTS = 6  # each reads process states and GPUs; the first and the last also read byte and CPU-time counters
MAX_PROCESSES = 512  # per host
MAX_OUTPUT_BYTES = 4 << 20  # per command
MAX_LOGS = 16  # per host
MAX_WAIT_S = 3600  # until the first rank of a started command appears
WARM_UP_FACTOR = 2  # warm-up as a multiple of the watch; meanwhile ranks import modules, compile and load weights
_LOG_HEAD = 1 << 20  # bytes searched at a log's start
_LOG_TAIL = 1 << 18  # bytes searched at a longer log's end
_MAX_KEPT_LOG_BYTES = 1 << 17  # of matching lines, per log

READ_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", MARK),
)
"""The environment variables we read, in addition to every NCCL_* one. No other variable leaves the host."""

_RANK = "^(RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)="
_ALLOWED = f"^({'|'.join(READ_VARIABLES)}|NCCL_[A-Z0-9_]+)=[^[:cntrl:]]{{0,200}}"
_FIND = (
    f"pids=$(grep -lsazE '{_RANK}' /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\\n' | sort -n | "
    f"head -n {MAX_PROCESSES})"
)
_HAS_PIDS = '[ -n "$pids" ]'
# Once nvidia-smi has timed out (124 or 137), do not run it again. GPUS_BEFORE_535 saves its exit code in $smi.
_HAS_GPUS = "command -v nvidia-smi >/dev/null 2>&1 && case $smi in 124|137) false;; esac"
_CAPPED = f"2>/dev/null | head -c {MAX_OUTPUT_BYTES}"
# Keeps the names of the program, scripts, modules and options, and integers of up to six digits unless they follow an
# option named like a secret. Everything else becomes ***.
_MASK = (
    "awk '!/^\\/proc\\/[0-9]+\\/cmdline:/ { next } "
    '{ at = index($0, ":"); file = substr($0, 1, at); word = substr($0, at + 1); first = file != last; last = file; '
    "secret = tolower(before) ~ /secret|token|pass|key|cred|auth/ } "
    # the program, without its folder and whatever follows a space
    'first { sub(/ .*/, "", word); sub(/.*\\//, "", word); secret = 0 } '
    # an option: its name (only the letter of a short one), and its value if it is such an integer
    '!first && word ~ /^--?[A-Za-z]/ { name = word; sub(/=.*/, "", name); value = substr(word, length(name) + 2); '
    'if (name !~ /^--?[A-Za-z0-9_.-]+$/) name = "***"; '
    'if (name !~ /^--/ && length(name) > 2) name = substr(name, 1, 2) "***"; '
    "secret = tolower(name) ~ /secret|token|pass|key|cred|auth/; "
    'shown = !secret && value ~ /^[0-9]+$/ && length(value) < 7 ? value : "***"; '
    'print file (word ~ /=/ ? name "=" shown : name); before = name; next } '
    # a module after -m
    '!first && before == "-m" && word ~ /^[A-Za-z0-9_.]+$/ { print file word; before = ""; next } '
    # a script, without its folder
    '!first && word ~ /\\.py$/ && !secret { sub(/.*\\//, "", word); print file word; before = ""; next } '
    'first || (!secret && word ~ /^[0-9]+$/ && length(word) < 7) { print file word; before = ""; next } '
    '{ print file "***"; before = "" }\''
)


def _proc_paths(name: str) -> str:
    return f"$(printf '/proc/%s/{name} ' $pids)"


ENVIRONMENT = Command(
    f"grep -sazoHE '{_ALLOWED}' {_proc_paths('environ')} | tr '\\0' '\\n' {_CAPPED}",
    when=_HAS_PIDS,
    shown="grep -azoHE VARIABLES /proc/PID/environ",
)
COMMAND_LINES = Command(
    f"grep -sazH '' {_proc_paths('cmdline')} | tr '\\0' '\\n' | {_MASK} {_CAPPED}",
    when=_HAS_PIDS,
    shown="grep -azH . /proc/PID/cmdline",
)
USER = Command("id -u")
CORES = Command("nproc --all")
UPTIME = Command("cat /proc/uptime")
PROCESSES = Command(f"cat /proc/[0-9]*/stat {_CAPPED}", shown="cat /proc/PID/stat")
MAIN_THREADS = Command(
    f"cat $(for p in $pids; do echo /proc/$p/task/$p/stat; done) {_CAPPED}",
    when=_HAS_PIDS,
    shown="cat /proc/PID/task/PID/stat",
)
WAIT_CHANNELS = Command(
    f"grep -sH '' {_proc_paths('wchan')} {_CAPPED}", when=_HAS_PIDS, shown="grep -H . /proc/PID/wchan"
)
DISK = Command(
    f"grep -sHE '^(read|write)_bytes' {_proc_paths('io')} {_CAPPED}",
    when=_HAS_PIDS,
    shown="grep -H _bytes /proc/PID/io",
)
NETWORK_NAMESPACES = Command(
    f"ls -1iL /proc/self/ns/net {_proc_paths('ns/net')} {_CAPPED}", when=_HAS_PIDS, shown="ls -1iL /proc/PID/ns/net"
)
SOCKETS = Command(
    f"ss -tinp state established | grep -A1 -E \"pid=($(echo $pids | tr ' ' '|')),\" {_CAPPED}",
    when=f"{_HAS_PIDS} && command -v ss >/dev/null 2>&1",
    shown="ss -tinp state established",
)
INTERFACES = Command(f"cat /proc/net/dev {_CAPPED}", when=_HAS_PIDS, shown="cat /proc/net/dev")
ADDRESSES = Command(f"ip -o addr {_CAPPED}", shown="ip -o addr")
SPEEDS = Command(
    f"grep -sH '' /sys/class/net/*/speed /sys/class/net/*/operstate {_CAPPED}",
    shown="grep -H . /sys/class/net/NAME/speed",
)
_PORT = "/sys/class/infiniband/*/ports/*"
PORTS = Command(
    f"grep -sH '' {_PORT}/state {_PORT}/rate {_PORT}/link_layer {_CAPPED}",
    when="has /sys/class/infiniband/*",
    shown="grep -H . /sys/class/infiniband/NAME/ports/PORT/state",
)
PORT_COUNTERS = Command(
    f"grep -sH '' {_PORT}/counters/port_xmit_data {_PORT}/counters/port_rcv_data {_CAPPED}",
    when="has /sys/class/infiniband/*",
    shown="grep -H . /sys/class/infiniband/NAME/ports/PORT/counters",
)
_FIELDS = "index,uuid,utilization.gpu,clocks.sm,clocks.max.sm,ecc.errors.uncorrected.volatile.total"


def _gpu_query(reasons: str, when: str) -> Command:
    fields = f"{_FIELDS},{reasons}.active"
    return Command(f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits", limited=True, when=when)


GPUS = _gpu_query("clocks_event_reasons", _HAS_GPUS)
# Drivers before 535 call the field clocks_throttle_reasons.
GPUS_BEFORE_535 = _gpu_query("clocks_throttle_reasons", f"{_HAS_GPUS} && smi=$code && {UNKNOWN_FIELD}")
GPU_PROCESSES = Command(
    "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader,nounits", limited=True, when=_HAS_GPUS
)
# `not permitted` keeps dmesg's refusal, which would otherwise look like a log without errors.
KERNEL_LOG = Command("dmesg 2>&1 | grep -E 'NVRM: Xid|not permitted' | tail -n 100", shown="dmesg")
# Match NCCL's own prefix, so that printed variables are not picked up: `host:pid:tid [gpu] ... NCCL INFO ...`.
_NCCL_LINE = (
    r"[A-Za-z0-9_.-]{1,255}:[0-9]+:[0-9]+ \[[0-9]+\] ([^ [:cntrl:]]+ )?NCCL (INFO|WARN|TRACE) [^[:cntrl:]]{0,1000}"
    r"|^NCCL version [0-9][^ [:cntrl:]]{0,100}"
)
_SEARCH = (
    f"if [ $(wc -c <$f) -le {_LOG_HEAD} ]; then cat $f; else head -c {_LOG_HEAD} $f; echo; tail -c {_LOG_TAIL} $f; fi "
    f"2>/dev/null | grep -aoE '{_NCCL_LINE}' | head -c {_MAX_KEPT_LOG_BYTES}"
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
    """A command started in order to watch it.

    `mark` is the value of MARK in its processes. `pid` is None if it was started on another host.
    """

    mark: str
    pid: int | None


def watch_script(seconds: int, started: MarkedCommand | None, token: str) -> str:
    """Return the script that watches for `seconds`. Its markers start with `token`."""
    find = _FIND
    if started is not None and started.pid is not None:  # ignore other training jobs on this host
        own = f"grep -lsaz '^{MARK}={started.mark}' {_proc_paths('environ')} | tr -dc '0-9\\n'"
        find += f'; [ -z "$pids" ] || pids=$({own})'
    wait = "" if started is None else _wait_script(find, started.pid, WARM_UP_FACTOR * seconds)
    return f"\n{find}\n{wait}\n{script(watch_commands(seconds, started is not None), token)}"


def _wait_script(find: str, pid: int | None, warm_up_s: int) -> str:
    """Return the script that waits for the first rank (giving up if the command exits), then for the warm-up.

    It prints an empty line every second, so that a lost connection kills it with SIGPIPE. `wait_until SECONDS` waits
    until that many seconds into the watch, and fails as soon as all ranks or the script's parent have exited.
    """
    runs = "true" if pid is None else f"[ -d /proc/{pid} ]"
    return "\n".join(
        (
            'is_alive() { [ "$(cut -d" " -f4 /proc/$$/stat)" = "$PPID" ] || return; '
            "for p in $pids; do [ -d /proc/$p ] && return; done; return 1; }",
            "wait_until() { while is_alive; do left=$((began + $1 - $(date +%s)))",
            '[ "$left" -gt 0 ] && [ "$left" -le "$1" ] || return 0; sleep 1; done; ended=1; return 1; }',
            f'ended= n=0; while [ -z "$pids" ] && {runs} && [ $n -lt {MAX_WAIT_S} ]; do',
            f"echo; sleep 1; n=$((n + 1)); {find}; done",
            f"n=0; while is_alive && [ $n -lt {warm_up_s} ]; do echo; sleep 1; n=$((n + 1)); done; {find}",
        )
    )


def watch_commands(seconds: int, may_end: bool = False) -> list[Command]:
    """Return the commands in order: constant facts, snapshots that begin with the host's clock, and logs.

    If the ranks may exit during the watch, every snapshot reads the counters, and none is taken after their exit.
    """
    counters = (PROCESSES, DISK, SOCKETS, INTERFACES, PORT_COUNTERS)
    states = (MAIN_THREADS, WAIT_CHANNELS, GPUS, GPUS_BEFORE_535)
    commands = [USER, CORES, ENVIRONMENT, COMMAND_LINES, NETWORK_NAMESPACES, ADDRESSES, SPEEDS, PORTS]
    for number in range(SNAPSHOTS):
        at_s = round(number * seconds / (SNAPSHOTS - 1))
        is_first_or_last = number in (0, SNAPSHOTS - 1)
        if may_end:
            commands.append(replace(UPTIME, when=f"wait_until {at_s}"))
            unless_ended = '[ -z "$ended" ]'
            for command in (*counters, *states):
                commands.append(replace(command, when=f"{unless_ended} && {command.when or 'true'}"))
        else:
            commands += [replace(UPTIME, after_s=at_s), *(counters if is_first_or_last else ()), *states]
    return [*commands, GPU_PROCESSES, KERNEL_LOG, NCCL_LOGS]
