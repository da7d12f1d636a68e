"""Files for those who contribute or cite: valid, linked, and in step with what they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli import VERSION

ROOT = Path(__file__).parent.parent
WORKFLOWS = (ROOT / ".github" / "workflows" / "tests.yml", ROOT / ".gitlab-ci.yml")
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]
TEXTS = [*sorted(ROOT.glob("*.md")), *(ROOT / ".github").rglob("*.md"), *(ROOT / ".gitlab").rglob("*.md")]


def loaded(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def scripts(value: object) -> list[str]:
    """All texts in a workflow."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in scripts(each)]
    if isinstance(value, list):
        return [text for each in value for text in scripts(each)]
    return [value] if isinstance(value, str) else []


def layers_of_ci() -> set[str]:
    """The targets that .ci/run makes."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    return set(re.findall(r"(?:\brun|\bmake) (test[\w-]*|check)", text))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_each_layer_of_ci_once_by_a_target_that_exists(path: Path) -> None:
    workflow = loaded(path)
    jobs = workflow.get("jobs", workflow)
    strategy = jobs["layer"].get("strategy", {"matrix": None})["matrix"] or jobs["layer"]["parallel"]["matrix"][0]
    (listed,) = strategy.values()
    made = [name for text in scripts(workflow) for name in re.findall(r"\bmake ([\w-]+)", text)]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(made) | set(listed) <= set(targets)
    assert sorted([*made, *listed]) == sorted(layers_of_ci())
    assert "test-cluster" in made
    tools = [text.removeprefix("sudo ") for text in scripts(workflow) if "install-tools" in text]
    assert set(tools) == {".ci/install-tools"}
    assert (ROOT / tools[0]).stat().st_mode & 0o111


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_fields_of_known_types_and_names_of_their_own(path: Path) -> None:
    form = loaded(path)
    assert set(form) == {"name", "description", "body"}
    assert {field["type"] for field in form["body"]} <= {"markdown", "textarea", "input"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names))


def test_the_citation_names_this_version_and_licence() -> None:
    """Keys are those of the Citation File Format 1.2.0."""
    citation = loaded(ROOT / "CITATION.cff")
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    known = {"type", "abstract", "version", "date-released", "license", "keywords", "references"}
    assert citation.keys() <= {"cff-version", "message", "title", "authors", *known}
    assert (citation["cff-version"], citation["type"], citation["license"]) == ("1.2.0", "software", "Apache-2.0")
    assert citation["version"] == VERSION
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", citation["date-released"])
    for entry in (citation, *citation["references"]):
        assert all(set(author) in ({"name"}, {"family-names", "given-names"}) for author in entry["authors"])


def test_the_changelog_has_a_section_of_this_version_and_the_citation_has_its_date() -> None:
    date = loaded(ROOT / "CITATION.cff")["date-released"]
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert [name for name in sections if name != "Unreleased"] == [f"{VERSION} - {date}"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_that_a_text_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [path.parent / name for name in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert [str(link) for link in links if not link.exists()] == []


def test_layers_in_the_guide_are_targets() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([\w-]+)`", guide))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert layers_of_ci() <= named <= targets


def test_both_hosts_ask_the_same_of_a_change() -> None:
    ours = ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"
    theirs = ROOT / ".gitlab" / "merge_request_templates" / "Default.md"
    assert ours.read_text(encoding="utf-8") == theirs.read_text(encoding="utf-8")
