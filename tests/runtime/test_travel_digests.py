"""Digests of what travels between hosts: every change is seen and named, and what arrives as it was sent never is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from holmes_runtime.comm.travel_digests import (
    BALANCE,
    INSIDE_EVERY_STEPS,
    DigestKey,
    RankDigest,
    RankDigests,
    TravelDigests,
    differences,
    differs,
    digest,
    in_words,
    row_sums,
    wires_in_words,
)
from holmes_runtime.config.rank_grid import EXPERT_AXES, REPLICA_AXES, Group
from holmes_runtime.config.run_config import RunConfig
from tests.seeds import few_of

from .launched_runs import TINY, TINY_MIXTRAL, layout, make_config

CPU = torch.device("cpu")
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
SIZES = (1, 7, 8, 9, 100, 1023, 1025, 8192, 8200, 40_000)


def values_of(draw: random.Random, size: int = 0) -> Tensor:
    """Random bytes as numbers of some type."""
    dtype = draw.choice(DTYPES)
    size = max(size or draw.choice(SIZES), dtype.itemsize)
    return torch.frombuffer(bytearray(draw.randbytes(size // dtype.itemsize * dtype.itemsize)), dtype=dtype)


def flipped(values: Tensor, draw: random.Random) -> Tensor:
    """A copy with one bit flipped."""
    flat = values.clone().view(torch.uint8)
    flat[draw.randrange(len(flat))] ^= 1 << draw.randrange(8)
    return flat.view(values.dtype)


def digest_of(values: Tensor) -> float:
    return digest(row_sums(values)).item()


def test_digest_sees_every_flipped_bit() -> None:
    for seed in range(400):
        draw = random.Random(seed)
        values = values_of(draw)
        assert digest_of(values) == digest_of(values.clone()), seed
        assert digest_of(values) != digest_of(flipped(values, draw)), seed


def test_digest_does_not_depend_on_where_the_bytes_lie_in_memory() -> None:
    memory = torch.arange(0, 50000, dtype=torch.int32).to(torch.uint8)
    whole = digest_of(memory[:40000])
    for offset in range(1, 9):
        moved = torch.cat([torch.zeros(offset, dtype=torch.uint8), memory])[offset : offset + 40000]
        assert digest_of(moved) == whole


def test_digest_sees_rows_and_messages_that_change_places() -> None:
    memory = torch.randint(0, 255, (3, 8192), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    one, two = row_sums(memory[0]), row_sums(memory[1])
    assert digest_of(memory) != digest_of(memory[[1, 0, 2]])
    assert digest([*one, *two]).item() != digest([*two, *one]).item()


class Ranks:
    """The digests of all ranks of a run, between which messages and copies go by hand."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.ranks = [TravelDigests(config, config.grid.rank(rank)) for rank in range(config.world_size)]

    def sum(self) -> float:
        return float(sum(rank.balance(CPU) for rank in self.ranks))

    def crosses(self, group: Group) -> bool:
        """Return whether it is between clusters, so that its messages have digests."""
        return group.axis != "tp" and len({self.config.grid.rank(rank).cluster for rank in group.ranks}) > 1

    def messages(self, draw: random.Random, change: Callable[[Tensor], Tensor] | None = None) -> tuple[int, int]:
        """Several messages in one group, taken in another order than they were sent; sender and receiver."""
        group = draw.choice([each for each in self.config.groups if self.crosses(each)])
        names = {
            "dp": ("dp", "dp"),
            **{axis: (axis, axis) for axis in ("dp_across", "expert_dp", "expert_dp_across")},
            "pp_forward": ("forward_out", "forward_in"),
            "pp_backward": ("backward_out", "backward_in"),
        }[group.axis]
        ends = list(group.ranks[::-1] if group.axis == "pp_backward" else group.ranks)
        sender, receiver = ends if group.axis in ("pp_forward", "pp_backward") else draw.sample(ends, 2)
        outgoing, incoming = (
            self.ranks[end].messages[name] for end, name in zip((sender, receiver), names, strict=True)
        )
        order = sorted(group.ranks)
        sent = [values_of(draw) for _ in range(draw.randint(1, 4))]
        counts = [incoming.receive(order.index(sender)) for _ in sent]
        for values in sent:
            outgoing.send(values, order.index(receiver))
        arrived = list(zip(counts, sent, strict=True))
        draw.shuffle(arrived)  # as they may be waited for
        changed = draw.randrange(len(arrived)) if change else None
        for number, (count, values) in enumerate(arrived):
            count(change(values) if change and number == changed else values)
        return sender, receiver

    def copies(self, draw: random.Random, change: Callable[[Tensor], Tensor] | None = None) -> tuple[int, ...]:
        """Weights gathered in some group of replicas; those who have another copy."""
        group = draw.choice([each for each in self.config.groups if each.axis in (*REPLICA_AXES, *EXPERT_AXES)])
        values, odd = values_of(draw), draw.choice(group.ranks)
        for rank in group.ranks:
            copy = change(values) if change and rank == odd else values
            self.ranks[rank].weights[group.axis].watch(partial(torch.clone, copy))()
        return (odd,)


