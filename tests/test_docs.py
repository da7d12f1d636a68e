"""README and docs are true: what they tell to type works, and what they show is what comes out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.job import Job
from holmes_core.records.record_file import read_user_file
from holmes_runtime.config.run_settings import DataSettings, DataSource
from holmes_runtime.data.corpus import load_corpus
from tests import doc_session

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.process
def test_readme_session_works_and_shows_true_output(tmp_path: Path) -> None:
    doc_session.prepare(doc_session.README, tmp_path)
    commands = doc_session.sessions(README)
    assert [command.split()[0] for command, _ in commands] == ["python3", "holmes", "holmes", "holmes", "holmes"]
    for command, shown in commands:
        done = doc_session.run(command, tmp_path, columns=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith(shown), f"{command}\n{done.stdout}"
    assert (tmp_path / "plan.json").exists()
    assert len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 1


@pytest.mark.process
def test_commands_of_the_first_plan_page_show_true_output(tmp_path: Path) -> None:
    doc_session.prepare(doc_session.FIRST_PLAN, tmp_path)
    commands = doc_session.sessions(doc_session.FIRST_PLAN.read_text(encoding="utf-8"))
    assert [command.split()[0] for command, _ in commands] == ["python3", "holmes", "holmes"]
    for command, shown in commands:
        done = doc_session.run(command, tmp_path, columns=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith(shown), f"{command}\n{done.stdout}"


@pytest.mark.process
def test_commands_of_the_planning_page_show_true_output(tmp_path: Path) -> None:
    doc_session.prepare(doc_session.PLANNING, tmp_path)
    commands = doc_session.sessions(doc_session.PLANNING.read_text(encoding="utf-8"))
    assert len(commands) >= 4
    for command, shown in commands:
        done = doc_session.run(command, tmp_path, columns=100)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith(shown), f"{command}\n{done.stdout}"
    assert (tmp_path / "plan.html").exists()


@pytest.mark.process
def test_commands_of_the_data_page_make_what_its_job_trains_on(tmp_path: Path) -> None:
    doc_session.prepare(doc_session.DATA, tmp_path)
    for command, shown in doc_session.sessions(doc_session.DATA.read_text(encoding="utf-8")):
        done = doc_session.run(command, tmp_path, columns=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.startswith(shown), f"{command}\n{done.stdout}"

    said = read_user_file(Job, tmp_path / "job.yaml").corpus
    data = DataSettings(str(tmp_path), documents=said.documents, validation_fraction=said.validation_fraction)
    assert not isinstance(said.path, str)
    sources = tuple(DataSource(source.path, source.weight) for source in said.path)
    corpus = load_corpus(replace(data, path=sources), "here", 64, 256)
    assert all(len(tokens) > 64 for tokens in (*corpus.training, *corpus.validation))


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
    assert len(read_user_file(HostsFile, ROOT / "templates" / "hosts.yaml").hosts) == 3
    assert read_user_file(Job, ROOT / "templates" / "job.yaml").model.num_layers == 36


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_file_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`([\w/]+/[\w/]*\w\.(?:py|yaml|md))`", page.read_text(encoding="utf-8"))
    ours = [name for name in named if (ROOT / name.split("/")[0]).is_dir()]
    assert [name for name in ours if not (ROOT / name).is_file()] == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_heading_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / name if name else page, anchor) for name, anchor in links]
    assert [anchor for target, anchor in targets if anchor not in _anchors(target)] == []


def test_decisions_are_indexed_and_sorted_by_date_within_a_topic() -> None:
    index, *topics = re.split(r"^## .+\n", (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"), flags=re.M)
    titles = re.findall(r"^### (.+)$", "".join(topics), flags=re.MULTILINE)
    assert re.findall(r"^- \[(.+)\]\(#", index, flags=re.MULTILINE) == titles
    for topic in topics:
        dates = re.findall(r"^### .+\n\n(\d{4}-\d\d-\d\d)\. ", topic, flags=re.MULTILINE)
        assert len(dates) == topic.count("\n### ")
        assert dates == sorted(dates)
