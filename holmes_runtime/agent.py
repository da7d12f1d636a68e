"""The node agent: checks the node, starts torchrun, reports what happens, and ends everything when told or left alone.

It talks with the controller over standard input and output. Out: one JSON object a line (see `Report`). In: lines;
`go` starts the ranks, any line is a sign of life. When the input ends, or no line comes for `silence_limit_s`, all
ranks end. It imports nothing but the standard library, so that it can say when torch is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holmes_runtime.node_config import NodeConfig
from holmes_runtime.process_tree import adopt_orphans, die_with_parent, end_descendants

POLL_S = 0.05
GRACE_S = 3.0
ALIVE_S = 2.0


class Refused(Exception):
    """The node cannot run its part; the message says why, `hint` what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class Input:
    """Standard input, read only when there is something: sshd may give input and output one socket, so the
    descriptor itself stays blocking."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._rest = b""
        self.ended = False
        self.last_heard_s = time.monotonic()

    def lines(self, timeout_s: float) -> list[str]:
        """Lines that arrive within `timeout_s`; sets `ended` at the end of the input."""
        if self.ended or not self._selector.select(timeout_s):
            return []
        chunk = os.read(0, 4096)
        self.ended = not chunk
        self.last_heard_s = time.monotonic()
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


class Output:
    """Standard output, written without ever waiting longer than `patience_s`: a lost controller must not hold us up."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(1, selectors.EVENT_WRITE)
        self.lost = False

    def write(self, line: str) -> None:
        """Write one line; sets `lost` when nobody takes it, and writes nothing from then on."""
        data = line.encode()
        while data and not self.lost:
            if not self._selector.select(self._patience_s):
                self.lost = True
                return
            try:
                # No more than a pipe takes at once when it takes anything, so that the write does not block.
                written = os.write(1, data[: select.PIPE_BUF])
            except OSError:
                self.lost = True
                return
            data = data[written:]


