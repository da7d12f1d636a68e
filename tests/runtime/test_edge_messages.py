"""When receives are posted: ahead of what a schedule may have under way, and never more than there will be messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.streams import Transfer
from holmes_runtime.comm.wire import Direction
from holmes_runtime.parallel import edge_messages
from holmes_runtime.parallel.edge_messages import POSTED_AHEAD, EdgeMessages


class Wire:
    """Counts the receives that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
        self.started = 0
        monkeypatch.setattr(edge_messages, "start_receive", self.start_receive)
        monkeypatch.setattr(dist, "get_backend", lambda _: backend)

    def start_receive(self, tensor: torch.Tensor, _source: int, _group: object) -> Transfer:
        self.started += 1
        return Transfer([], tensor.fill_(self.started))


def messages_of(extra_in_flight: tuple[int, ...] = ()) -> EdgeMessages:
    """Those of the last of two ranks."""
    config: Any = SimpleNamespace(
        grid=SimpleNamespace(edge_before=lambda _: (0, 1), edge_after=lambda _: None),
        microbatches=(8,),
        extra_in_flight=extra_in_flight,
        codec_of=lambda *_: "none",
        message_bytes=lambda _: 4,
        message_shape=(1,),
        value_type="fp32",
    )
    me: Any = SimpleNamespace(rank=1, dp_rank=0, tp_rank=0)
    return EdgeMessages(config, me, RankGroups(), torch.device("cpu"))


@pytest.mark.parametrize(("extra", "ahead"), [((), POSTED_AHEAD), ((3,), POSTED_AHEAD + 3)])
def test_receives_are_posted_before_the_messages_they_take_leave(
    monkeypatch: pytest.MonkeyPatch, extra: tuple[int, ...], ahead: int
) -> None:
    wire, messages = Wire(monkeypatch, "gloo"), messages_of(extra)
    messages.begin(1, {Direction.FORWARD: 8})
    assert wire.started == ahead
    messages.receive(Direction.FORWARD)
    assert wire.started == ahead + 1


def test_messages_are_received_in_order_and_none_is_awaited_that_nobody_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, messages = Wire(monkeypatch, "gloo"), messages_of()
    for step in (1, 2):
        messages.begin(step, {Direction.FORWARD: 4, Direction.BACKWARD: 0})
        seen = [int(messages.receive(Direction.FORWARD).transfer.tensor[0]) for _ in range(4)]
        assert seen == [4 * (step - 1) + number for number in (1, 2, 3, 4)]
    assert wire.started == 8


def test_nccl_receives_are_posted_when_they_are_needed_since_they_would_hold_up_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, messages = Wire(monkeypatch, "nccl"), messages_of((3,))
    messages.begin(1, {Direction.FORWARD: 8})
    assert wire.started == 0
    messages.receive(Direction.FORWARD)
    assert wire.started == 1