def a_run(draw: random.Random) -> RunConfig:
    """Some ranks, each on a host of its own."""
    tp, pp, dp = draw.choice([(1, 1, 2), (1, 2, 1), (1, 2, 2), (1, 3, 2), (2, 2, 2), (1, 1, 4), (1, 2, 4)])
    ep = draw.choice((1, 2)) if dp == 4 else 1
    config = make_config(
        shards=layout(tp, pp, dp),
        cuts=(*range(pp), 3),
        model=TINY_MIXTRAL if ep > 1 else TINY,
        microbatches=(1,) * dp,
        clusters="aabb" * pp if dp == 4 else "",
        ep=ep,
    )
    if dp == 4:
        return config
    return replace(config, ranks=tuple(replace(rank, cluster=draw.choice("ab")) for rank in config.ranks))


@pytest.mark.parametrize("number", few_of(1, [40, 200]))
def test_what_arrives_as_it_was_sent_is_never_taken_for_changed(number: int) -> None:
    for seed in range(number):
        draw = random.Random(seed)
        run = Ranks(a_run(draw))
        for _ in range(4):
            if any(map(run.crosses, run.config.groups)):
                run.messages(draw)
            if run.config.dp > 1:
                run.copies(draw)
            sums = torch.rand(5, dtype=torch.float64)
            for rank in run.ranks:
                rank.sums.add(sums)
            assert not differs(run.sum())
        assert differences([rank.record() for rank in run.ranks], run.config) == []


def test_one_changed_message_is_seen_and_its_wire_named() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        run = Ranks(a_run(draw))
        while not any(map(run.crosses, run.config.groups)):
            run = Ranks(a_run(draw))
        sender, receiver = run.messages(draw, partial(flipped, draw=draw))
        assert differs(run.sum())
        (found,) = differences([rank.record() for rank in run.ranks], run.config)
        assert (found.key.ranks, found.odd) == ((sender, receiver), (receiver,))
        said = in_words([found], run.config)
        assert f"what rank {sender} on host{sender} sent to rank {receiver} on host{receiver} was changed" in said
        assert f"group {found.key.group}, lo to lo" in said


def test_weights_that_one_replica_gathered_differently_are_seen() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        run = Ranks(make_config(pipelines=((0,), (1,), (2,)), microbatches=(1, 1, 1)))
        odd = run.copies(draw, partial(flipped, draw=draw))
        assert differs(run.sum())
        (found,) = differences([rank.record() for rank in run.ranks], run.config)
        assert found.odd == odd
        said = in_words([found], run.config)
        assert said.startswith(f"what rank {odd[0]} on host{odd[0]} gathered of the weights was changed on the way")


def test_of_two_replicas_both_are_named_as_either_may_have_the_wrong_weights() -> None:
    draw = random.Random(5)
    run = Ranks(make_config(pipelines=((0,), (1,)), clusters="ab"))
    run.copies(draw, partial(flipped, draw=draw))
    assert differs(run.sum())
    (found,) = differences([rank.record() for rank in run.ranks], run.config)
    said = in_words([found], run.config)
    assert "rank 0 on host0" in said
    assert "rank 1 on host1" in said
    assert "dp-across-0-0 over lo" in said


def test_a_sum_that_is_no_number_or_was_changed_itself_counts_as_different() -> None:
    assert [differs(each) for each in (0.0, 3.0 * BALANCE, 1.0, float("nan"), float("inf"))] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_what_stays_inside_a_host_has_no_digests_and_inside_a_cluster_weights_alone() -> None:
    config = make_config(pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3))
    one = replace(config, ranks=tuple(replace(rank, host="only") for rank in config.ranks))
    digests = TravelDigests(one, one.ranks[0])
    assert (digests.messages, digests.weights, digests.are_compared) == ({}, {}, False)
    assert digests.balance(CPU).tolist() == [0.0]
    digests = TravelDigests(config, config.ranks[0])
    assert (digests.messages, list(digests.weights), digests.are_compared) == ({}, ["dp"], True)


def test_weights_gathered_inside_a_cluster_are_compared_every_so_many_steps() -> None:
    draw = random.Random(3)
    run = Ranks(make_config(pipelines=((0,), (1,))))
    seen = []
    for _ in range(2 * INSIDE_EVERY_STEPS):
        run.copies(draw, partial(flipped, draw=draw))
        seen.append(differs(run.sum()))
    assert seen == [True] * 2 * INSIDE_EVERY_STEPS  # from the first on, which is the first step
    run = Ranks(make_config(pipelines=((0,), (1,))))
    run.copies(draw)
    for _ in range(INSIDE_EVERY_STEPS - 1):
        assert not differs(run.sum())
        run.copies(draw, partial(flipped, draw=draw))
    assert not differs(run.sum())
    run.copies(draw, partial(flipped, draw=draw))
    assert differs(run.sum())


def test_groups_between_clusters_are_named_before_others() -> None:
    config = make_config(pipelines=((0,), (1,), (2,), (3,)), clusters="abba")
    assert wires_in_words(config) == "dp-across-0-0 over lo, dp-across-1-0 over lo"


def test_digests_of_groups_that_are_not_there_are_left_out() -> None:
    config = make_config(pipelines=((0,), (1,)))
    for key in (
        DigestKey("message", "dp-0", (0, 7)),
        DigestKey("message", "no-such", (0, 1)),
        DigestKey("weights", "dp-0", ()),
        DigestKey("sums", "all", (0, -1)),
    ):
        records = [RankDigests((RankDigest(key, f"{rank}"),)) for rank in range(2)]
        assert differences(records, config) == []
