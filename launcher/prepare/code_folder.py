"""The folder of the user's own code, named by `launch.code`: the files that are sent, and their git revision."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.records.regular_file import MIB, read_regular
from holmes_core.records.run import SentCode
from holmes_core.units import format_bytes
from launcher.prepare.bundle import as_bytes

CACHE_FOLDER = "__pycache__"
# A folder with one of these is a virtual environment or the folder of a run.
LEFT_OUT_WITH = ("pyvenv.cfg", "controller.lock")
MAX_FILES = 10_000
MAX_BYTES = 64 * MIB
NAMED = 3  # of the largest files, in an error message
GIT_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class CodeFolder:
    """Files by their path in the folder. Bytes that are not UTF-8 are lone surrogates.

    `sent` describes them in the run's record, and is None if the record already does.
    """

    files: Mapping[str, str]
    sent: SentCode | None = None


def read_code(folder: Path) -> CodeFolder:
    """Return the files to send, and the folder's revision. Raises HolmesError if any cannot be sent or is too large."""
    files = read_code_files(folder)
    revision, changed = _git_state(folder, files)
    return CodeFolder(
        files,
        SentCode(
            folder=str(folder.absolute()),
            digest=content_digest(files),
            files=len(files),
            size_bytes=sum(len(as_bytes(text)) for text in files.values()),
            revision=revision,
            changed=changed,
        ),
    )


def content_digest(files: Mapping[str, str]) -> str:
    """Return `sha256:...` over names and contents."""
    content = hashlib.sha256()
    for name in sorted(files):
        for part in (as_bytes(name), as_bytes(files[name])):
            content.update(b"%d %b" % (len(part), part))
    return f"sha256:{content.hexdigest()}"


def read_code_files(folder: Path) -> dict[str, str]:
    """Return the files of `folder` by their path in it. Raises HolmesError as `read_code` does."""
    if not folder.is_dir():
        raise HolmesError(
            f"job.yaml: launch.code: {folder}: {'is not a folder' if folder.exists() else 'does not exist'}",
            "name an existing folder, relative to that of job.yaml",
        )
    paths = _within_limits(folder, _paths(folder))
    try:
        contents = {path: read_regular(path, MAX_BYTES, inside=folder) for path in paths}
    except OSError as error:
        raise HolmesError(
            f"job.yaml: launch.code: {error.filename}: cannot be sent: {error.strerror}",
            f"make it a file inside {folder}, or name a folder without it; names that begin with a dot are left out",
        ) from None
    return {
        path.relative_to(folder).as_posix(): content.decode("utf-8", "surrogateescape")
        for path, content in contents.items()
    }


def _paths(folder: Path) -> Iterator[Path]:
    """Yield all files and links that are not left out. A link to a folder is yielded but not followed."""
    for parent, folders, files in os.walk(folder, onerror=_cannot_list):
        if parent != str(folder) and any(name in files for name in LEFT_OUT_WITH):
            folders.clear()
            continue
        here = Path(parent)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in links and _travels(name))
        yield from (here / name for name in sorted((*files, *links)) if _travels(name))


def _travels(name: str) -> bool:
    return not name.startswith(".") and name != CACHE_FOLDER and not name.endswith(".pyc")


def _cannot_list(error: OSError) -> None:
    raise HolmesError(
        f"job.yaml: launch.code: {error.filename}: cannot be read: {error.strerror}", "correct its permissions"
    )


def _within_limits(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the paths. Raises HolmesError if there are too many, or naming the largest if they are too large."""
    taken = list[Path]()
    for path in paths:
        taken.append(path)
        if len(taken) > MAX_FILES:
            raise HolmesError(
                f"job.yaml: launch.code: {folder} holds more than {MAX_FILES} files",
                "name the folder with only the code; data and weights belong on the hosts",
            )
    sizes = {path: path.lstat().st_size for path in taken}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(taken, key=lambda path: -sizes[path])[:NAMED]
        named = ", ".join(f"{path.relative_to(folder)} ({format_bytes(sizes[path])})" for path in largest)
        raise HolmesError(
            f"job.yaml: launch.code: {folder} holds {format_bytes(total)}, but at most {format_bytes(MAX_BYTES)} "
            f"can be sent; largest: {named}",
            "move everything but code out of it; data and weights belong on the hosts, named by their path there",
        )
    return taken


def _git_state(folder: Path, files: Collection[str]) -> tuple[str | None, bool | None]:
    """Return the checked-out commit, and True if the sent files differ from it; None where git does not know."""
    revision = _git(folder, "rev-parse", "HEAD")
    prefix = _git(folder, "rev-parse", "--show-prefix")
    states = _git(
        folder, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching", "--", "."
    )
    if revision is None or prefix is None or states is None:
        return (revision.strip() if revision else None), None
    inside = prefix.removesuffix("\n")
    entries = [entry for entry in states.split("\0") if entry]
    changed = any(entry[:2] not in ("??", "!!") or _is_sent(entry[3:], inside, files) for entry in entries)
    return revision.strip(), changed


def _is_sent(path: str, inside: str, files: Collection[str]) -> bool:
    """Return True if a file that git does not track is sent. A `path` that ends in a slash is a folder."""
    if path.endswith("/"):
        return inside.startswith(path) or any(f"{inside}{file}".startswith(path) for file in files)
    return path.removeprefix(inside) in files


def _git(folder: Path, *words: str) -> str | None:
    """Return git's output, None if it fails. A file watcher named by the repository is not started."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
