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
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
# Those of data.md and doctor.md have tests of their own, and of some the commands need several hosts.
LOCAL_PAGES = [
    page for page in doc_session.PAGES if page not in (doc_session.DATA, doc_session.DOCTOR, *doc_session.ON_BED)
]


def name_of(page: Path) -> str:
    """Return the page's path, by which a test of it is named."""
    return str(page.relative_to(ROOT))


@pytest.mark.process
@pytest.mark.parametrize("page", LOCAL_PAGES, ids=name_of)
def test_commands_of_the_page_work_and_show_true_output(page: Path, tmp_path: Path) -> None:
    commands = doc_session.check(page, tmp_path)
    assert any(command.startswith("holmes ") for command in commands)


@pytest.mark.process
def test_commands_of_the_data_page_make_what_its_job_trains_on(tmp_path: Path) -> None:
    doc_session.check(doc_session.DATA, tmp_path)

    said = read_user_file(Job, tmp_path / "job.yaml").corpus
    data = DataSettings(str(tmp_path), documents=said.documents, validation_fraction=said.validation_fraction)
    assert not isinstance(said.path, str)
    sources = tuple(DataSource(source.path, source.weight) for source in said.path)
    corpus = load_corpus(replace(data, path=sources), "here", 64, 256)
    assert all(len(tokens) > 64 for tokens in (*corpus.training, *corpus.validation))


def test_output_that_is_measured_may_differ_in_digits_and_no_other_in_anything() -> None:
    for command, shown, printed, same in (
        ("holmes launch plan.json", "loss 5.4 -> 3.9 in 8 s\n", "loss 5.41 -> 4 in 890 ms\nrun: x\n", True),
        ("holmes launch plan.json", "loss 5.4 -> 3.9 in 8 s\n", "lost 5.4 -> 3.9 in 8 s\n", False),
        ("holmes plan job.yaml", "12 ms a step\n", "13 ms a step\n", False),
        ("holmes plan job.yaml", "12 ms a step\n...\nnext: launch\n", "12 ms a step\na\nb\nnext: launch\n", True),
        ("holmes plan job.yaml", "12 ms a step\n...\nnext: launch\n", "12 ms a step\na\nb\n", False),
    ):
        assert doc_session.is_shown(command, shown, printed) is same, (shown, printed)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make (\w+)", README))))
def test_make_target_of_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("document", DOCS, ids=name_of)
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


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_every_file_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`([\w/]+/[\w/]*\w\.(?:py|yaml|md))`", page.read_text(encoding="utf-8"))
    ours = [name for name in named if (ROOT / name.split("/")[0]).is_dir()]
    assert [name for name in ours if not (ROOT / name).is_file()] == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCS, ids=name_of)
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
