"""Validation loss that codecs on pipeline edges give away, by the number of cuts they are on, as it was measured.

Source: `python -m benchmarks.codec_loss`: a Llama of five layers and width 128 on text as bytes, the mean of the
seeds after 300 steps; docs/slow-links.md has each seed. Wider and published models were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.records.job import Codec

SOURCE = "docs/slow-links.md"
LOSS_PERCENT: Mapping[Codec, Mapping[int, float]] = {
    "int8": {1: 0.37, 2: 0.09, 4: 0.37},
    "int4": {1: 2.71, 2: 5.18, 4: 7.25},
}


def loss_words(codec: Codec) -> str:
    """Return what the codec costs in loss by cuts, and the source; of one that was not measured, that it was not."""
    by_cuts = LOSS_PERCENT.get(codec, {})
    measured = ", ".join(f"{percent:+.1f} % at {cuts} cut{'s' * (cuts > 1)}" for cuts, percent in by_cuts.items())
    return f"loss {measured} after 300 steps of a small Llama ({SOURCE})" if measured else "loss not measured"
