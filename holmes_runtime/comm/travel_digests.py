"""Digests of the traffic between hosts, kept at both ends and compared in every step.

A sender adds up the digests of its messages, and a receiver the digests of what arrived. Holders of copies add up the
digests of their copies. Each rank then adds one number to a sum over all ranks that every step makes anyway. The parts
of senders and receivers cancel out, exactly and in any order. A comparison therefore costs reading the bytes, but no
message. Only if the sum shows a difference do ranks send their digests, to find where it is.

A digest finds accidental changes in a wire, a network card or memory, and changes by someone who does not know of
the digests. It is not a signature: an attacker who can change all packets at will can also change the sum.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from holmes_runtime.config.messages import CHANGED
from holmes_runtime.config.rank_grid import EXPERT_AXES, REPLICA_AXES, Axis, Group, Rank, group_key
from holmes_runtime.config.run_config import RunConfig

ROW = 1024  # words of 8 bytes, added up first: a digest cannot see that two words of a row were swapped
# Interval for weights gathered between hosts of one cluster: most of the traffic, on a network with its own checks.
INSIDE_EVERY_STEPS = 16
# A rank's part of the sum is below 2^BALANCE_BITS, so the float64 sum over 8192 ranks is exact.
BALANCE_BITS = 40
BALANCE = 2**BALANCE_BITS
MIXER = 0x9E3779B97F4A7C15 - 2**64  # an odd number, as int64. Source: Steele et al., SplitMix64, 2014
MAX_SAID = 3  # ranks and groups in one sentence

Pending = Callable[[], Tensor]
DigestKind = Literal["message", "weights", "sums"]


class DigestKey(NamedTuple):
    """Digests that must be equal. `ranks` are a sender and a receiver of messages, or all holders of copies."""

    kind: DigestKind
    group: str
    ranks: tuple[int, ...]


class RankDigest(NamedTuple):
    """One rank's digest, in hexadecimal, of all values of that key so far."""

    key: DigestKey
    digest: str


class RankDigests(NamedTuple):
    """All digests of a rank, in the form that ranks exchange."""

    digests: tuple[RankDigest, ...]


class DigestMismatch(NamedTuple):
    """Digests that differ. `odd` are the ranks whose digest differs from the sender's or from most of the copies."""

    key: DigestKey
    odd: tuple[int, ...]


def row_sums(values: Tensor) -> list[Tensor]:
    """Return sums modulo 2^64 over the bytes of `values` as int64 words, on their device: (rows,), (1,), (1,).

    They are the sums of whole rows of ROW words, of the words after them, and of the bytes after those, if any.
    """
    flat = values.detach().reshape(-1)
    words, odd_bytes = divmod(flat.nbytes, 8)
    if odd_bytes or flat.storage_offset() * flat.itemsize % 8:
        return _odd_row_sums(flat.view(torch.uint8))
    if not words % ROW:  # in as few operations as possible, as each costs more than adding a row
        return [flat.view(torch.int64).view(-1, ROW).sum(1)]
    rows = words // ROW * ROW
    after = flat.view(torch.int64)[rows:].sum(0, keepdim=True)
    return [flat.view(torch.int64)[:rows].view(-1, ROW).sum(1), after] if rows else [after]


def _odd_row_sums(flat: Tensor) -> list[Tensor]:
    """Return `row_sums` of bytes that do not divide into words or that begin within a word."""
    whole = len(flat) // 8 * 8
    end = flat[whole:].sum(0, keepdim=True, dtype=torch.int64)
    return [*row_sums(flat[:whole].clone()), end] if whole else [end]


def digest(sums: Sequence[Tensor]) -> Tensor:
    """Return the digest, int64 (), of the row sums of all values sent or gathered in a step, in order.

    It is the sum modulo 2^64 of all row sums, each times its own odd number. It therefore shows every change of a
    single word, and changes of several words unless they cancel out within a row.
    """
    joined = torch.cat(list(sums))
    return (joined * _odd_numbers(len(joined).bit_length(), joined.device)[: len(joined)]).sum()


@cache
def _odd_numbers(bits: int, device: torch.device) -> Tensor:
    """Return distinct odd numbers, int64 (2^bits,)."""
    return torch.arange(2**bits, device=device) * MIXER * 2 + 1


class GroupDigests:
    """Messages between the members of a group, counted by one member that sends and receives them."""

    def __init__(self, run: TravelDigests, group: str, ranks: Sequence[int], me: int) -> None:
        self._run, self._group, self._ranks, self._me = run, group, tuple(sorted(ranks)), me

    def send(self, values: Tensor, to: int) -> None:
        """Count `values` as sent to rank `to` of the group."""
        key = DigestKey("message", self._group, (self._me, self._ranks[to]))
        self._run.add(key, self._run.next_number(key), values)

    def receive(self, source: int) -> Callable[[Tensor], None]:
        """Return the function that counts the next message from rank `source` of the group, once it has arrived."""
        key = DigestKey("message", self._group, (self._ranks[source], self._me))
        number = self._run.next_number(key)
        return lambda values: self._run.add(key, number, values)


