"""Findings on impossible answers: values out of bounds, digits of other scripts, and mixed lines of several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import Finding, Host
from prober.asking.plain_text import lines_with_other_digits
from prober.asking.recording import Recorded
from prober.rules.reported_rules import HOSTS_MIXED, VALUE_IMPOSSIBLE

_SHOWN = 6  # of many values


def value_findings(host: Host, outputs: Sequence[Recorded]) -> Iterable[Finding]:
    """Yield one finding on all impossible values of the host, and one on each output that mixes hosts."""
    shown = [f"{each.source}: {each.subject} has {each.fact} {each.value!r}" for each in host.impossible]
    shown += [
        f"{output.tool}: {line[:60]!r} has digits that are not 0 to 9"
        for output in outputs
        for line in lines_with_other_digits(output.text)
    ]
    if shown:
        more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        yield VALUE_IMPOSSIBLE.finding((host.name,), "; ".join(shown[:_SHOWN]) + more)
    for output in outputs:
        if output.hosts_mixed:
            mixed = ", ".join(output.hosts_mixed[:8])
            yield HOSTS_MIXED.finding((host.name,), f"{output.tool}: lines of {mixed}, none of them called {host.name}")
