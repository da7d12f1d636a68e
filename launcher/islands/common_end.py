"""Find the islands that end with one model: the members of the last outer sync, and those that received its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_core.errors import ANSWER_IS_NO
from holmes_runtime.config.rank_metrics import AppliedOuterSync


def common_end(last: Mapping[int, AppliedOuterSync], final: int) -> tuple[int, ...]:
    """Return the islands with the common model, by the `last` outer sync that each finished island reported.

    `final` is the number of the run's last one. An island that came when the others had ended held that one by itself,
    and has another model. If islands ended apart, the common model is the one of the largest group. Between equally
    many it is the one from the most islands' pseudo-gradients.
    """
    models = {number: each.islands for number, each in last.items() if each.exchange >= final}
    if not models:
        return ()
    held = Counter(models.values())
    common = max(sorted(held), key=lambda islands: (held[islands], len(islands)))
    return tuple(sorted(number for number, islands in models.items() if islands == common))


def exit_code_of(missing: Sequence[int], may_miss: bool) -> int:
    """Return the exit code of a finished run that lacks the islands `missing`; with `may_miss` it is 0."""
    return ANSWER_IS_NO if missing and not may_miss else 0