class Tail:
    """New lines of a growing file; a last line without its end waits until it has one, or until `rest`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            self._offset += len(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        yield from self.lines()
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""


class Agent:
    """One node of one run, from check to clean-up, in the folder that was shipped to it."""

    def __init__(self, config: NodeConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._input = Input()
        self._output = Output(config.silence_limit_s)
        self._tails: dict[Path, Tail] = {}
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._told_to_stop = False
        self._last_report_s = time.monotonic()

    def run(self) -> int:
        """The exit code to end with: 0 done, 1 failed or refused, 3 stopped."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(self, "_told_to_stop", True))
        adopt_orphans()
        try:
            self._check()
            self._report(event="ready")
            if not self._wait_for_go():
                return 3
            return self._train()
        except Refused as refused:
            self._report(event="refused", what=str(refused), hint=refused.hint)
            return 1
        finally:
            end_descendants(GRACE_S)
            self._remove_folder()

    def _remove_folder(self) -> None:
        """Removes the node's folder, and the run's if no other node of it is on this machine."""
        os.chdir("/")
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()

    def _check(self) -> None:
        """Raises Refused unless torch is there, the planned interfaces exist and the master's port is free."""
        if importlib.util.find_spec("torch") is None:
            raise Refused(
                f"{sys.executable} has no torch",
                f"`{sys.executable} -m pip install torch`, or name a Python that has it: `python:` in hosts.yaml",
            )
        present = [name for _, name in socket.if_nameindex()]
        for interface in self._config.interfaces:
            if interface not in present:
                raise Refused(
                    f"no interface {interface}; there are {', '.join(present)}",
                    "the host changed since it was probed: `holmes probe` and `holmes plan` again",
                )
        if self._config.node_rank == 0:
            self._check_master_port()

    def _check_master_port(self) -> None:
        address, port = self._config.master_address, self._config.master_port
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                raise Refused(
                    f"port {port} for the rendezvous at {address} is taken: {error.strerror}",
                    "end what uses it (`ss -ltnp` shows it), or set another `master_port:` in job.yaml and plan again",
                ) from None

    def _wait_for_go(self) -> bool:
        while not self._left_alone():
            if "go" in self._input.lines(POLL_S):
                return True
        return False

    def _left_alone(self) -> bool:
        silent_s = time.monotonic() - self._input.last_heard_s
        return self._input.ended or self._output.lost or self._told_to_stop or silent_s > self._config.silence_limit_s

    def _train(self) -> int:
        verdict = self._folder / "verdict.json"
        process = self._start_torchrun(verdict)
        while process.poll() is None:
            if self._left_alone():
                end_descendants(GRACE_S)
                self._forward_output(last=True)
                return 3
            self._input.lines(POLL_S)
            self._forward_output()
            self._show_life()
        end_descendants(0.0)
        self._forward_output(last=True)
        if process.returncode != 0:
            self._report_failures(verdict, process.returncode)
        self._report(event="exit", exit_code=process.returncode)
        return 0 if process.returncode == 0 else 1

    def _show_life(self) -> None:
        """A sign of life for the controller when there has been nothing else to say."""
        if time.monotonic() - self._last_report_s > ALIVE_S:
            self._report(event="alive")

    def _start_torchrun(self, verdict: Path) -> subprocess.Popen[bytes]:
        config, logs = self._config, self._folder / "logs"
        logs.mkdir()
        arguments = [
            *("--nnodes", str(config.num_nodes), "--node-rank", str(config.node_rank)),
            *("--nproc-per-node", str(config.num_ranks), "--rdzv-backend", "static"),
            *("--master-addr", config.master_address, "--master-port", str(config.master_port)),
            *("--rdzv-id", config.run_id, "--max-restarts", "0", "--monitor-interval", "0.1"),
            *("--log-dir", str(logs), "--redirects", "3"),
            *("-m", "holmes_runtime.lean_start", "holmes_runtime.train", str(self._folder / "run_config.json")),
        ]
        environment = {**os.environ, **config.environment, "PYTHONUNBUFFERED": "1"}
        environment["HOLMES_VERDICT_FILE"] = str(verdict)
        environment["HOLMES_METRICS_DIR"] = str(self._folder)
        with open(self._folder / "torchrun.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "holmes_runtime.lean_start", "holmes_runtime.elastic", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder,
                preexec_fn=die_with_parent,
            )

    def _forward_output(self, last: bool = False) -> None:
        """Report new log lines and metrics. Ranks' logs lie in logs/RUN/attempt_0/LOCAL_RANK/{stdout,stderr}.log."""
        for path in sorted(self._folder.glob("logs/*/attempt_*/*/std*.log")):
            local_rank = int(path.parent.name)
            for line in self._new_lines(path, last):
                self._report(event="log", local_rank=local_rank, line=line)
        for path in sorted(self._folder.glob("metrics-rank*.jsonl")):
            for line in self._new_lines(path, last):
                self._report(event="metrics", metrics=json.loads(line))

    def _new_lines(self, path: Path, last: bool) -> Iterator[str]:
        tail = self._tails.setdefault(path, Tail(path))
        return tail.rest() if last else tail.lines()

    def _report_failures(self, verdict: Path, exit_code: int) -> None:
        """The ranks torchrun blames; torchrun itself when it left no verdict."""
        if verdict.exists():
            for failure in json.loads(verdict.read_text(encoding="utf-8")):
                self._report(event="failure", **failure)
            return
        lines = (self._folder / "torchrun.log").read_text(encoding="utf-8", errors="replace").splitlines()
        message = f"torchrun ended with {exit_code}: {lines[-1] if lines else 'no output'}"
        self._report(
            event="failure",
            rank=None,
            local_rank=None,
            exit_code=exit_code,
            message=message,
            time_s=time.time(),
            last_lines=lines[-20:],
        )

    def _report(self, **event: Any) -> None:
        """One line to the controller."""
        self._last_report_s = time.monotonic()
        self._output.write(json.dumps(event) + "\n")


def main() -> int:
    """`python -m holmes_runtime.agent NODE.json`, in the folder that was shipped."""
    path = Path(sys.argv[1]).absolute()
    return Agent(NodeConfig.from_json(path.read_text(encoding="utf-8")), path.parent).run()


if __name__ == "__main__":
    sys.exit(main())
