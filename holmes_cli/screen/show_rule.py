"""One rule of the audit's catalogue: its check, its effect on training, the remedy, and the source."""

from __future__ import annotations

from collections.abc import Iterable

from holmes_cli.screen.terminal import print_out
from prober.findings.catalogue import SEVERITIES, when_found
from prober.rule_text import RuleText


def show_rule(entries: Iterable[RuleText]) -> None:
    """Print every entry of one id."""
    for number, about in enumerate(entries):
        gap = "\n" if number else ""
        print_out(f"{gap}{about.id} ({about.severity}, {SEVERITIES[about.severity]})")
        lines = {"found when": when_found(about), "effect": about.effect, "do": about.remedy, "source": about.source}
        for label, text in lines.items():
            print_out(f"  {label}: {text}")
