"""The outer step: torch's own Nesterov on the mean of changes, the same bits everywhere, nothing lost by rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holmes_runtime.config.run_settings import OuterCodec
from holmes_runtime.node.checkpoint_files.description import OuterCounters
from holmes_runtime.outer.outer_step import OuterStepResult, arrived, outer_step, outgoing, weighted_mean
from holmes_runtime.outer.sync_steps import Rounds, due_after, next_due, taken_since

N = 1000


def drawn(seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed)) * scale


def test_the_outer_step_is_sgd_with_nesterov_momentum_on_the_mean_change() -> None:
    anchor, momentum = drawn(0), torch.zeros(N)
    reference = torch.nn.Parameter(anchor.clone())
    optimizer = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    for turn in range(4):
        islands = [anchor + drawn(10 * turn + each, 0.1) for each in range(3)]
        reference.grad = reference.detach() - (2 * islands[0] + islands[1] + islands[2]) / 4
        optimizer.step()
        anchor, momentum = outer_step(anchor, momentum, islands, [20, 10, 10], "none", 0.7, 0.9)
        torch.testing.assert_close(anchor, reference.detach(), atol=2e-6, rtol=0)


def test_an_island_alone_that_keeps_nothing_back_has_its_parameters_to_the_bit() -> None:
    anchor, parameters = drawn(0, 1e3), drawn(1, 1e-6)  # far more apart than fp32 has digits

    stepped = outer_step(anchor, torch.zeros(N), [parameters], [7], "none", 1.0, 0.0)

    assert torch.equal(stepped.anchor, parameters)


@pytest.mark.parametrize(("codec", "levels"), [("int8", 125), ("int4", 6.9)])
def test_what_is_rounded_away_is_sent_the_next_time(codec: OuterCodec, levels: float) -> None:
    """The sum of all that arrives is never further from the sum of all changes than one rounding."""
    error, total, changed = torch.zeros(N), torch.zeros(N), torch.zeros(N)
    for turn in range(20):
        parameters = drawn(turn, 0.1)
        sent = outgoing(torch.zeros(N), parameters, error, codec)
        assert sent.error is not None
        error = sent.error
        total += sent.arrives
        changed -= parameters
        # Half a step of the block's largest, which is a change and what was left of the one before.
        assert float(error.abs().max()) <= 0.5 * (0.1 * 4.5 * 1.2) / levels
    torch.testing.assert_close(total + error, changed, atol=1e-5, rtol=0)


@pytest.mark.parametrize("codec", ["none", "int8", "int4"])
def test_all_islands_come_to_the_same_bits_from_what_arrives(codec: OuterCodec) -> None:
    anchor, momentum = drawn(0), drawn(1, 0.01)
    sent = [outgoing(anchor, anchor + drawn(2 + each, 0.1), torch.zeros(N), codec) for each in range(2)]

    def island(own: int) -> OuterStepResult:
        parts = [each.arrives if at == own else arrived(each.packed, codec, N) for at, each in enumerate(sent)]
        return outer_step(anchor, momentum, parts, [3, 5], codec, 0.7, 0.9)

    first, second = island(0), island(1)
    assert torch.equal(first.anchor, second.anchor)
    assert torch.equal(first.momentum, second.momentum)


def test_islands_count_by_their_tokens() -> None:
    assert weighted_mean([torch.tensor([1.0]), torch.tensor([5.0])], [3, 1]).item() == 2.0


def test_fragments_are_due_evenly_and_the_last_at_the_end_of_the_round() -> None:
    assert [due_after(exchange, 10, 4) for exchange in range(8)] == [2, 5, 7, 10, 12, 15, 17, 20]
    assert [due_after(exchange, 50, 1) for exchange in range(2)] == [50, 100]
    assert [Rounds(20, 10, 4).interval(exchange) for exchange in range(5)] == [2, 3, 2, 3, 2]


@pytest.mark.parametrize(("sent", "due"), [(5, 7), (6, 8), (12, 14), (4, 7), (2, 7)])
def test_who_was_late_comes_later_by_as_much_and_who_was_early_as_planned(sent: int, due: int) -> None:
    assert next_due(OuterCounters(2, "x", (2, sent, 0, 0)), 10) == due
    assert next_due(OuterCounters(0, "", (0, 0, 0, 0)), 10) == 2


@pytest.mark.parametrize(
    ("until_s", "since_s", "steps"),
    [(0.0, 0.0, 0), (0.9, 0.0, 0), (0.9, 0.1, 1), (2.0, 1.7, 3), (60.0, 0.0, 2), (60.0, 1.7, 3), (0.0, 1e9, 5)],
)
def test_who_joins_counts_the_steps_that_the_others_have_taken_meanwhile(
    until_s: float, since_s: float, steps: int
) -> None:
    assert taken_since(until_s, since_s, interval_s=5.0, interval_steps=5, delay_steps=2) == steps


def test_who_joins_and_does_not_know_how_long_the_others_take_counts_on_no_more_than_the_delay() -> None:
    assert taken_since(1.0, 1.0, interval_s=0.0, interval_steps=5, delay_steps=2) == 2


@pytest.mark.parametrize(("steps", "first"), [(0, 0), (10, 0), (12, 0), (13, 1), (22, 1), (23, 2), (30, 2)])
def test_first_open_exchange_is_the_next_or_one_whose_delay_has_not_passed(steps: int, first: int) -> None:
    assert Rounds(steps=30, inner_steps=10, fragments=1).first_open(steps, delay_steps=2) == first
