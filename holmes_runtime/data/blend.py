"""The source of each sample of a blend: a repeating sequence that can be looked up at any position.

The weights become integers. After as many samples as their sum, every source has exactly its share, and the sequence
repeats. Within such a period of D samples, sample j of a source with weight a is due from position floor(j D / a) on
and before position ceil((j + 1) D / a). Each position goes to the due source with the earliest deadline. Then all are
served in time, and at every position each source has its share to within one sample.
Source: Baruah, Cohen, Plaxton and Varvel, Proportionate Progress, 1996. Free of torch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

LONGEST_PERIOD = 100_000  # samples; its table takes about 10 MB and half a second


class Blend:
    """The source of every sample of a stream, for sources with the given weights, which are positive and finite."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.counts = whole_weights(weights)
        self._places: list[tuple[int, int]] = []  # of a period: the source, and how many of it came before
        served = [0] * len(self.counts)
        for source in _period(self.counts):
            self._places.append((source, served[source]))
            served[source] += 1

    def at(self, position: int) -> tuple[int, int]:
        """Return the source of sample `position` of the stream, and the number of earlier samples from that source."""
        period, place = divmod(position, len(self._places))
        source, before = self._places[place]
        return source, period * self.counts[source] + before


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return integers in the ratio of the weights, which are taken as written: 0.1 is exactly a tenth.

    If their sum would exceed LONGEST_PERIOD, return the nearest integers with about that sum, none below one.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= LONGEST_PERIOD:
        return tuple(int(share * period) for share in shares)
    return tuple(max(1, round(share * LONGEST_PERIOD)) for share in shares)


def _period(counts: Sequence[int]) -> list[int]:
    """Return the source of every position of one period."""
    period, places = sum(counts), []
    due: list[tuple[int, int, int]] = []  # last place, source, number of the sample: the soonest first
    waiting = [(0, source, 0) for source in range(len(counts))]  # first place, source, number
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, source, number = heapq.heappop(waiting)
            heapq.heappush(due, (-(-(number + 1) * period // counts[source]), source, number))
        _, source, number = heapq.heappop(due)
        places.append(source)
        if number + 1 < counts[source]:
            heapq.heappush(waiting, ((number + 1) * period // counts[source], source, number + 1))
    return places