class CopyDigests:
    """Tensors that must be equal on several ranks, such as weights they have gathered."""

    def __init__(self, run: TravelDigests, key: DigestKey, every_steps: int) -> None:
        """Count the copies of one step in every `every_steps`."""
        self._run, self._key, self._every_steps = run, key, every_steps

    def watch(self, pending: Pending) -> Pending:
        """Return `pending`, extended to count its result. All holders call this in the same order."""
        if self._run.steps % self._every_steps:
            return pending
        number = self._run.next_number(self._key)

        def wait() -> Tensor:
            values = pending()
            self._run.add(self._key, number, values)
            return values

        return wait

    def add(self, values: Tensor) -> None:
        self._run.add(self._key, self._run.next_number(self._key), values)


class TravelDigests:
    """All digests of one rank, by the names in its `RankGroups`.

    `messages` are between clusters, `weights` are gathered between hosts, and `sums` are the same on every rank. They
    `are_compared` if the run has several hosts. Groups that communicate inside layers, on axes tp and cp, each lie in
    one cluster, and their traffic is not counted.
    """

    def __init__(self, config: RunConfig, me: Rank) -> None:
        self._me, self._lock = me.rank, Lock()  # another thread may exchange gradients
        self.steps = 0  # balances so far
        self._counted: dict[DigestKey, list[tuple[int, list[Tensor]]]] = {}  # since the last balance, by number
        self._totals: dict[DigestKey, Tensor] = {}  # of everything before it
        self._numbers: Counter[DigestKey] = Counter()
        self._weights = torch.empty(2, 0, dtype=torch.int64)  # weights of the totals in the balance: factors and signs
        named = {group.key: group for group in config.groups}
        grid = config.grid
        exchanges, before, after = grid.exchanges(me), grid.edge_before(me), grid.edge_after(me)
        exchanges |= grid.expert_exchanges(me)  # tokens on their way to experts stay in a cluster
        joined: dict[str, tuple[Axis, tuple[int, ...] | None]] = {
            **{axis: (axis, exchanges.get(axis)) for axis in (*REPLICA_AXES, *EXPERT_AXES)},
            "tied": ("tied", grid.tied(me)),
            "forward_in": ("pp_forward", before),
            "forward_out": ("pp_forward", after),
            "backward_in": ("pp_backward", after),
            "backward_out": ("pp_backward", before),
        }
        self.messages: dict[str, GroupDigests] = {}
        self.weights: dict[str, CopyDigests] = {}
        for name, (axis, ranks) in joined.items():
            if ranks is None or not _spans(config, ranks, "host"):
                continue
            group, is_across = named[group_key(axis, ranks)].name, _spans(config, ranks, "cluster")
            if is_across:
                self.messages[name] = GroupDigests(self, group, ranks, me.rank)
            if axis in REPLICA_AXES or axis in EXPERT_AXES:
                key = DigestKey("weights", group, tuple(sorted(ranks)))
                self.weights[name] = CopyDigests(self, key, 1 if is_across else INSIDE_EVERY_STEPS)
        everyone = tuple(range(config.world_size))
        self.sums = CopyDigests(self, DigestKey("sums", "all", everyone), 1)
        self.are_compared = _spans(config, everyone, "host")

    def next_number(self, key: DigestKey) -> int:
        """Return the number of the next message or copy of `key`. It is the same at all ends."""
        with self._lock:
            self._numbers[key] += 1
            return self._numbers[key]

    def add(self, key: DigestKey, number: int, values: Tensor) -> None:
        """Count `values` under that number. Numbers may come in any order."""
        sums = row_sums(values)
        with self._lock:
            self._counted.setdefault(key, []).append((number, sums))

    def balance(self, device: torch.device) -> Tensor:
        """Return this rank's part, float64 (1,), of a sum over ranks: a multiple of BALANCE if no digests differ.

        All ranks call this in the same step, when all messages sent since the last call have arrived.
        """
        self.steps += 1
        with self._lock:
            counted, self._counted = self._counted, {}
        for key, numbered in counted.items():
            numbered.sort(key=lambda each: each[0])
            of_step = digest([sums for _, several in numbered for sums in several])
            before = self._totals.get(key)
            self._totals[key] = of_step if before is None else before * MIXER + of_step
        totals = self._totals
        if not totals:
            return torch.zeros(1, dtype=torch.float64, device=device)
        if len(totals) != self._weights.shape[1]:
            weights = [self._factor_and_sign(key) for key in totals]
            self._weights = torch.tensor(weights, device=device).T  # once, as a GPU is waited for
        factors, signs = self._weights
        mixed = torch.stack(list(totals.values())) * factors
        mixed = (mixed ^ (mixed >> 32 & 2**32 - 1)) * MIXER  # so that a difference in the highest bit changes others
        parts = (mixed >> (64 - BALANCE_BITS) & (BALANCE - 1)) * signs
        balance: Tensor = parts.sum(0, keepdim=True).remainder(BALANCE).double()
        return balance

    def _factor_and_sign(self, key: DigestKey) -> tuple[int, int]:
        """Return the factor of a digest and its weight. Over all its ranks the weights add up to 0."""
        factor = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big", signed=True) | 1
        is_first = key.ranks[0] == self._me
        return factor, len(key.ranks) - 1 if is_first else -1

    def record(self) -> RankDigests:
        """Return all digests as of the last balance."""
        found = (RankDigest(key, f"{int(total) % 2**64:016x}") for key, total in self._totals.items())
        return RankDigests(tuple(found))


