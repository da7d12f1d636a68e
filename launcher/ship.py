"""Send a node its files: the bundled runtime and the run's configuration, over the connection's standard input."""

from __future__ import annotations

from importlib.resources import files

from holmes_core.errors import HostError
from holmes_core.transport import Connection
from launcher.bundle import RUNTIME_PACKAGE, NodeBundle, archive

SHIP_TIMEOUT_S = 120.0


def runtime_files() -> dict[str, str]:
    """The sources of the bundled runtime, by their name on the node."""
    package = files(RUNTIME_PACKAGE)
    names = sorted(entry.name for entry in package.iterdir() if entry.name.endswith(".py"))
    return {f"{RUNTIME_PACKAGE}/{name}": package.joinpath(name).read_text(encoding="utf-8") for name in names}


def ship(bundle: NodeBundle, runtime: dict[str, str], connection: Connection) -> None:
    """Unpack everything in the node's private folder. Raises HostError with what the host said."""
    data = archive({**runtime, **bundle.files})
    done = connection.run(bundle.unpack_command, data, SHIP_TIMEOUT_S)
    if done.exit_code != 0:
        text = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
        raise HostError(
            bundle.node.host,
            "HOST-FILES",
            f"cannot unpack the run's files in {bundle.folder}: {text}",
            "see that the home folder is writable, has space, and that `tar` is installed",
        )
