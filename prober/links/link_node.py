"""The link test on a host: a program that needs only the standard library, sent over SSH and never stored there.

It reads one JSON command per line and answers with lines that begin with MARK. It ends with its input, or after IDLE_S
without a command, and then ends the processes that it started. Python >= 3.7.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARK = "@@link "
IDLE_S = 60.0
CONNECT_S = 5.0
POINT_S = 0.002
CHUNK = bytes(256 * 1024)
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin"
_CHILDREN: list[subprocess.Popen[str]] = []


def main() -> None:
    """Run the controller's commands until its connection ends."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_SYSTEM_FOLDERS}"
    os.environ["LC_ALL"] = "C"
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen_to_controller, args=(commands,), daemon=True).start()
    while True:
        try:
            command = commands.get(timeout=IDLE_S)
        except queue.Empty:
            _end()
        try:
            _COMMANDS[command.pop("do")](**command)
        except OSError as error:
            say(error=f"{error.strerror or error}", closed=False)


def _listen_to_controller(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        commands.put(json.loads(line.decode()))
    _end()


def _end() -> None:
    """End this process at once, even if it waits for something, and all processes that it started."""
    for child in _CHILDREN:
        if child.poll() is None:
            child.terminate()  # `timeout` forwards the signal
    os._exit(0)


def say(**answer: Any) -> None:
    """Send one answer to the controller."""
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


def tools() -> None:
    """Report the installed test tools, and the options for GPU memory that ib_write_bw was built with."""
    found = ["ib_write_bw"] if shutil.which("ib_write_bw") and shutil.which("timeout") else []
    text = _help("ib_write_bw") if found else ""
    found += [option for option in ("--use_cuda", "--use_cuda_dmabuf") if re.search(option + r"(?![\w])", text)]
    say(tools=found)


def _help(tool: str) -> str:
    """Return a tool's help text, or "" if none comes in time."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [tool, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CONNECT_S,
            check=False,
        )
        return done.stdout
    return ""


def echo(address: str, token: str, seconds: float) -> None:
    """Echo the data of one connection for at most `seconds`."""
    deadline = time.monotonic() + CONNECT_S + seconds
    (connection,) = _accept(address, token, 1)
    with connection:
        connection.settimeout(CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                data = connection.recv(64)
                if not data:
                    break
                connection.sendall(data)
    say(done=True)


def ping(source: str, address: str, port: int, token: str, count: int, seconds: float) -> None:
    """Report the seconds of up to `count` round trips of one byte, within `seconds`."""
    connections = _connect(source, address, port, token, 1)
    if not connections:
        return
    round_trips: list[float] = []
    with connections[0] as connection:
        connection.settimeout(CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline = time.perf_counter() + seconds
        while len(round_trips) < count and time.perf_counter() < deadline:
            started = time.perf_counter()
            connection.sendall(b".")
            if not connection.recv(1):
                break
            round_trips.append(time.perf_counter() - started)
    say(round_trips_s=round_trips)


def receive(address: str, token: str, streams: int, seconds: float, size_bytes: int) -> None:
    """Read `streams` connections together until `seconds` or `size_bytes` are reached.

    The answer has points [seconds since the first read, bytes so far].
    """
    connections = _accept(address, token, streams)
    buffer = bytearray(1 << 20)
    points, total = [[0.0, 0]], 0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        started = time.perf_counter()
        elapsed = 0.0
        while elapsed < seconds and total < size_bytes and selector.get_map():
            for key, _ in selector.select(timeout=max(0.0, seconds - elapsed)):
                total += _read(selector, key.fileobj, buffer)
            elapsed = time.perf_counter() - started
            if elapsed - points[-1][0] >= POINT_S:
                points.append([elapsed, total])
    for connection in connections:
        connection.close()
    points.append([elapsed, total])
    say(points=points)


def _read(selector: selectors.BaseSelector, connection: Any, buffer: bytearray) -> int:
    """Return the number of bytes read. Remove a connection that has ended from the selector."""
    try:
        count: int = connection.recv_into(buffer)
    except BlockingIOError:
        return 0
    except OSError:
        count = 0
    if count == 0:
        selector.unregister(connection)
    return count


def send(source: str, address: str, port: int, token: str, streams: int, seconds: float, size_bytes: int) -> None:
    """Fill `streams` connections until the receiver closes them, or `seconds` or `size_bytes` are reached."""
    connections = _connect(source, address, port, token, streams)
    if not connections:
        return
    total, deadline = 0, time.monotonic() + seconds + 1.0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE)
        while selector.get_map() and total < size_bytes and time.monotonic() < deadline:
            for key, _ in selector.select(timeout=0.1):
                total += _write(selector, key.fileobj)
    for connection in connections:
        connection.close()
    say(sent_bytes=total)


def _write(selector: selectors.BaseSelector, connection: Any) -> int:
    """Return the number of bytes sent. Remove a connection that the receiver closed from the selector."""
    try:
        count: int = connection.send(CHUNK)
    except BlockingIOError:
        return 0
    except OSError:
        selector.unregister(connection)
        return 0
    return count


def _accept(address: str, token: str, count: int) -> list[socket.socket]:
    """Accept `count` connections that begin with `token`, at a port of `address` that is reported first.

    Raises:
        OSError: They have not all come in time.
    """
    connections: list[socket.socket] = []
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen(64)
        say(port=server.getsockname()[1])
        deadline = time.monotonic() + CONNECT_S
        while len(connections) < count:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except socket.timeout:  # noqa: UP041  # it is no TimeoutError before Python 3.10
                raise OSError(f"{len(connections)} of {count} connections came within {CONNECT_S:g} s") from None
            connection.settimeout(CONNECT_S)
            if connection.recv(len(token), socket.MSG_WAITALL) == token.encode():
                connections.append(connection)
            else:
                connection.close()
    return connections


def _connect(source: str, address: str, port: int, token: str, count: int) -> list[socket.socket]:
    """Open `count` connections from `source` that begin with `token`. If one is refused, report it and return none."""
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            connection = socket.create_connection((address, port), timeout=CONNECT_S, source_address=(source, 0))
            connections.append(connection)
            connection.sendall(token.encode())
    except OSError as error:
        for connection in connections:
            connection.close()
        say(error=f"connecting to {address} port {port}: {error.strerror or error}", closed=True)
        return []
    return connections


def serve_tool(words: list[str], seconds: float) -> None:
    """Run a tool's server. `{port}` in `words` becomes a free port, which is reported once the tool listens there."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
    child = _start([word.replace("{port}", str(port)) for word in words], seconds)
    deadline = time.monotonic() + CONNECT_S
    while not _listens(port) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    say(port=port)
    _finish(child)


def run_tool(words: list[str], seconds: float) -> None:
    """Run a tool to its end, but at most for `seconds`."""
    _finish(_start(words, seconds))


def _start(words: list[str], seconds: float) -> subprocess.Popen[str]:
    """Start the tool under `timeout`, which ends it even after this program has ended."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        ["timeout", "-k", "1", f"{seconds:g}", *words],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        universal_newlines=True,
    )
    _CHILDREN[:] = [child]
    return child


def _finish(child: subprocess.Popen[str]) -> None:
    output, errors = child.communicate()
    say(exit_code=child.returncode, output=output, errors=errors)


def _listens(port: int) -> bool:
    """Return True if a socket of this host listens on `port`. The kernel's state 0A is LISTEN."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    return True
    return False


_COMMANDS: dict[str, Any] = {each.__name__: each for each in (tools, echo, ping, receive, send, serve_tool, run_tool)}

if __name__ == "__main__":
    main()
