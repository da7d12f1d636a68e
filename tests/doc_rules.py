"""docs/rules.md, written from the audit's catalogue: `python -m tests.doc_rules`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prober.findings.catalogue import CATALOGUE, SEVERITIES, when_found
from prober.rule_text import RuleText

PAGE = Path(__file__).parent.parent / "docs" / "rules.md"
_INTRODUCTION = """\
# Rules of the audit

These are the findings of `holmes probe`, by rule; `holmes probe --explain RULE` prints the same. F refuses a launch,
because the run would fail or hang, or because all ranks would wait for broken hardware. W warns, I informs. A rule has
several entries if its severity depends on circumstances. Written from `prober/findings/catalogue.py` by
`python -m tests.doc_rules`.
"""


def page() -> str:
    """The page's text."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    subject = None
    for rule_id, entries in CATALOGUE.items():
        if rule_id.partition("-")[0] != subject:
            subject = rule_id.partition("-")[0]
            yield f"## {subject}\n"
        yield f"### {rule_id}\n"
        yield from map(_entry, entries)


def _entry(about: RuleText) -> str:
    lines = [
        f"- **{about.severity}** ({SEVERITIES[about.severity]}): {when_found(about)}.",
        f"  - effect: {about.effect}",
        f"  - do: {about.remedy}",
        f"  - source: {about.source}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
