"""Measured validation loss from codecs on pipeline edges, by the number of cuts they are on.

Source: `python -m benchmarks.codec_loss`: a Llama of five layers and width 128 on text as bytes, the mean of three
seeds after 300 steps; docs/slow-links.md has each seed. Wider and published models were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from holmes_runtime.config.codec import Codec

SOURCE = "docs/slow-links.md"
LOSS_PERCENT: Mapping[Codec, Mapping[int, float]] = {
    "int8": {1: 0.22, 2: -0.03, 4: 0.21},
    "int4": {1: 2.20, 2: 4.36, 4: 7.08},
}


def loss_words(codec: Codec) -> str:
    """Return the codec's cost in loss by cuts, and the source; for another codec, that it was not measured."""
    by_cuts = LOSS_PERCENT.get(codec, {})
    parts = [
        f"{round(percent, 1) + 0.0:+.1f} % at {cuts} cut{'s' * (cuts > 1)}"  # + 0.0: no minus before a zero
        for cuts, percent in by_cuts.items()
    ]
    measured = ", ".join(parts)
    return f"loss {measured} after 300 steps of a small Llama ({SOURCE})" if measured else "loss not measured"
