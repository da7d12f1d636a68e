"""The tokens of each sample of a run, determined only by the seed and the position in the run's stream of samples.

A checkpoint of the data is therefore just a count, and every plan trains the same samples in the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.data.blend import Blend
from holmes_runtime.data.permutation import permuted
from holmes_runtime.data.tokens import Tokens
from holmes_runtime.model.distilled_loss import SoftTargets
from holmes_runtime.parallel.batch import as_read


class OwnSamples(NamedTuple):
    """This run's share if several runs take turns: `size` of every `of_all` samples, after the first `before`."""

    before: int
    size: int
    of_all: int

    def place(self, number: int) -> int:
        """Return the position of this run's own sample `number` among all samples of the runs."""
        turn, within = divmod(number, self.size)
        return turn * self.of_all + self.before + within


ALL_SAMPLES = OwnSamples(0, 1, 1)


@dataclass(frozen=True)
class Samples:
    """The samples of all steps. Another `key` gives another order.

    `tokens` are by source of `blend`. Sample i of a source is its tokens [i s, (i + 1) s], where s is `seq_length`: the
    last token is the first one of the next sample, since a sample's first token is not a target.

    Every sample of a source is taken once, then all again in another order, and so on. `first` is added to each
    sample's position in the stream. The run's `own` samples are all of the stream, or some of them if other runs take
    the rest.
    """

    tokens: tuple[Tokens, ...]
    blend: Blend
    key: str
    seq_length: int
    vocab_size: int
    batch_size: int
    first: int = 0
    own: OwnSamples = ALL_SAMPLES

    def batch(self, step: int, numbers: Sequence[int]) -> Tensor:
        """Return the samples `numbers` of the global batch of `step`: int64 tokens (len(numbers), seq_length + 1).

        Tokens of packed examples that are only read are below zero: see `as_read`. Raises ValueError naming file,
        sample and offset for a token outside the vocabulary, and OSError for a file that has changed.
        """
        found = [self._sample(step, number) for number in numbers]
        batch = torch.stack([tokens.read(start, start + self.seq_length + 1) for tokens, start in found])
        is_packed = torch.tensor([[tokens.packed_length is not None] for tokens, _ in found])
        outside = (((batch < 0) & ~is_packed) | (as_read(batch) >= self.vocab_size)).nonzero()
        if len(outside):
            row, column = outside[0].tolist()
            tokens, start = found[row]
            name, offset = tokens.place_of(start + column)
            raise ValueError(
                f"{name} has token {batch[row, column]} at offset {offset}, in tokens; vocab_size is {self.vocab_size} "
                f"(sample {numbers[row]} of step {step}): raise it, or tokenize again with the model's tokenizer"
            )
        return batch

    def positions(self, step: int, numbers: Sequence[int]) -> Tensor:
        """Return the position in its document of each input of those samples: int64 (len(numbers), seq_length).

        A document that began before the sample counts as starting with the sample.
        """
        found = [self._sample(step, number) for number in numbers]
        return torch.stack([tokens.positions(start, start + self.seq_length) for tokens, start in found])

    def soft_targets(self, step: int, numbers: Sequence[int]) -> SoftTargets:
        """Return the teacher's tokens for each target of those samples: (len(numbers), seq_length, top).

        If sources have different numbers of them, the smallest counts. Tokens outside the vocabulary, which may lack
        some of the teacher's padding, become token 0 with a probability of zero.

        Raises:
            ValueError: The vocabulary has none of a target's tokens, or a number is not finite; names file and offset.
            OSError: A file has changed.
        """
        found = [self._sample(step, number) for number in numbers]
        read = [tokens.soft_targets(start, start + self.seq_length) for tokens, start in found]
        top = min(each.tokens.shape[1] for each in read)
        likeliest, logarithms = (torch.stack([part[:, :top] for part in parts]) for parts in zip(*read, strict=True))
        is_known = (likeliest >= 0) & (likeliest < self.vocab_size)
        wrong = ((likeliest < 0) | ~logarithms.isfinite()).any(2) | ~is_known.any(2)
        if len(outside := wrong.nonzero()):
            row, column = outside[0].tolist()
            name, offset = found[row][0].place_of(found[row][1] + column)
            raise ValueError(
                f"the teacher's logits for {name} after offset {offset} in tokens are for tokens that a vocabulary of "
                f"{self.vocab_size} does not have, or not finite: the file is damaged, or of another model's tokens; "
                "remove it, and run `holmes data` with --teacher again"
            )
        return SoftTargets(likeliest.where(is_known, 0), logarithms.where(is_known, -torch.inf))

    def target_weight(self, step: int) -> float:
        """Return the number of targets in the global batch of `step`, divided by the number of predicted ones.

        It turns a mean over all targets, where the other targets have no loss, into a mean over the predicted ones.
        """
        if all(tokens.packed_length is None for tokens in self.tokens):
            return 1.0
        found = (self._sample(step, number) for number in range(self.batch_size))
        counts = [int((tokens.read(start + 1, start + self.seq_length + 1) >= 0).sum()) for tokens, start in found]
        return self.batch_size * self.seq_length / max(1, sum(counts))

    def _sample(self, step: int, number: int) -> tuple[Tokens, int]:
        """Return the tokens that sample `number` of `step` comes from, and the first one's index."""
        source, taken = self.blend.at(self.own.place(self.first + step * self.batch_size + number))
        tokens = self.tokens[source]
        size = (len(tokens) - 1) // self.seq_length
        epoch, turn = divmod(taken, size)
        return tokens, permuted(turn, size, f"{self.key}/{source}/{epoch}") * self.seq_length


def make_samples(config: RunConfig, tokens: tuple[Tokens, ...], key: str) -> Samples:
    """Return the samples that a run takes from `tokens`, by source; for an island, only its own."""
    shape, blend, outer = config.model, Blend([source.weight for source in config.data.sources]), config.outer_sync
    own = ALL_SAMPLES
    if outer is not None:
        own = OwnSamples(outer.samples_before, outer.inner_steps * config.global_batch_size, outer.round_samples)
    return Samples(tokens, blend, key, shape.seq_length, shape.vocab_size, config.global_batch_size, own=own)
