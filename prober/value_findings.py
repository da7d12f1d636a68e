"""What in the answers cannot be: values out of bounds, digits of other scripts, lines of several hosts at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import Finding, Host
from prober.asking.plain_text import lines_with_other_digits
from prober.asking.recording import Recorded

_SHOWN = 6  # of many values


def value_findings(host: Host, outputs: Sequence[Recorded]) -> list[Finding]:
    """One finding about all values of the host that cannot be, and one for each output that mixes hosts."""
    shown = [f"{each.source}: {each.subject} has {each.fact} {each.value!r}" for each in host.impossible]
    shown += [
        f"{output.tool}: {line[:60]!r} has digits that are not 0 to 9"
        for output in outputs
        for line in lines_with_other_digits(output.text)
    ]
    return [*([_impossible(host.name, shown)] if shown else []), *_hosts_mixed(host.name, outputs)]


def _impossible(name: str, shown: Sequence[str]) -> Finding:
    more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return Finding(
        rule="PROBE-VALUE-IMPOSSIBLE",
        severity="W",
        hosts=(name,),
        evidence="; ".join(shown[:_SHOWN]) + more,
        effect="these values are taken for not known; others of the same output may be wrong unseen",
        remedy="run the tool again by hand, or correct the recording",
    )


def _hosts_mixed(name: str, outputs: Iterable[Recorded]) -> Iterable[Finding]:
    for output in outputs:
        if output.hosts_mixed:
            yield Finding(
                rule="PROBE-HOSTS-MIXED",
                severity="W",
                hosts=(name,),
                evidence=f"{output.tool}: lines of {', '.join(output.hosts_mixed[:8])}, none of them called {name}",
                effect="which of them are this host's cannot be told, so none is read",
                remedy="name the recording's folder as the parallel shell names the host",
            )
