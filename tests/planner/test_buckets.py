"""Gradient buckets: the order is the runtime's, each part priced by its own parameters."""

from __future__ import annotations

import pytest

from holmes_runtime.config.model_shape import (
    ModelShape,
    bucket_bytes,
    embedding_parameters,
    gradient_order,
    head_parameters,
    layer_parameters,
)
from holmes_runtime.config.run_config import Stage
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.parallel.gradient_buckets import make_buckets as make_runtime_buckets
from holmes_runtime.parallel.zero1 import units
from planner.schedule.buckets import BucketExchange, BucketSeconds, make_buckets
from tests.planner.fleets import bed_job
from tests.seeds import few_of

MODEL = bed_job().model


def test_each_part_is_exchanged_by_its_own_parameters() -> None:
    parts = gradient_order(2, is_first=True, is_last=True)
    found = make_buckets(MODEL, 1, parts, {"head": 5.0, "layer": 3.0}, lambda size: BucketExchange(size, size / 2))
    head, layer, embedding = (count(MODEL, 1) for count in (head_parameters, layer_parameters, embedding_parameters))
    middle = BucketSeconds(3.0, layer, layer / 2)
    assert found == [BucketSeconds(5.0, head, head / 2), middle, middle, BucketSeconds(0.0, embedding, embedding / 2)]


def test_a_middle_stage_has_its_layers_alone() -> None:
    found = make_buckets(MODEL, 1, gradient_order(3, False, False), {"layer": 1.0}, lambda _: BucketExchange(1.0, 1.0))
    assert found == [BucketSeconds(1.0, 1.0, 1.0)] * 3


def test_parts_travel_together_until_a_bucket_is_half_full() -> None:
    parts, layer = gradient_order(5, is_first=False, is_last=False), layer_parameters(MODEL, 1)
    found = make_buckets(
        MODEL, 1, parts, {"layer": 3.0}, lambda size: BucketExchange(size, 0.0), full_bytes=4 * 4 * layer
    )
    assert [(each.backward_s, each.reduce_s) for each in found] == [(6.0, 2 * layer)] * 2 + [(3.0, layer)]


@pytest.mark.parametrize("hidden_size", few_of(3, [64, 128, 192, 256, 272]))
@pytest.mark.parametrize(("is_first", "is_last"), [(True, False), (False, False), (False, True)])
def test_planned_buckets_are_those_of_the_runtime_where_layers_are_small(
    hidden_size: int, is_first: bool, is_last: bool
) -> None:
    model = ModelShape(num_layers=9, hidden_size=hidden_size, num_heads=4, seq_length=64)
    layers = range(7) if is_first else range(2, 9) if is_last else range(1, 8)
    stage = DecoderStage(model, Stage(0, layers.start, layers.stop), 7, draws=False)
    named = {parameter: name for name, parameter in stage.named_parameters()}
    layer_by_layer = [{named[each]: each for each in parameters} for _, parameters in units(stage)]
    theirs = [
        sum(each.numel() for each in bucket.parameters)
        for bucket in make_runtime_buckets([layer_by_layer], (), 1, 0, None)
    ]
    full_bytes, parts = bucket_bytes(sum(theirs)), gradient_order(7, is_first, is_last)
    ours = make_buckets(model, 1, parts, {}, lambda size: BucketExchange(size, 0.0), full_bytes)
    assert [each.reduce_s for each in ours] == theirs
