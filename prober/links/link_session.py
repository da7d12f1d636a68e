"""The controller's sessions with the programs of the link test on a host, which are sent over SSH and never stored."""

from __future__ import annotations

import contextlib
import json
import queue
import shlex
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from holmes_core.errors import HostError
from holmes_core.records.inventory import Host
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import Stream
from holmes_runtime.node.admission import wireguard_tools
from prober.links import link_node, tunnel_end
from prober.rules.reported_rules import TUNNEL_NOT_MEASURED

ANSWER_S = 15.0
MAX_WAITING = 8  # unread answers; only one is requested at a time
_BOOTSTRAP = "import sys; i = sys.stdin.buffer; exec(compile(i.read(int(i.readline())), 'holmes', 'exec'))"


class LinkProblem(Exception):
    """A test that gave no figure. `rule` is its id in the audit catalogue, and `output` the tool's whole output.

    `remedy` overrides that of the catalogue.
    """

    def __init__(self, rule: str, evidence: str, output: str = "", remedy: str | None = None) -> None:
        super().__init__(evidence)
        self.rule = rule
        self.evidence = evidence
        self.output = output
        self.remedy = remedy


class HostProgram:
    """One of Holmes's programs on one host. Closing it ends it and all that it runs there."""

    def __init__(self, host: Host, program: ModuleType, *needed: ModuleType) -> None:
        """Start `program`, which may import `needed` and the standard library.

        Raises:
            HostError: The host cannot be entered.
        """
        self.host = host.name
        self._mark: str = program.MARK
        self._python = host.access.python_word
        self._connection = connect(host.name, host.access)
        try:
            self._stream: Stream = self._connection.open(f"{self._python} -I -B -c {shlex.quote(_BOOTSTRAP)}")
            self._answers: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
            self._too_long: str | None = None
            threading.Thread(target=self._collect, daemon=True).start()
            self._lost: LinkProblem | None = None
            text = program_text(program, *needed)
            self._send(b"%d\n%s" % (len(text), text))
        except BaseException:
            self._connection.close()
            raise

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            LinkProblem: The host reports an error, or its connection ends.
        """
        self.send_command(command, **values)
        return self.answer()

    def send_command(self, command: str, **values: Any) -> None:
        """Send a command."""
        self._send(json.dumps({"do": command, **values}).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            LinkProblem: The host reports an error, or its connection ends.
        """
        if self._lost is not None:
            raise self._lost
        try:
            line = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise self._lose(f"no answer to the link test within {ANSWER_S:g} s") from None
        if line is None and self._too_long is not None:
            raise self._lose(self._too_long)
        if line is None:
            code, errors = self._stream.wait()
            last = (errors.strip().splitlines() or ["no message"])[-1]
            raise self._lose(f"`{self._python}` ended the link test with {code}: {last[:200]}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._lose(f"`{self._python}` answered the link test with no JSON: {str(error)[:200]}") from None
        if "refused" in answer:
            raise LinkProblem(TUNNEL_NOT_MEASURED.id, answer["refused"], remedy=answer["remedy"])
        if "error" in answer:
            raise LinkProblem("NET-PORT-CLOSED" if answer["closed"] else "PROBE-TOOL-FAILED", answer["error"])
        return answer

    def close(self) -> None:
        """End the program on the host and the connection."""
        self._stream.close_input()
        self._connection.close()

    def _send(self, data: bytes) -> None:
        """Send data. A failure is ignored, because the missing answer shows it with its reason."""
        with contextlib.suppress(OSError):
            self._stream.send(data)

    def _lose(self, evidence: str) -> LinkProblem:
        """Return the problem, and fail all further questions: the next answer may be a late one."""
        self._lost = LinkProblem("PROBE-TOOL-FAILED", evidence)
        return self._lost

    def _collect(self) -> None:
        """Queue answers as they come, without lines of login scripts."""
        try:
            for line in self._stream.lines():
                if line.startswith(self._mark):
                    self._answers.put(line[len(self._mark) :])
        except HostError as error:
            self._too_long = error.evidence
        self._answers.put(None)


class LinkSession(HostProgram):
    """A host that takes part in tests."""

    def __init__(self, host: Host) -> None:
        """Start the program of the link test.

        Raises:
            HostError: The host cannot be entered.
            LinkProblem: Its Python does not run.
        """
        super().__init__(host, link_node)
        try:
            self.tools: frozenset[str] = frozenset(self.ask("tools")["tools"])
        except BaseException:
            self.close()
            raise


class TunnelSession(HostProgram):
    """A host that can make its end of a tunnel."""

    def __init__(self, host: Host) -> None:
        super().__init__(host, tunnel_end, wireguard_tools)

    def close(self) -> None:
        """Remove the tunnel and end the program on the host.

        Raises:
            LinkProblem: The host does not confirm that the tunnel is removed.
        """
        try:
            self.ask("take_down")
        finally:
            super().close()


def program_text(program: ModuleType, *needed: ModuleType) -> bytes:
    """Return the program as one text that imports the modules it needs without files."""
    lines = ["import sys, types"]
    for module in needed:
        lines += [f"module = sys.modules[{module.__name__!r}] = types.ModuleType({module.__name__!r})"]
        lines += [f"exec(compile({_source(module)!r}, {module.__name__!r}, 'exec'), module.__dict__)"]
    lines += [f"exec(compile({_source(program)!r}, {program.__name__!r}, 'exec'))"]
    return "\n".join(lines).encode()


def _source(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")
