"""Commands shown in a document, with the output shown below each: read, run, and written anew.

`python -m tests.doc_session` puts what comes out today into README.md and pages of docs; read the diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.builders.watched_runs import Watched

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FIRST_PLAN = ROOT / "docs" / "first-plan.md"
PLANNING = ROOT / "docs" / "planning.md"
DATA = ROOT / "docs" / "data.md"
DOCTOR = ROOT / "docs" / "doctor.md"
CORES = 8  # that the machine of the documents has: plans of local hosts depend on it


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks in `language` ("" for none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name == language]


def sessions(text: str) -> list[tuple[str, str]]:
    """Commands after `$ ` in blocks without a language, each with the output shown below it."""
    shown = [block for block in blocks(text, "") if block.startswith("$ ")]
    parts = [part for block in shown for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def prepare(document: Path, folder: Path) -> None:
    """Write the YAML files that the document shows, and what planning.md and first-plan.md take from elsewhere."""
    shows_files = README if document == FIRST_PLAN else document
    for text in blocks(shows_files.read_text(encoding="utf-8"), "yaml"):
        (folder / text.splitlines()[0].removeprefix("# ")).write_text(text, encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "nproc").write_text(f"#!/bin/sh\necho {CORES}\n", encoding="utf-8")
    (folder / "bin" / "nproc").chmod(0o755)
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


def run(command: str, folder: Path, columns: int) -> subprocess.CompletedProcess[str]:
    """One command as a shell runs it, with `holmes` on the path or as a module."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": str(columns), "PATH": path, "HOME": str(folder)}
    if shutil.which("holmes", path=environment["PATH"]) is None:
        command = re.sub(r"^holmes ", f"{sys.executable} -m holmes_cli ", command)
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def _refresh(document: Path, columns: int) -> None:
    """What is shown below a command becomes what it prints; where nothing is shown, nothing is."""
    text = document.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        prepare(document, Path(folder))
        for command, shown in sessions(text):
            done = run(command, Path(folder), columns)
            if done.returncode and document != DOCTOR:  # 1 says that a cause is shown
                sys.exit(f"{command}: {done.stderr}")
            if shown:
                text = text.replace(f"$ {command}\n{shown}", f"$ {command}\n{done.stdout}")
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _refresh(README, 120)
    _refresh(FIRST_PLAN, 120)
    if PLANNING.exists():
        _refresh(PLANNING, 100)
    _refresh(DATA, 120)
    _refresh(DOCTOR, 100)
