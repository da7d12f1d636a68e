"""Routing traces as a skewed router makes them: popular experts, and experts that a topic's tokens choose together."""

from __future__ import annotations

from collections import Counter
from math import log
from random import Random


def drawn_tokens(
    seed: int, experts: int, per_token: int, tokens: int, skew: float = 0.5, topics: int = 8, affinity: float = 2.0
) -> list[tuple[int, ...]]:
    """Return the experts that each token chose, ascending.

    An expert's score is minus `skew` times the logarithm of its place in a random order (Zipf), `affinity` more where
    it belongs to the token's topic, and noise of Gumbel's distribution; the highest `per_token` scores are chosen.
    """
    draw = Random(seed)
    order, topic_of = draw.sample(range(experts), experts), draw.sample(range(experts), experts)
    bias = [-skew * log(1 + place) for place in order]
    found = []
    for _ in range(tokens):
        topic = draw.randrange(topics)
        scores = [
            bias[e] + affinity * (topic_of[e] % topics == topic) - log(-log(draw.random() or 1e-12))
            for e in range(experts)
        ]
        best = sorted(range(experts), key=lambda e: -scores[e])[:per_token]
        found.append(tuple(sorted(best)))
    return found


def drawn_layer(seed: int, experts: int, per_token: int, tokens: int, **skews: float) -> Counter[tuple[int, ...]]:
    """Return, by the experts of `drawn_tokens`, the number of tokens that chose them."""
    return Counter(drawn_tokens(seed, experts, per_token, tokens, **skews))  # type: ignore[arg-type]
