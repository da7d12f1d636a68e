"""Files and commands shown in a document, with the output shown below each: written, run, and shown anew.

A block whose first line is `# NAME.yaml` or `# NAME.py` is the file NAME. A line of output that is `...` stands for any
lines. In output that is measured digits may differ, and so may the width of a table.
`python -m tests.doc_session` puts what comes out today into README.md, pages of docs and examples; read the diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.builders.watched_runs import Watched

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FIRST_PLAN = ROOT / "docs" / "first-plan.md"
PLANNING = ROOT / "docs" / "planning.md"
DATA = ROOT / "docs" / "data.md"
DOCTOR = ROOT / "docs" / "doctor.md"
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples"
ON_BED = (TUTORIALS / "two-clusters.md", EXAMPLES / "slurm-job" / "README.md")
PAGES = {
    **dict.fromkeys((README, FIRST_PLAN, DATA), 120),
    **dict.fromkeys((PLANNING, DOCTOR, ROOT / "docs" / "ten-clusters.md"), 100),
    **dict.fromkeys((*sorted(TUTORIALS.glob("*.md")), *sorted(EXAMPLES.glob("*/README.md"))), 100),
}
"""Documents whose commands are run, with the columns of the terminal they show."""
MEASURED = re.compile(r"holmes (demo|launch|status|ps|stop)\b|sbatch ")
CORES = 8  # that the machine of the documents has: plans of local hosts depend on it


def blocks(text: str, *languages: str) -> list[str]:
    """Return the fenced blocks in any of `languages` ("" for none), in their order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name in languages]


def sessions(text: str) -> list[tuple[str, str]]:
    """Return the commands after `$ ` in blocks without a language, each with the output shown below it."""
    shown = [block for block in blocks(text, "") if block.startswith("$ ")]
    parts = [part for block in shown for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def prepare(document: Path, folder: Path) -> None:
    """Make what pages take from elsewhere: a tool, the files of an example, and other pages' files."""
    if document.is_relative_to(EXAMPLES):
        shutil.copytree(document.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bin").mkdir()
    (folder / "bin" / "nproc").write_text(f"#!/bin/sh\necho {CORES}\n", encoding="utf-8")
    (folder / "bin" / "nproc").chmod(0o755)
    if document == FIRST_PLAN:
        write_files(README.read_text(encoding="utf-8"), folder)
    if document == PLANNING:
        shutil.copy(ROOT / "templates" / "examples" / "two_clusters.json", folder / "inventory.json")
        (folder / "examples").symlink_to(ROOT / "templates" / "examples")
    if document == DOCTOR:
        shutil.copytree(ROOT / "tests" / "data" / "nccl_logs", folder, dirs_exist_ok=True)
        watched = Watched()
        for host in watched.hosts:
            watched.quiet(host)
        watched.state("a2", "TTTTTT")
        watched.write(folder / "stopped_rank")


def write_files(text: str, folder: Path) -> None:
    """Write the files that a text shows."""
    for block in blocks(text, "yaml", "python", "sh"):
        if named := re.match(r"# ([\w./-]+\.(?:yaml|py|sh))\n", block):
            (folder / named[1]).parent.mkdir(exist_ok=True)
            (folder / named[1]).write_text(block, encoding="utf-8")


def run(command: str, folder: Path, columns: int, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with `holmes` on the path or as a module; `prefix` goes before the shell."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": str(columns), "PATH": path, "HOME": str(folder)}
    if shutil.which("holmes", path=environment["PATH"]) is None:
        command = re.sub(r"^holmes ", f"{sys.executable} -m holmes_cli ", command)
    environment["PYTHONPATH"] = str(ROOT)
    words = [*prefix, "/bin/sh", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


def play(
    document: Path, folder: Path, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, subprocess.CompletedProcess[str]]]:
    """Write the page's files and run its commands as they come; yield each command, what is shown, and what came."""
    text = document.read_text(encoding="utf-8")
    prepare(document, folder)
    for block in re.findall(r"^```\w*\n.*?^```$", text, flags=re.MULTILINE | re.DOTALL):
        write_files(block, folder)
        for command, shown in sessions(block):
            yield command, shown, run(command, folder, PAGES[document], prefix)


def is_shown(command: str, shown: str, printed: str, on_bed: bool = False) -> bool:
    """Return True if `shown` is what the command printed, or begins it."""
    normal = _measured if on_bed or MEASURED.search(command) else trimmed
    parts = re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)
    return re.match(".*".join(re.escape(normal(part)) for part in parts), normal(printed), flags=re.DOTALL) is not None


def check(document: Path, folder: Path, prefix: tuple[str, ...] = ()) -> list[str]:
    """Run a page, which must show what comes out; return its commands."""
    commands = []
    for command, shown, done in play(document, folder, prefix):
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert is_shown(command, shown, done.stdout, bool(prefix)), f"{command}\n{done.stdout}"
        commands.append(command)
    return commands


def trimmed(text: str) -> str:
    """Return the text without blanks at ends of lines, as under the headings of tables."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def _measured(text: str) -> str:
    """Return the text without digits, ids of runs, units of time and the widths of tables."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", text)
    text = re.sub(r"\d[\d.,]*(e-?\d+)?( (ms|s|min)\b)?", "0", text)
    return re.sub(r"[ \n━─]+", " ", text)


def refresh(document: Path, folder: Path, prefix: tuple[str, ...] = ()) -> None:
    """Put what commands print in the place of what a page shows below them, where something is shown and differs."""
    text = document.read_text(encoding="utf-8")
    for command, shown, done in play(document, folder, prefix):
        if done.returncode and document != DOCTOR:  # 1 says that a cause is shown
            sys.exit(f"{command}: {done.stderr}")
        if shown and not is_shown(command, shown, done.stdout, bool(prefix)):
            text = text.replace(f"$ {command}\n{shown}", f"$ {command}\n{trimmed(done.stdout)}")
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for page in [Path(each).absolute() for each in sys.argv[1:]] or [each for each in PAGES if each not in ON_BED]:
        with tempfile.TemporaryDirectory() as temporary:
            refresh(page, Path(temporary))
