"""The node agent: checks the node, starts torchrun, records events, and ends everything on command.

It works in the folder that was sent to its node, and communicates through files there, with one record of `messages.py`
per line. It appends messages to a file, and reads commands from the pipe `commands`, where an empty line is a sign of
life from the controller. `relay.py` carries both. An attached run ends after `silence_limit_s` without a sign of life;
a detached run continues. The agent must not import torch, which may be missing, nor modules that load slowly, such as
dataclasses and concurrent.futures.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from holmes_runtime.config import messages
from holmes_runtime.config.islands.rendezvous_messages import FromMeeting
from holmes_runtime.config.node_config import AGENT_LOCK_FILE, TRAINER_FILE, NodeConfig, hca_ports, memory_folder
from holmes_runtime.config.rank_metrics import (
    GROUPS_FILE,
    METRICS_FILE,
    NOTICES_FILE,
    OUTER_SYNCS_FILE,
    ByteCounters,
    GroupRecord,
    RankMetrics,
    RankNotice,
    RankOuterSync,
)
from holmes_runtime.config.strict_json import parse
from holmes_runtime.node.admission.gpu_claims import GpuClaims
from holmes_runtime.node.admission.keyed_frames import rank_key
from holmes_runtime.node.admission.rendezvous_gate import RendezvousGate
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS, StoreGate
from holmes_runtime.node.admission.tunnel import Tunnel, take_down
from holmes_runtime.node.interface_counters import read_byte_counters, read_port_counters
from holmes_runtime.node.left_behind import hold, remove_memory, remove_unstarted
from holmes_runtime.node.listeners import Listeners
from holmes_runtime.node.mailbox import CommandPipe, MessageFile
from holmes_runtime.node.node_facts import oom_kills, read_facts
from holmes_runtime.node.process_tree import (
    Process,
    adopt_orphans,
    descendants,
    end_descendants,
    local_rank_of,
    read_process,
    send,
    survives,
)
from holmes_runtime.node.relay import AGENT_FILE, COMMANDS_PIPE, WAKING_PIPE, AgentAsChild, relay, wake_relay
from holmes_runtime.node.start_torchrun import FAILURES_FILE, TEMPORARY_LINK, TORCHRUN_LOG, start_torchrun
from holmes_runtime.node.tail import LeftFiles, Tail

POLL_S = 0.1
WAITING_POLL_S = 0.5
GRACE_S = 3.0
NOTICED_S = 5.0  # added to the silence limit: by then the controller has noticed that the agent is silent
ALIVE_S = 2.0
COUNTERS_S = 0.5
RECORDS_OF_RANKS: Mapping[str, type[messages.Message]] = {
    NOTICES_FILE: RankNotice,  # first, because notices precede the steps after them
    GROUPS_FILE: GroupRecord,
    OUTER_SYNCS_FILE: RankOuterSync,
    METRICS_FILE: RankMetrics,
    messages.POSITIONS_FILE: messages.RankPosition,
}
"""The type of the records in each file of a rank that is forwarded line by line, by file name."""


class Agent:
    """The agent of one node in one attempt of a run, from the first check to the end of its processes."""

    def __init__(self, config: NodeConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._commands = CommandPipe(folder / COMMANDS_PIPE)
        self._messages = MessageFile(folder)
        self._report = self._messages.report
        self._listeners = Listeners(config)
        self._tunnel = Tunnel(config, config.tunnel, folder) if config.tunnel is not None else None
        self._meeting: RendezvousGate | None = None
        self._tails: dict[Path, Tail] = {}
        self._left_files = LeftFiles(folder)
        self._gpu_claims = GpuClaims()
        self._stop_requested = self._was_signalled = False  # by the controller; by a signal
        self._ranks_are_up = False
        self._oom_kills = oom_kills()
        self._counted_s = 0.0
        self._gpu_kinds: tuple[str, ...] = ()

    def run(self) -> int:
        """Run the attempt. Return the exit code: 0 done, 1 failed, 3 stopped or without a controller."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(self, "_was_signalled", True))
        # Open the tunnel before adopting orphans, so that wireguard-go outlives the ranks.
        tunnel_end = self._tunnel.open() if self._tunnel is not None else None
        adopt_orphans()
        memory = Path(memory_folder(self._config.run_id, self._config.host))
        lock = hold(memory)
        try:
            remove_memory(time.time())
            remove_unstarted(time.time(), self._folder.parents[1])
            facts = read_facts(self._config, self._folder)
            planned = {gpu.name for gpu in facts.gpus or () if gpu.gpu_index in self._config.gpus}
            self._gpu_kinds = tuple(sorted(planned))
            taken = self._gpu_claims.take(self._config.gpus, facts.gpus or (), self._config.run_id)
            listeners = self._listeners.open(facts.interfaces)
            rendezvous = self._listeners.open_rendezvous()
            self._report(messages.Ready(facts._replace(gpus_taken=taken), listeners, rendezvous, tunnel_end))
            go = self._wait_for_go()
            return 3 if go is None else self._train(go)
        finally:
            self._end(GRACE_S)
            if memory.exists() and not self._controller_returns():
                shutil.rmtree(memory, ignore_errors=True)
            if lock is not None:
                lock.close()
            if self._tunnel is not None:
                self._tunnel.release()

    def _end(self, grace_s: float) -> None:
        """End all ranks, and report those that cannot be ended because they wait for a device."""
        stuck = [f"{process.pid} {process.name} (state {process.state})" for process in end_descendants(grace_s)]
        if stuck:
            self._report(messages.Stuck(tuple(stuck)))

    def _wait_for_go(self) -> messages.Go | None:
        """Return the command to start the ranks, or None if the agent must end first."""
        while not self._must_end():
            for command in self._commands.take(WAITING_POLL_S):
                if isinstance(command, messages.Reach):
                    self._report(messages.Reached(self._listeners.reach(command.destinations)))
                elif isinstance(command, messages.Meet) and self._tunnel is not None:
                    self._report(messages.Met(self._tunnel.meet(command.ends)))
                elif isinstance(command, messages.Go):
                    return command
                else:
                    self._carry_out(command)
            self._send_sign_of_life()
        return None

    def _must_end(self) -> bool:
        return self._stop_requested or self._was_signalled or (not self._config.detached and self._is_abandoned())

    def _is_abandoned(self) -> bool:
        """Return True if the controller has been silent too long to be expected back."""
        return time.monotonic() - self._commands.last_heard_s > self._config.silence_limit_s

    def _controller_returns(self) -> bool:
        """Return True once the controller is heard from, False if it is lost. Another agent may have noticed first."""
        self._hear(0.0)
        since_s = time.monotonic()
        while not self._was_signalled and not self._is_abandoned():  # a signal may come, as at the end of a Slurm job
            if self._stop_requested or self._commands.last_heard_s >= since_s:
                return True
            self._hear(POLL_S)
        return False

    def _hear(self, timeout_s: float, torchrun: int | None = None) -> None:
        for command in self._commands.take(timeout_s):
            self._carry_out(command, torchrun)
        self._send_sign_of_life()

    def _train(self, go: messages.Go) -> int:
        nodes, secret = self._config.node_addresses, bytes.fromhex(go.secret)
        try:
            gate = StoreGate(nodes, self._config.node_rank, go.master_port, secret, self._listeners.rendezvous)
            self._meeting = RendezvousGate(self._report_at_once) if self._config.meets else None
        except OSError as error:
            message = f"nothing can listen at {GATE_ADDRESS} here ({error.strerror}): give interface lo 127.0.0.1/8"
            self._report(messages.RankFailed(None, 1, message, time.time()))
            return 1
        torchrun = start_torchrun(self._config, self._folder, gate, self._meeting, rank_key(secret))
        gate.open()
        self._listeners.close()
        self._report(messages.Started())
        while torchrun.poll() is None:
            # Read commands just before checking for silence, because this process may have been suspended meanwhile.
            # Ranks first take seconds to import torch, so look less often until they are up.
            self._hear(POLL_S if self._ranks_are_up else WAITING_POLL_S, torchrun.pid)
            if self._must_end():
                self._end(GRACE_S)
                self._forward_output(last=True)
                return 3
            self._forward_output()
            # On a full disk ranks fail at their next line of metrics, with no room for the reason.
            fault = self._with_disk("the ranks were ended") if self._messages.disk_was_full else gate.fault
            if fault is not None:
                self._report(messages.RankFailed(None, 1, fault, time.time()))
                self._end(GRACE_S)
                return 1
        self._end(0.0)
        self._forward_output(last=True)
        if torchrun.returncode != 0 and gate.fault is not None:
            self._report(messages.RankFailed(None, 1, gate.fault, time.time()))
        elif torchrun.returncode != 0:
            self._report_failures(torchrun.returncode)
        self._report(messages.Exited(torchrun.returncode))
        return 0 if torchrun.returncode == 0 else 1

    def _carry_out(self, command: messages.Command | messages.Refused, torchrun: int | None = None) -> None:
        """Carry out a command. `Save` and `Stacks` are for ranks, so without torchrun they do nothing."""
        if isinstance(command, messages.Stop):
            self._stop_requested = True
        elif isinstance(command, messages.Refused):
            self._report(command)
        elif isinstance(command, FromMeeting) and self._meeting is not None:
            self._meeting.hand_on(command)
        elif isinstance(command, messages.Save) and torchrun is not None:
            send(self._ranks(torchrun).values(), signal.SIGTERM)
        elif isinstance(command, messages.Stacks) and torchrun is not None:
            self._report(messages.RankStates(self._ask_ranks(torchrun)))

    def _ask_ranks(self, torchrun: int) -> tuple[messages.RankState, ...]:
        """Ask every rank for its position, and return the process state that the kernel gives for each.

        The signal would end a rank that is a user's shell. It therefore goes to the first process, from the rank
        downwards, that survives it.
        """
        (self._folder / messages.ASK_FILE).touch()
        ranks = self._ranks(torchrun)
        for rank in ranks.values():
            for number in (signal.SIGUSR1, messages.ASK_SIGNAL):
                asked = (one for one in (rank, *descendants(rank.pid)) if survives(one.pid, number))
                send(itertools.islice(asked, 1), number)
        return tuple(messages.RankState(local_rank, process.state) for local_rank, process in ranks.items())

    def _ranks(self, torchrun: int) -> dict[int, Process]:
        """Return the processes that torchrun has started, by local rank."""
        children = [process for process in descendants(torchrun) if process.parent == torchrun]
        with_ranks = ((local_rank_of(process.pid), process) for process in children)
        return {local_rank: process for local_rank, process in with_ranks if local_rank is not None}

    def _send_sign_of_life(self) -> None:
        """Send the controller a sign of life if nothing else was sent lately."""
        if time.monotonic() - self._messages.last_s > ALIVE_S:
            self._report(messages.Alive())

    def _forward_output(self, last: bool = False) -> None:
        """Report new log lines and metrics. The logs of ranks are logs/RUN/attempt_0/LOCAL_RANK/{stdout,stderr}.log."""
        logs = sorted(self._folder.glob("logs/*/attempt_*/*/std*.log"))
        if not self._ranks_are_up and len({path.parent for path in logs}) == self._config.num_ranks:
            self._ranks_are_up = True
            self._report(messages.RanksUp())
        if (self._folder / TRAINER_FILE).exists() and time.monotonic() - self._counted_s > COUNTERS_S:
            self._counted_s = time.monotonic()
            self._report(messages.HostCounters(self._counters(), self._gpu_kinds))  # before the steps that they cover
        for path in logs:
            for line in self._new_lines(path, last):
                self._report(messages.RankPrinted(int(path.parent.name), line))
        for name, record in RECORDS_OF_RANKS.items():
            for line in self._whole_lines(name):
                self._report(parse(record, line))
        for part in self._left_files.new():
            self._report(part)

    def _counters(self) -> dict[str, ByteCounters]:
        """Return the current counters of the planned interfaces and RDMA ports."""
        counters = {name: count for name, count in read_byte_counters().items() if name in self._config.addresses}
        return counters | read_port_counters(hca_ports(self._config.environment.get("NCCL_IB_HCA", "")))

    def _whole_lines(self, name: str) -> Iterator[str]:
        for path in sorted(self._folder.glob(name.format(rank="*"))):
            yield from self._new_lines(path, last=False)

    def _new_lines(self, path: Path, last: bool) -> Iterator[str]:
        tail = self._tails.setdefault(path, Tail(path))
        return tail.rest() if last else tail.lines()

    def _report_failures(self, exit_code: int) -> None:
        """Report the ranks that torchrun blames, or torchrun itself if it blames none."""
        killed = oom_kills() - self._oom_kills
        if (failures := self._folder / FAILURES_FILE).exists():
            for line in failures.read_text(encoding="utf-8").splitlines():
                failed = parse(messages.RankFailed, line)
                self._report(failed._replace(message=self._with_disk(failed.message), oom_kills=killed))
            return
        lines = (self._folder / TORCHRUN_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        message = self._with_disk(f"torchrun ended with {exit_code}: {lines[-1] if lines else 'no output'}")
        self._report(messages.RankFailed(None, exit_code, message, time.time(), tuple(lines[-20:]), killed))

    def _with_disk(self, message: str) -> str:
        """Return a failure's message, with a note if the disk was full: a rank may lack the room to write one."""
        is_full = self._messages.disk_was_full or shutil.disk_usage(self._folder).free == 0
        if not is_full or "No space left on device" in message:
            return message
        return f"{message.rstrip()}\nNo space left on device: {self._folder}"

    def _report_at_once(self, message: messages.Message) -> None:
        self._messages.report(message)
        wake_relay(self._folder)


def _clean_up(folder: Path, detached: bool) -> None:
    """Remove the run's files on the node. A detached run's folder stays, for a controller that returns."""
    shutil.rmtree((folder / TEMPORARY_LINK).resolve(), ignore_errors=True)
    if not detached:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _become_agent(folder: Path) -> None:
    """Run the agent in a session of its own, detached from the channel that started it. Never return."""
    code, relay_pid = 1, os.getppid()
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        lock = os.open(folder / AGENT_LOCK_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        me = read_process(os.getpid())
        assert me is not None
        (folder / AGENT_FILE).write_text(json.dumps({"pid": me.pid, "start_ticks": me.start_ticks}), encoding="utf-8")
        config = NodeConfig.from_json((folder / "node.json").read_text(encoding="utf-8"))
        code = Agent(config, folder).run()
        if os.getppid() != relay_pid:  # the relay, which else cleans up, was killed
            take_down(folder)
            _clean_up(folder, config.detached)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Start the agent, and relay for it until it ends: `python -m holmes_runtime.node.agent` in the node's folder."""
    folder = Path.cwd()
    for pipe in (COMMANDS_PIPE, WAKING_PIPE):
        os.mkfifo(folder / pipe, 0o600)
    agent = os.fork()
    if agent == 0:
        _become_agent(folder)
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(agent, signal.SIGTERM))
    config = NodeConfig.from_json((folder / "node.json").read_text(encoding="utf-8"))
    relay(folder, 0, AgentAsChild(agent, folder, config.silence_limit_s + NOTICED_S).has_ended)
    end_descendants(GRACE_S)
    _clean_up(folder, config.detached)
    return 0


if __name__ == "__main__":
    sys.exit(main())