def differs(balance_sum: float) -> bool:
    """Return True if a sum of all ranks' `balance` shows that digests differ, or if it is not finite."""
    return bool(balance_sum % BALANCE)


def differences(by_rank: Sequence[RankDigests], config: RunConfig) -> list[DigestMismatch]:
    """Return the digests that differ, messages first. `by_rank` is in rank order.

    Digests are left out if their rank is not in the group, or if their ranks are not.
    """
    members = {group.name: set(group.ranks) for group in config.groups}
    known: dict[DigestKey, dict[int, str]] = {}
    for rank, digests in enumerate(by_rank):
        for each in digests.digests:
            possible = set(range(config.world_size)) if each.key.kind == "sums" else members.get(each.key.group, set())
            if rank in each.key.ranks and possible.issuperset(each.key.ranks):
                known.setdefault(each.key, {})[rank] = each.digest
    found = []
    for key, digests_of in known.items():
        if key.kind == "message":
            right = digests_of.get(key.ranks[0])
        else:
            right = Counter(digests_of.get(rank) for rank in key.ranks).most_common(1)[0][0]
        odd = tuple(rank for rank in key.ranks if digests_of.get(rank) != right)
        if odd:
            found.append(DigestMismatch(key, odd))
    return sorted(found, key=lambda each: each.key.kind != "message")


def in_words(found: Sequence[DigestMismatch], config: RunConfig) -> str:
    """Return the differences as text for users, with their ranks, hosts and interfaces."""
    more = f"; so did {len(found) - 1} more" if len(found) > 1 else ""
    return f"{_difference_in_words(found[0], config)}{more}"


def _difference_in_words(difference: DigestMismatch, config: RunConfig) -> str:
    key, odd = difference
    others = [rank for rank in key.ranks if rank not in odd]
    whose = (
        _in_words(odd, config) if len(odd) < len(others) else f"{_in_words(odd, config)} or {_in_words(others, config)}"
    )
    if key.kind == "sums":
        return f"what {whose} has of the sums over all ranks {CHANGED} (groups {wires_in_words(config)})"
    group = next(group for group in config.groups if group.name == key.group)
    if key.kind == "weights":
        return f"what {whose} gathered of the weights {CHANGED} (group {_group_in_words(group)})"
    sender, receiver = key.ranks
    wire = f"group {group.name}, {group.interface_of(sender)} to {group.interface_of(receiver)}"
    return f"what {_in_words(key.ranks[:1], config)} sent to {_in_words(key.ranks[1:], config)} {CHANGED} ({wire})"


def wires_in_words(config: RunConfig) -> str:
    """Return the groups that span several clusters or, if none do, several hosts."""
    across = [group for group in config.groups if _spans(config, group.ranks, "cluster")]
    named = across or [group for group in config.groups if _spans(config, group.ranks, "host")]
    return _some([_group_in_words(group) for group in named])


def _group_in_words(group: Group) -> str:
    return f"{group.name} over {'+'.join(dict.fromkeys(group.interfaces))}"


def _in_words(ranks: Sequence[int], config: RunConfig) -> str:
    return _some([f"rank {rank} on {config.grid.rank(rank).host}" for rank in ranks])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SAID} more" if len(names) > MAX_SAID else ""
    return ", ".join(names[:MAX_SAID]) + more


def _spans(config: RunConfig, ranks: Sequence[int], place: Literal["host", "cluster"]) -> bool:
    return len({getattr(config.grid.rank(rank), place) for rank in ranks}) > 1
