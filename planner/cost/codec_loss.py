"""Measured validation loss that codecs on pipeline edges cost, by the number of edges that have one.

Source: `python -m benchmarks.codec_loss`: a Llama of five layers and width 128 on text as bytes, the mean of three
seeds after 300 steps. docs/slow-links.md lists each seed. Wider and published models were not measured.
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
    """Return the codec's loss by number of cuts, with the source, or that it was not measured."""
    by_cuts = LOSS_PERCENT.get(codec, {})
    parts = [
        f"{round(percent, 1) + 0.0:+.1f} % at {cuts} cut{'s' * (cuts > 1)}"  # + 0.0 avoids "-0.0"
        for cuts, percent in by_cuts.items()
    ]
    measured = ", ".join(parts)
    return f"loss {measured} after 300 steps of a small Llama ({SOURCE})" if measured else "loss not measured"
