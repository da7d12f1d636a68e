"""Which samples a run takes: every one once an epoch, blended by weight, the same under every plan and after a stop."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from holmes_runtime.data.blend import LONGEST_PERIOD, Blend, whole_weights
from holmes_runtime.data.permutation import permuted
from holmes_runtime.data.samples import ALL_SAMPLES, OwnSamples, Samples
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.node.data_files.stored_bytes import MemoryBytes
from tests.seeds import seed_ranges

SEQ = 4


def counting(num_samples: int, first: int = 0) -> Tokens:
    """Tokens of which sample i of `num_samples` begins with `first` + SEQ i; three more are no whole sample."""
    tokens = array("q", range(first, first + num_samples * SEQ + 4))
    return Tokens([TokenPart("tokens", MemoryBytes(tokens), "int64")])


def samples(*sizes: int, weights: tuple[float, ...] = (1.0,), key: str = "7", batch_size: int = 6) -> Samples:
    """Of sources with so many samples; the tokens of source i begin at 10,000 i."""
    tokens = tuple(counting(size, 10_000 * source) for source, size in enumerate(sizes))
    return Samples(tokens, Blend(weights), key, SEQ, 10**6, batch_size)


def drawn(of: Samples, start: int, stop: int) -> list[int]:
    """The first tokens of samples [start, stop) of the stream, taken step by step."""
    places = (divmod(place, of.batch_size) for place in range(start, stop))
    return [int(of.batch(step, [number])[0, 0]) for step, number in places]


@pytest.mark.parametrize("sizes", seed_ranges(2000, few=200))
def test_a_permutation_of_any_size_is_one(sizes: range) -> None:
    for size in (number + 1 for number in sizes):
        assert len({permuted(number, size, "key") for number in range(size)}) == size
        assert all(0 <= permuted(number, size, "key") < size for number in (0, size - 1))


@pytest.mark.parametrize("size", [2**31 - 1, 2**40 + 15, 10**18 + 9])
def test_a_permutation_of_a_large_size_repeats_no_number_and_stays_inside(size: int) -> None:
    numbers = random.Random(size).sample(range(size), 5_000)
    found = {permuted(number, size, "key") for number in numbers}

    assert len(found) == len(numbers)
    assert min(found) >= 0
    assert max(found) < size
    # Spread over the whole range, in tenths.
    tenths = Counter(number * 10 // size for number in found)
    assert all(400 < tenths[tenth] < 600 for tenth in range(10))


def test_another_key_is_another_permutation_and_every_number_comes_first_as_often() -> None:
    first = Counter(permuted(0, 7, str(key)) for key in range(7_000))

    assert all(850 < first[number] < 1150 for number in range(7))
    assert [permuted(i, 100, "a") for i in range(100)] != [permuted(i, 100, "b") for i in range(100)]


def test_neighbours_of_an_epoch_are_no_neighbours_of_the_data() -> None:
    order = [permuted(number, 10_000, "key") for number in range(10_000)]

    assert sum(later - earlier == 1 for earlier, later in pairwise(order)) < 10


def test_every_sample_comes_once_an_epoch_and_each_epoch_in_another_order() -> None:
    of = samples(50)
    epochs = [drawn(of, 50 * epoch, 50 * (epoch + 1)) for epoch in range(3)]

    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 200, SEQ))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_every_token_but_the_rest_is_a_target_once_an_epoch() -> None:
    targets = torch.cat([samples(10).batch(0, [number])[0, 1:] for number in range(10)])

    assert sorted(targets.tolist()) == list(range(1, 41))


def test_the_ranks_of_any_plan_take_the_same_samples_in_the_same_steps() -> None:
    of = samples(31)
    whole = torch.cat([of.batch(step, range(6)) for step in range(5)])
    for cuts in ((0, 6), (0, 3, 6), (0, 1, 5, 6)):
        parts = [of.batch(step, range(*cut)) for step in range(5) for cut in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_going_on_at_any_step_is_as_if_nothing_had_stopped_it() -> None:
    uninterrupted = drawn(samples(31), 0, 90)

    for step in (1, 7, 14):
        assert drawn(samples(31), 6 * step, 90) == uninterrupted[6 * step :]


def test_a_run_that_goes_on_with_another_batch_size_skips_and_repeats_nothing() -> None:
    before = samples(40, batch_size=6)
    after = replace(before, batch_size=10, first=6 * 5 - 10 * 5)

    taken = drawn(before, 0, 30) + [int(after.batch(5, [number])[0, 0]) for number in range(10)]

    assert sorted(taken) == list(range(0, 160, SEQ))


@pytest.mark.parametrize(
    "weights", [(1.0,), (1, 1), (0.7, 0.2, 0.1), (0.9, *[0.01] * 10), (3, 5, 7, 11, 13), (1e-3, 1), (2.5, 0.125, 1)]
)
def test_every_beginning_of_a_blend_has_its_shares_to_within_one_sample(weights: tuple[float, ...]) -> None:
    blend, taken = Blend(weights), [0] * len(weights)
    for position in range(min(3 * sum(blend.counts), 5_000)):
        source, before = blend.at(position)
        assert before == taken[source]
        taken[source] += 1
        for share, count in zip(weights, taken, strict=True):
            assert abs(count - (position + 1) * share / sum(weights)) < 1 + 1e-9


def test_random_blends_keep_their_shares() -> None:
    generator = random.Random(3)
    for _ in range(50):
        weights = [generator.randint(1, 60) for _ in range(generator.randint(1, 9))]
        blend, taken = Blend(weights), [0] * len(weights)
        for position in range(2 * sum(blend.counts)):
            taken[blend.at(position)[0]] += 1
            for weight, count in zip(weights, taken, strict=True):
                assert abs(count * sum(weights) - (position + 1) * weight) < sum(weights)


def test_weights_are_taken_as_written_and_long_ones_to_a_hundred_thousandth() -> None:
    assert whole_weights([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert whole_weights([0.1, 0.1]) == (1, 1)
    counts = whole_weights([123456789, 987654321, 1])
    assert counts == (11111, 88889, 1)
    assert abs(sum(counts) - LONGEST_PERIOD) <= len(counts)


def test_a_place_far_into_a_blend_is_looked_up() -> None:
    blend = Blend((0.7, 0.2, 0.1))
    near, far = ([blend.at(start + place) for place in range(10)] for start in (0, 10**15))

    assert far == [(source, taken + 10**14 * (7, 2, 1)[source]) for source, taken in near]


def test_each_source_of_a_blend_has_epochs_of_its_own() -> None:
    of = samples(20, 5, weights=(2, 1))
    taken = drawn(of, 0, 60)
    by_source = [[token for token in taken if token // 10_000 == source] for source in range(2)]

    assert sorted(by_source[0]) == sorted(list(range(0, 80, SEQ)) * 2)
    assert sorted(by_source[1]) == sorted(list(range(10_000, 10_020, SEQ)) * 4)
    assert sorted(by_source[1][:5]) == sorted(by_source[1][5:10])


def test_a_token_outside_the_vocabulary_is_named_with_file_offset_and_sample() -> None:
    tokens = array("q", [1, 2, 3, 4, 5, 6, 99, 8, 9])
    parts = [
        TokenPart("a.bin", MemoryBytes(array("q", [0] * 3)), "int64"),
        TokenPart("b.bin", MemoryBytes(tokens), "int64"),
    ]
    of = Samples((Tokens(parts),), Blend((1.0,)), "7", 11, 50, 1)

    with pytest.raises(ValueError, match=r"b\.bin has token 99 at offset 6, in tokens; vocab_size is 50 \(sample 0 of"):
        of.batch(0, [0])


def test_positions_begin_again_with_each_document_and_each_file() -> None:
    parts = [
        TokenPart("a", MemoryBytes(array("q", range(5))), "int64", array("q", [0, 3])),
        TokenPart("empty", MemoryBytes(array("q")), "int64", array("q", [0])),
        TokenPart("b", MemoryBytes(array("q", range(6))), "int64", array("q", [0, 2, 2, 6])),
    ]
    tokens = Tokens(parts)

    assert tokens.positions(0, 11).tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 1, 2, 3]
    assert tokens.positions(1, 9).tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert tokens.section(4, 11).positions(0, 5).tolist() == [0, 0, 1, 0, 1]
    assert tokens.section(4, 11).positions(4, 7).tolist() == [0, 1, 2]


def test_positions_of_random_documents_are_those_counted_one_by_one() -> None:
    generator = random.Random(5)
    for _ in range(200):
        parts, is_first = [], []
        for name in "abc":
            length = generator.randint(0, 12)
            documents = sorted(generator.choices(range(length + 1), k=generator.randint(0, 5)))
            parts.append(TokenPart(name, MemoryBytes(array("q", [0] * length)), "int64", array("q", documents)))
            is_first += [place == 0 or place in documents for place in range(length)]
        if len(is_first) < 2:
            continue
        start, stop = sorted(generator.sample(range(len(is_first) + 1), 2))
        expected: list[int] = []
        for place in range(start, stop):
            expected.append(0 if place == start or is_first[place] else expected[-1] + 1)

        assert Tokens(parts).positions(start, stop).tolist() == expected


def test_islands_read_every_sample_once_whatever_their_speeds_and_batches() -> None:
    """Islands of 3, 2 and 4 steps a round, of 6, 4 and 1 samples; five rounds."""
    rounds, steps, batches = 5, (3, 2, 4), (6, 4, 1)
    sizes = [count * batch for count, batch in zip(steps, batches, strict=True)]
    all_samples = samples(1000)
    found = []
    for island, batch in enumerate(batches):
        own = OwnSamples(sum(sizes[:island]), sizes[island], sum(sizes))
        found += drawn(replace(all_samples, batch_size=batch, own=own), 0, rounds * sizes[island])

    assert sorted(found) == sorted(drawn(all_samples, 0, rounds * sum(sizes)))


def test_a_run_by_itself_has_all_samples_for_its_own() -> None:
    assert [ALL_SAMPLES.place(number) for number in (0, 1, 77)] == [0, 1, 77]
