"""Gradient buckets: the order is the runtime's, each part priced by its own parameters."""

from __future__ import annotations

from holmes_runtime.config.model_shape import embedding_parameters, gradient_order, head_parameters, layer_parameters
from planner.schedule.buckets import Bucket, Exchange, make_buckets
from tests.planner.fleets import bed_job

MODEL = bed_job().model


def test_each_part_is_exchanged_by_its_own_parameters() -> None:
    parts = gradient_order(2, is_first=True, is_last=True)
    found = make_buckets(MODEL, 1, parts, {"head": 5.0, "layer": 3.0}, lambda size: Exchange(size, size / 2))
    head, layer, embedding = (count(MODEL, 1) for count in (head_parameters, layer_parameters, embedding_parameters))
    middle = Bucket(3.0, layer, layer / 2)
    assert found == [Bucket(5.0, head, head / 2), middle, middle, Bucket(0.0, embedding, embedding / 2)]


def test_a_middle_stage_has_its_layers_alone() -> None:
    found = make_buckets(MODEL, 1, gradient_order(3, False, False), {"layer": 1.0}, lambda _: Exchange(1.0, 1.0))
    assert found == [Bucket(1.0, 1.0, 1.0)] * 3
