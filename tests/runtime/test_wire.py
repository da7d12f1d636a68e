"""What a codec keeps of a message, what it never hides, and that the bits of a message depend on its name alone."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holmes_runtime.comm import wire
from holmes_runtime.comm.wire import Direction, MessageName, pack, unpack
from holmes_runtime.config.codec import BLOCK, OUTER_BLOCK, Codec, packed_bytes
from tests.seeds import few_of

NAME = MessageName(seed=7, direction=Direction.FORWARD, step=3, microbatch=1, edge=0, shard=0)
BLOCK_CODECS: tuple[Codec, ...] = ("int8", "int4")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def arrives(values: Tensor, codec: Codec, name: MessageName = NAME) -> Tensor:
    return unpack(pack(values, codec, name), codec, values.shape, values.dtype)


def random_values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 37), st.integers(1, 41)),
    codec=st.sampled_from(["none", "bf16", "int8", "int4"]),
    dtype=st.sampled_from(DTYPES),
)
def test_a_packed_message_has_the_bytes_that_buffers_are_made_for(
    shape: tuple[int, int, int], codec: Codec, dtype: torch.dtype
) -> None:
    values = random_values(*shape, dtype=dtype)

    packed = pack(values, codec, NAME)

    assert packed.dtype == torch.uint8
    assert packed.shape == (packed_bytes(codec, values.numel(), values.element_size()),)
    arrived = unpack(packed, codec, values.shape, dtype)
    assert (arrived.shape, arrived.dtype) == (values.shape, dtype)
    levels = {"none": math.inf, "bf16": 256, "int8": 127, "int4": 7}[codec]
    # One step of the scale, a little more than largest / levels, and the rounding of a 16-bit result.
    assert (arrived.float() - values.float()).abs().max() <= 1.02 * values.float().abs().max() / levels


def test_lossless_codecs_change_nothing() -> None:
    values = random_values(2, 5, 7)

    assert torch.equal(arrives(values, "none"), values)
    assert torch.equal(arrives(values.bfloat16().float(), "bf16"), values.bfloat16().float())


@pytest.mark.parametrize("codec", BLOCK_CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_zeros_arrive_as_zeros(codec: Codec, dtype: torch.dtype) -> None:
    values = random_values(3 * BLOCK, dtype=dtype)
    values[BLOCK : 2 * BLOCK] = 0

    arrived = arrives(values, codec)

    assert torch.equal(arrived[BLOCK : 2 * BLOCK], torch.zeros(BLOCK, dtype=dtype))
    assert arrived[:BLOCK].abs().max() > 0


@pytest.mark.parametrize("codec", BLOCK_CODECS)
@pytest.mark.parametrize("largest", [1e-44, 1e-37, 1e-6, 1.0, 1e30, 3e38])
def test_no_size_of_numbers_is_out_of_reach(codec: Codec, largest: float) -> None:
    values = torch.linspace(-1, 1, BLOCK) * largest

    errors = (arrives(values, codec) - values).abs()

    assert errors.max().item() <= max(values.abs().max().item() / 6, 2.0**-126)


@pytest.mark.parametrize("messages", few_of(1, [512, 4096]))
@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_what_arrives_is_on_average_what_was_sent(codec: Codec, messages: int) -> None:
    values = random_values(2 * BLOCK)
    step = values.view(-1, BLOCK).abs().amax(1, keepdim=True) / {"int8": 127, "int4": 7}[codec]

    arrived = torch.stack([arrives(values, codec, NAME._replace(step=step)) for step in range(messages)])

    mean_error = (arrived.double().mean(0) - values).view(-1, BLOCK) / step
    # A rounding's standard deviation is at most half a step. To the nearest, errors stay up to half a step on average.
    assert mean_error.abs().max() < 5 * 0.5 / math.sqrt(messages)
    assert (arrived[0] - values).abs().max() > 0.25 * step.max()


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_roundings_of_neighbours_are_independent(codec: Codec) -> None:
    """A shared direction would add up over a message; independent errors grow with its root."""
    values = torch.full((BLOCK * 64,), 0.3)
    values[::BLOCK] = 1.0

    errors = torch.stack([arrives(values, codec, NAME._replace(step=step)) - values for step in range(200)])

    ratio = errors.double().sum(1).square().mean() / errors.double().square().sum(1).mean()
    assert 0.6 < ratio < 1.5


OUTLIER_CHANNELS = [7, 500, 1000, 2000, 3000, 4000]  # of 4,096: as many as published models have, in the same places


@pytest.mark.parametrize(
    ("codec", "alone", "in_block", "in_all"), [("int8", 0.0085, 0.32, 0.10), ("int4", 0.154, 3.25, 0.995)]
)
def test_outliers_of_a_block_cost_the_rest_of_it_its_precision(
    codec: Codec, alone: float, in_block: float, in_all: float
) -> None:
    """docs/slow-links.md has the numbers: errors of all but the outliers, over their size, by root mean square.

    Outliers are 100 times the rest, as in activations of published models (Dettmers et al., LLM.int8(), 2022). They
    themselves arrive to within one step.
    """

    def error(values: Tensor, ordinary: Tensor) -> float:
        errors = (arrives(values, codec) - values)[:, ordinary]
        return float(errors.norm() / values[:, ordinary].norm())

    everywhere = torch.ones(4096, dtype=torch.bool)
    elsewhere = everywhere.clone()
    elsewhere[OUTLIER_CHANNELS] = False
    near = torch.zeros(4096, dtype=torch.bool)
    for channel in OUTLIER_CHANNELS:
        near[channel // BLOCK * BLOCK : (channel // BLOCK + 1) * BLOCK] = True
    plain = random_values(256, 4096)
    values = torch.where(elsewhere, plain, 100 * plain.sign())

    assert error(plain, everywhere) == pytest.approx(alone, rel=0.05)
    assert error(values, near & elsewhere) == pytest.approx(in_block, rel=0.05)
    assert error(values, elsewhere) == pytest.approx(in_all, rel=0.05)
    step = 1.02 * 100 / {"int8": 127, "int4": 7}[codec]
    assert (arrives(values, codec) - values)[:, OUTLIER_CHANNELS].abs().max() <= step


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_is_not_finite_is_noticed_at_the_other_end(codec: Codec, bad: float, dtype: torch.dtype) -> None:
    values = random_values(3 * BLOCK, dtype=dtype)
    values[BLOCK + 3] = bad

    arrived = arrives(values, codec)

    assert not arrived[BLOCK + 3].isfinite()
    assert not arrived.sum().isfinite()
    assert arrived[:BLOCK].isfinite().all()
    assert arrived[2 * BLOCK :].isfinite().all()


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_threads_and_memory_layout_change_no_bit(codec: Codec) -> None:
    values = random_values(3, 700, 300)
    packed = pack(values, codec, NAME)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        again = pack(values, codec, NAME)
    finally:
        torch.set_num_threads(threads)

    assert torch.equal(packed, again)
    assert torch.equal(packed, pack(values.transpose(1, 2).contiguous().transpose(1, 2), codec, NAME))
    assert torch.equal(packed, pack(values.clone().requires_grad_(), codec, NAME))


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_a_message_worked_on_whole_has_the_bits_of_one_worked_on_in_parts(codec: Codec) -> None:
    """As on a GPU and as on a CPU."""
    values = random_values(3 * wire.TILE + 5 * BLOCK)
    packed = pack(values, codec, NAME)

    whole = torch.empty_like(packed)
    codes, scales = wire._codes_and_scales(whole, len(values) // BLOCK)
    wire._round(values.view(-1, BLOCK), wire.LEVELS[codec], wire._noise(NAME, values.device), codes, scales)

    assert torch.equal(whole, packed)


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_longer_blocks_take_fewer_bytes_and_arrive_as_well(codec: Codec) -> None:
    values = random_values(5 * OUTER_BLOCK + 3)

    packed = pack(values, codec, None, OUTER_BLOCK)

    assert len(packed) == packed_bytes(codec, len(values), 4, OUTER_BLOCK)
    assert packed_bytes(codec, 10**6, 4, OUTER_BLOCK) < 0.99 * packed_bytes(codec, 10**6, 4)
    error = (unpack(packed, codec, values.shape, values.dtype, OUTER_BLOCK) - values).abs().max()
    assert error <= 0.51 * values.abs().max() / wire.LEVELS[codec] * wire.SCALE_MARGIN


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("codec", "digest"),
    [("int8", "b3e6bbebdf3d1b39"), ("int4", "0d6ffa091459076f")],
)
def test_the_bits_of_a_message_are_those_of_every_machine(codec: Codec, digest: str, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    values = ((torch.arange(70001) * 7919 % 10007 - 5003) / 4096).to(device)

    packed = pack(values, codec, NAME)

    assert hashlib.sha256(bytes(packed.tolist())).hexdigest()[:16] == digest


@pytest.mark.parametrize("codec", BLOCK_CODECS)
@pytest.mark.parametrize("key", MessageName._fields)
def test_every_part_of_a_message_s_name_changes_its_rounding(codec: Codec, key: str) -> None:
    values = random_values(4 * BLOCK)

    other = MessageName(**NAME._asdict() | {key: Direction.BACKWARD if key == "direction" else 9})

    assert not torch.equal(pack(values, codec, NAME), pack(values, codec, other))
    assert torch.equal(pack(values, codec, other), pack(values, codec, other))


@pytest.mark.parametrize(("codec", "smaller"), [("none", 1), ("bf16", 2), ("int8", 3.8), ("int4", 7.5)])
def test_codecs_save_what_they_promise_of_fp32(codec: Codec, smaller: float) -> None:
    elements = 1024 * 1024

    assert 4 * elements / packed_bytes(codec, elements, value_bytes=4) >= smaller
