"""The islands that end with one model: those that were together in the last exchange, or were given its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_core.errors import ANSWER_IS_NO
from holmes_runtime.config.rank_metrics import OuterExchange


def common_end(last: Mapping[int, OuterExchange], final: int) -> tuple[int, ...]:
    """Return the islands with the common model, by the `last` exchange that each island which is done has told of.

    `final` is the number of the run's last. An island that came when the others had ended has held that by itself, and
    has another model. Where islands have ended apart the common model is that of most, and of equally many that of most
    islands' changes.
    """
    models = {number: each.islands for number, each in last.items() if each.exchange >= final}
    if not models:
        return ()
    held = Counter(models.values())
    common = max(sorted(held), key=lambda islands: (held[islands], len(islands)))
    return tuple(sorted(number for number, islands in models.items() if islands == common))


def exit_code_of(missing: Sequence[int], may_miss: bool) -> int:
    """Return the exit code of a run that is done but for the islands `missing`, which it `may_miss` if so asked."""
    return ANSWER_IS_NO if missing and not may_miss else 0
