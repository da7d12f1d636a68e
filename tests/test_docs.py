"""README and docs are true: what they tell to type works, and what they show is what comes out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    """Fenced blocks of the README in `language` ("" for none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def session() -> list[tuple[str, str]]:
    """Commands of the README's session, each with the output shown below it."""
    (text,) = [block for block in blocks("") if block.startswith("$ ")]
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def test_readme_session_works_and_shows_true_output(tmp_path: Path) -> None:
    for text in blocks("yaml"):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "COLUMNS": "120", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = session()
    assert [command.split()[0] for command, _ in commands] == ["python3", "holmes", "holmes", "holmes", "holmes"]
    for command, shown in commands:
        if shutil.which("holmes", path=environment["PATH"]) is None:
            command = re.sub(r"^holmes ", f"{sys.executable} -m holmes_cli ", command)
            environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith(shown), f"{command}\n{done.stdout}"
    assert (tmp_path / "plan.json").exists()
    assert len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 1


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make (\w+)", README))))
def test_make_target_of_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_links_and_files_named_in_docs_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    files = re.findall(r"`((?:holmes_\w+|prober|planner|launcher|tests|templates)/[\w/.]+)`", text)
    missing = [name for name in links if not (document.parent / name).exists()]
    missing += [name for name in files if not (ROOT / name).exists()]
    assert missing == []


def test_example_files_are_valid() -> None:
    from holmes_core.hosts_file import HostsFile
    from holmes_core.job import Job
    from holmes_core.record import read_user_file

    assert len(read_user_file(HostsFile, ROOT / "templates" / "hosts.yaml").hosts) == 3
    assert read_user_file(Job, ROOT / "templates" / "job.yaml").model.num_layers == 36
