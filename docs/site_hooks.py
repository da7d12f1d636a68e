"""Hooks of the site: files outside docs that pages link to are part of it, and search ranks users' pages first.

Files from outside lie below `repository/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = "repository/"
DEVELOPMENT_BOOST = 0.1  # of search results on pages for those who change the code
LISTS, LISTS_BOOST = {"rules.md", "settings.md", "cost-model.md", "glossary.md", "job.md", "hosts.md"}, 0.3
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what added pages link to in their turn."""
    seen = {each.src_uri for each in files}
    pages = [each.src_uri for each in files.documentation_pages()]
    while pages:
        for target in _targets(pages.pop()):
            if target not in seen and target.startswith(OUTSIDE):
                source = str(ROOT / _source(target))
                files.append(File.generated(config, target, abs_src_path=source, inclusion=InclusionLevel.NOT_IN_NAV))
                pages += [target] if target.endswith(".md") else []
            seen.add(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text with links to where their targets lie on the site, and rank the page in search."""
    del config, files
    uri = page.file.src_uri
    if uri.startswith(OUTSIDE) or (page.parent and page.parent.title == "Development"):
        page.meta["search"] = {"boost": DEVELOPMENT_BOOST}
    elif uri in LISTS:
        page.meta["search"] = {"boost": LISTS_BOOST}

    def moved(link: re.Match[str]) -> str:
        target = _target(uri, link[1])
        return relpath(target, dirname(uri) or ".") if target else link[1]

    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(moved, part) for number, part in enumerate(parts))


def _targets(uri: str) -> Iterator[str]:
    text = _CODE.sub("", (ROOT / _source(uri)).read_text(encoding="utf-8"))
    yield from filter(None, (_target(uri, link) for link in _LINK.findall(text)))


def _target(uri: str, link: str) -> str | None:
    """Return where the linked file lies on the site, of a folder its README; None where there is none."""
    target = normpath(join(dirname(_source(uri)), link))
    target = f"{target}/README.md" if (ROOT / target).is_dir() else target
    if target.startswith("..") or not (ROOT / target).is_file():
        return None
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{OUTSIDE}{target}"


def _source(uri: str) -> str:
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"
