"""A host's end of the link test: `link_node.py` running there over SSH, asked and answering."""

from __future__ import annotations

import contextlib
import json
import queue
import shlex
import threading
from pathlib import Path
from typing import Any

from holmes_core.records.inventory import Host
from holmes_core.remote.connect import connect
from holmes_core.remote.transport import Stream
from prober.links import link_node

ANSWER_S = 15.0
_BOOTSTRAP = "import sys; i = sys.stdin.buffer; exec(compile(i.read(int(i.readline())), 'holmes', 'exec'))"


class LinkProblem(Exception):
    """A test that gave no figure. `rule` is its id in the audit catalogue, `said` all that the tool said."""

    def __init__(self, rule: str, evidence: str, said: str = "") -> None:
        super().__init__(evidence)
        self.rule = rule
        self.evidence = evidence
        self.said = said


class LinkSession:
    """One host that can be asked to take part in tests. Closing it ends everything it runs there.

    Opening raises HostError when the host cannot be entered, LinkProblem when its Python does not run.
    """

    def __init__(self, host: Host) -> None:
        self.host = host.name
        self._python = host.access.python
        self._connection = connect(host.name, host.access)
        try:
            self._stream: Stream = self._connection.open(
                f"{shlex.quote(self._python)} -I -B -c {shlex.quote(_BOOTSTRAP)}"
            )
            self._answers: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=self._collect, daemon=True).start()
            self._lost: LinkProblem | None = None
            program = Path(link_node.__file__).read_bytes()
            self._send(b"%d\n%s" % (len(program), program))
            self.tools: frozenset[str] = frozenset(self.ask("tools")["tools"])
        except BaseException:
            self._connection.close()
            raise

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Give a command and wait for its answer. Raises LinkProblem where the host reports an error or goes."""
        self.send_command(command, **values)
        return self.answer()

    def send_command(self, command: str, **values: Any) -> None:
        """Give a command."""
        self._send(json.dumps({"do": command, **values}).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises LinkProblem as `ask` does."""
        if self._lost is not None:
            raise self._lost
        try:
            line = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise self._lose(f"no answer to the link test within {ANSWER_S:g} s") from None
        if line is None:
            code, errors = self._stream.wait()
            last = (errors.strip().splitlines() or ["no message"])[-1]
            raise self._lose(f"`{self._python}` ended the link test with {code}: {last[:200]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LinkProblem("NET-PORT-CLOSED" if answer["closed"] else "PROBE-TOOL-FAILED", answer["error"])
        return answer

    def close(self) -> None:
        """End the program there and the connection."""
        self._stream.close_input()
        self._connection.close()

    def _send(self, data: bytes) -> None:
        """The answer shows whether anybody read it, and if not why."""
        with contextlib.suppress(OSError):
            self._stream.send(data)

    def _lose(self, evidence: str) -> LinkProblem:
        """After this an answer may be a late one, so every further question fails."""
        self._lost = LinkProblem("PROBE-TOOL-FAILED", evidence)
        return self._lost

    def _collect(self) -> None:
        """Answers as they come; what a login script prints is none."""
        for line in self._stream.lines():
            if line.startswith(link_node.MARK):
                self._answers.put(line[len(link_node.MARK) :])
        self._answers.put(None)
