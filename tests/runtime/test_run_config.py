"""The strict JSON form of the run configuration."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from holmes_runtime.config.codec import EdgeSettings
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import DataSource, EmulationSettings, EvaluationSettings

from .launched_runs import ONE_ISLAND, REPOSITORY, TINY, layout, make_config

EVALUATION = {"every_steps": 5, "num_batches": 1, "patience": None}
FOUR = make_config(pipelines=((0, 2), (3, 1)), cuts=(0, 1, 3))


def changed(path: str, value: Any) -> str:
    """The JSON of FOUR with the value at `path`, such as `model/num_layers`, replaced."""
    data = json.loads(FOUR.to_json())
    *parents, last = path.split("/")
    owner = data
    for key in parents:
        owner = owner[int(key) if key.isdigit() else key]
    owner[int(last) if last.isdigit() else last] = value
    return json.dumps(data)


SHARED: dict[str, Any] = {"shards": layout(1, 1, 4), "cp": 2}

BLEND = replace(
    FOUR, data=replace(FOUR.data, path=(DataSource("/a", 3.0), DataSource("/b", 0.5)), documents="separate")
)


@pytest.mark.parametrize(
    "config",
    [
        FOUR,
        BLEND,
        make_config(emulation=EmulationSettings(0.5, 1.0, {"one": 2.0}), grad_clip=None),
        make_config(outer_sync=ONE_ISLAND, steps=8),
    ],
)
def test_json_reads_back_equal(config: RunConfig) -> None:
    assert RunConfig.from_json(config.to_json()) == config


def test_coordinates_lead_to_ranks_and_back() -> None:
    assert FOUR.grid.at(pp_rank=1, dp_rank=1, tp_rank=0).rank == 1
    assert FOUR.grid.rank(3).dp_rank == 1
    assert FOUR.grid.pipeline(dp_rank=0, tp_rank=0) == (0, 2)
    assert FOUR.grid.replicas(FOUR.grid.rank(2)) == (2, 1)


def test_replicas_that_share_sequences_train_the_same_samples() -> None:
    config = make_config(shards=layout(1, 1, 4), cp=2, microbatches=(3, 3, 5, 5), micro_batch_size=2)
    assert config.global_batch_size == 16
    assert [config.sample_numbers(replica) for replica in range(4)] == [range(6)] * 2 + [range(6, 16)] * 2
    assert config.message_shape == (2, TINY.seq_length // 2, TINY.hidden_size)
    assert [config.grid.sequence(rank) for rank in config.ranks] == [(0, 1)] * 2 + [(2, 3)] * 2


def test_a_group_of_ranks_that_share_a_sequence_is_needed() -> None:
    config = make_config(**SHARED)
    kept = tuple(group for group in config.groups if group.ranks != (2, 3))
    with pytest.raises(ValueError, match=r"^groups: must hold every group .*'cp', \(2, 3\)"):
        replace(config, groups=kept)


def hierarchical(clusters: str, pp: int, dp: int, tp: int = 1) -> RunConfig:
    return make_config(shards=layout(tp, pp, dp), cuts=(0, 1, 3) if pp == 2 else (0, 3), clusters=clusters)


def groups_of(config: RunConfig) -> dict[str, list[tuple[int, ...]]]:
    axes = ("dp", "dp_across")
    return {axis: [group.ranks for group in config.groups if group.axis == axis] for axis in axes}


@pytest.mark.parametrize(
    ("config", "inside", "across"),
    [
        (hierarchical("aabb", 1, 4), [(0, 1), (2, 3)], [(0, 2), (1, 3)]),
        (hierarchical("abba", 1, 4), [(0, 3), (1, 2)], [(0, 1), (3, 2)]),
        (hierarchical("aabbcc", 1, 6), [(0, 1), (2, 3), (4, 5)], [(0, 2, 4), (1, 3, 5)]),
        (hierarchical("ab", 1, 2), [], [(0, 1)]),
        (hierarchical("aa", 1, 2), [(0, 1)], []),
        (hierarchical("aabbcccc", 2, 4), [(0, 1), (2, 3), (4, 5, 6, 7)], [(0, 2), (1, 3)]),
        (hierarchical("aabb", 1, 2, tp=2), [], [(0, 2), (1, 3)]),
    ],
)
def test_replicas_meet_inside_their_cluster_then_one_of_each(
    config: RunConfig, inside: list[tuple[int, ...]], across: list[tuple[int, ...]]
) -> None:
    assert groups_of(config) == {"dp": inside, "dp_across": across}  # which the configuration took


def test_members_of_a_group_across_are_at_the_same_position_by_rank_not_by_replica() -> None:
    """As torch sorts the members of a group, whichever replica they are."""
    config = make_config(pipelines=((3,), (0,), (1,), (2,)), clusters="abba")

    assert config.grid.exchanges(config.grid.rank(3)) == {"dp": (0, 3), "dp_across": (3, 2)}
    assert config.grid.exchanges(config.grid.rank(0)) == {"dp": (0, 3), "dp_across": (0, 1)}


def test_clusters_with_unequal_numbers_of_replicas_are_refused() -> None:
    data = json.loads(make_config(pipelines=((0,), (1,), (2,)), microbatches=(1, 1, 1)).to_json())
    data["data_parallel"], data["ranks"][2]["cluster"] = "hierarchical", "two"

    with pytest.raises(
        ValueError, match=r"^data_parallel: must be flat unless .* rank 0 there are 2 in one, 1 in two, got 'hier"
    ):
        RunConfig.from_json(json.dumps(data))


def test_one_group_of_all_replicas_is_refused_where_clusters_add_up_first() -> None:
    data = json.loads(hierarchical("aabb", 1, 4).to_json())
    data["groups"][0] |= {"ranks": [0, 1, 2, 3], "interfaces": ["lo"] * 4}

    with pytest.raises(ValueError, match=r"^groups\[0\]\.ranks: .* \(dp, data parallelism hierarchical\)"):
        RunConfig.from_json(json.dumps(data))


def test_a_whole_number_stands_for_a_float() -> None:
    config = RunConfig.from_json(changed("timeout_s", 5))

    assert config.timeout_s == 5.0
    assert isinstance(config.timeout_s, float)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model/num_layer", 4, r"^model\.num_layer: unknown key, got 4"),
        ("model/num_layers", "3", r"^model\.num_layers: expected int, got '3'"),
        ("model/num_layers", True, r"^model\.num_layers: expected int, got True"),
        ("model/num_heads", 5, r"^model\.num_heads: must divide hidden_size 32, got 5"),
        ("model/vocab_size", 100, r"^model\.vocab_size: must be at least 256"),
        ("model", 3, r"^model: expected an object, got 3"),
        ("ranks", {}, r"^ranks: expected a list, got \{\}"),
        ("ranks/0/host", None, r"^ranks\[0\]\.host: expected str, got None"),
        ("ranks/0/rank", 1, r"^ranks: must be 0\.\.3, each once, got \[1, 1, 2, 3\]"),
        ("ranks/0/pp_rank", 1, r"^ranks\[0\]: \(pp_rank, dp_rank, tp_rank\) must be .* got \(1, 0, 0\)"),
        ("groups/0/axis", "tp", r"^groups\[0\]\.ranks: must be the shards or the replicas"),
        ("groups/2/ranks", [2, 0], r"^groups\[2\]\.ranks: .* the earlier first"),
        ("groups/0/interfaces", ["lo"], r"^groups\[0\]\.interfaces: must name one interface for each of 2 ranks"),
        ("groups/0/ranks", [0, 9], r"^groups\[0\]\.ranks: must be the shards or the replicas of one stage"),
        ("groups/2/ranks", [0, 0], r"^groups\[2\]\.ranks: must be two or more distinct ranks"),
        ("groups/0/codec", "int8", r"^groups\[0\]\.codec: must be none but on the edges of a pipeline, not on axis dp"),
        ("groups/2/codec", "int2", r"^groups\[2\]\.codec: expected one of .* got 'int2'"),
        ("groups", [], r"^groups: must hold every group of the plan"),
        ("stages/1/first_layer", 2, r"^stages\[1\]\.first_layer: must be 1, got 2"),
        ("stages/1/stop_layer", 4, r"^stages\[1\]\.stop_layer: must be num_layers 3, got 4"),
        ("stages/1/stop_layer", 1, r"^stages\[1\]\.stop_layer: must be above first_layer 1, got 1"),
        ("global_batch_size", 7, r"^global_batch_size: must be micro_batch_size \* sum\(microbatches\) = 8, got 7"),
        ("microbatches", [4], r"^microbatches: must be 2 positive numbers, one for each of dp, got \(4,\)"),
        ("microbatches", [8, 0], r"^microbatches: must be 2 positive numbers"),
        ("chunks", 2, r"^schedule: schedule 1f1b has one chunk of the model per rank, got 2"),
        ("schedule", "fast", r"^schedule: expected one of .* got 'fast'"),
        ("extra_in_flight", [1], r"^schedule: schedule 1f1b has no extra micro-batches in flight"),
        ("model/num_kv_heads", 3, r"^model\.num_kv_heads: must divide num_heads 4, got 3"),
        ("compile", 1, r"^compile: expected bool, got 1"),
        ("optimizer/grad_clip", 0, r"^optimizer\.grad_clip: must be above 0, got 0\.0"),
        ("data_parallel", "tree", r"^data_parallel: expected one of \['flat', 'hierarchical'\], got 'tree'"),
        ("zero", 2, r"^zero: expected one of \[1, 3\], got 2"),
        ("zero", True, r"^zero: expected one of \[1, 3\], got True"),
        ("device", "tpu", r"^device: expected one of \['cuda', 'cpu'\], got 'tpu'"),
        ("schema_version", 2, r"^schema_version: must be 1, got 2"),
        ("tp", 2, r"^ranks: must be 0\.\.7, each once"),
        ("timeout_s", float("nan"), "numbers must be finite, got NaN"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.from_json(changed(path, value))


def test_interleaving_needs_the_edge_that_closes_the_ring() -> None:
    model = dataclasses.replace(TINY, num_layers=4)
    cuts = (0, 1, 2, 3, 4)
    config = make_config(pipelines=((0, 1),), cuts=cuts, model=model, schedule="interleaved", chunks=2)

    assert config.grid.edge_before(config.grid.rank(0)) == (1, 0)
    assert config.grid.edge_after(config.grid.rank(0)) == (0, 1)
    assert [stage.index for stage in config.stages_of(1)] == [1, 3]
    kept = tuple(group for group in config.groups if group.ranks != (1, 0))
    with pytest.raises(ValueError, match=r"^groups: must hold every group .*'pp_forward', \(1, 0\)"):
        dataclasses.replace(config, groups=kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "zero-bubble", "recompute": "full"}, r"^recompute: must not be full under zero-bubble"),
        ({"schedule": "zero-bubble", "compile_blocks": True}, r"^compile: must be false under zero-bubble.*got True"),
        ({"schedule": "interleaved", "chunks": 2}, r"^chunks: must be 1 without a pipeline, got 2"),
        ({"shards": layout(8, 1, 1)}, r"^model\.num_heads: must be a multiple of tp 8, got 4"),
        (
            {"pipelines": ((0, 1),), "cuts": (0, 1, 3), "value_type": "bf16", "codecs": {"pp_forward": "bf16"}},
            r"^groups\[0\]\.codec: must not be bf16 in a run whose value_type is bf16",
        ),
        (
            {"model": replace(TINY, factory="own.py:build"), "documents": "separate"},
            r"^data\.documents: must be joined with model.factory",
        ),
        (
            {"shards": layout(2, 1, 1), "model": replace(TINY, factory="own.py:build")},
            r"^tp: must be 1 in an emulated run and with model.factory, got 2",
        ),
        ({"shards": layout(2, 1, 1), "emulation": EmulationSettings(0, 0, {})}, r"^tp: must be 1 in an emulated run"),
        ({**SHARED, "emulation": EmulationSettings(0, 0, {})}, r"^cp: must be 1 in an emulated run"),
        ({**SHARED, "outer_sync": ONE_ISLAND, "steps": 8}, r"^cp: must be 1 in an emulated run, with islands"),
        ({**SHARED, "model": replace(TINY, factory="own.py:build")}, r"^cp: must be 1 .* with model.factory, got 2"),
        ({**SHARED, "model": replace(TINY, seq_length=30)}, r"^model\.seq_length: must be a multiple of 2 cp tp = 4"),
        ({**SHARED, "microbatches": (3, 5, 4, 4)}, r"^microbatches: must be equal for each 2 replicas that share"),
        ({"optimizer_offload": True, "zero": 3}, r"^optimizer_offload: must be false under zero 3.*got True"),
        ({"model": replace(TINY, tied_embeddings=True), "zero": 3}, r"^zero: must be 1 with model\.tied_embeddings"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_an_edge_has_a_codec_of_each_direction_and_messages_their_bytes() -> None:
    config = make_config(pipelines=((0, 1),), cuts=(0, 1, 3), codecs={"pp_forward": "int8", "pp_backward": "int4"})

    assert config.codec_of("pp_forward", (0, 1)) == "int8"
    assert config.codec_of("pp_backward", (0, 1)) == "int4"
    assert config.codec_of("pp_forward", None) == "none"
    # (1, 32, 32) values: 16 blocks of 64.
    assert [config.message_bytes(codec) for codec in ("none", "bf16", "int8", "int4")] == [4096, 2048, 1056, 544]


def test_a_missing_key_is_refused_with_its_path() -> None:
    data = json.loads(FOUR.to_json())
    del data["data"]["pattern"]

    with pytest.raises(ValueError, match=r"^data\.pattern: missing"):
        RunConfig.from_json(json.dumps(data))


def test_config_and_schedule_load_without_torch() -> None:
    program = "import sys; from holmes_runtime.config import run_config, schedule; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"path": []}}, r"^data\.path: must name a file or folder, got \[\]"),
        ({"data": {"path": 3}}, r"^data\.path: expected a list, got 3"),
        ({"data": {"path": [{"path": "a", "weight": 0}]}}, r"^data\.path\[0\]\.weight: must be above 0, got 0\.0"),
        ({"data": {"validation_fraction": 1.0}}, r"^data\.validation_fraction: must be below 1, got 1\.0"),
        ({"evaluation": EVALUATION}, r"^data\.validation_fraction: must be above 0"),
        ({"evaluation": {**EVALUATION, "every_steps": 0}}, r"^evaluation\.every_steps: must be at least 1, got 0"),
        ({"evaluation": {**EVALUATION, "patience": 0}}, r"^evaluation\.patience: must be at least 1, got 0"),
        (
            {"checkpoint": {"path": "c", "every_steps": 1, "keep_last": 0, "copies": 2}},
            r"^checkpoint\.keep_last: must be at least 1",
        ),
        ({"cp": 2, "global_batch_size": 4}, r"^cp: must be a divisor of dp 1, got 2"),
        ({"room_in_flight": [1, 2]}, r"^room_in_flight: must be empty or 1 positive numbers, one per pipeline rank"),
        ({"resume": True}, r"^resume: must be false without a checkpoint folder, got True"),
        ({"resume": 1}, r"^resume: expected bool, got 1"),
        ({"resume_step": 3}, r"^resume_step: must be null unless it resumes, got 3"),
        ({"optimizer": {"min_learning_rate": 1.0}}, r"^optimizer\.min_learning_rate: must be at most learning_rate"),
        (
            {"expectation": {"compute_s": [0.1, 0.2], "transfer_s": {}, "bytes_per_s": {}}},
            r"^expectation\.compute_s: must be empty or",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    data = json.loads(make_config().to_json())
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(data[key], dict) else value

    with pytest.raises(ValueError, match=message):
        RunConfig.from_json(json.dumps(data))


def test_codec_lossier_than_allowed_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^groups\[0\]\.codec: must not be lossier than lossiest_codec bf16, got 'int8'"
    ):
        make_config(pipelines=((0, 1),), cuts=(0, 1, 3), codecs={"pp_forward": "int8"}, lossiest_codec="bf16")


def test_edges_of_a_run_can_be_used_otherwise_and_as_planned_again() -> None:
    plan = make_config(pipelines=((0, 1, 2), (3, 4, 5)), cuts=(0, 1, 2, 3), schedule="eager", extra_in_flight=(1, 0))
    settings = (EdgeSettings("int8", "none", 2), EdgeSettings("bf16", "int4", 1))

    changed = plan.with_edge_settings(settings)

    assert changed.edge_settings == settings
    assert changed.extra_in_flight == (2, 1)
    assert [changed.codec_of("pp_forward", edge) for edge in ((0, 1), (3, 4), (4, 5))] == ["int8", "int8", "bf16"]
    assert changed.codec_of("pp_backward", (1, 2)) == "int4"
    assert changed.with_edge_settings(plan.edge_settings) == plan


def test_a_ring_has_an_edge_back_to_its_first_rank() -> None:
    ring = make_config(
        pipelines=((0, 1),), cuts=(0, 1, 2, 3, 4), model=replace(TINY, num_layers=4), schedule="interleaved", chunks=2
    )
    changed = ring.with_edge_settings([EdgeSettings("none", "none", 0), EdgeSettings("int8", "bf16", 0)])
    assert (changed.codec_of("pp_forward", (1, 0)), changed.codec_of("pp_backward", (1, 0))) == ("int8", "bf16")
    assert changed.codec_of("pp_forward", (0, 1)) == "none"


def test_an_edge_inside_a_host_is_never_packed() -> None:
    plan = make_config(pipelines=((0, 1),), cuts=(0, 1, 3))
    here = replace(plan, ranks=tuple(replace(rank, host="here") for rank in plan.ranks))
    assert plan.edges_between_hosts == {0}
    assert here.edges_between_hosts == frozenset()
    assert here.with_edge_settings([EdgeSettings("int8", "int8", 0)]) == here


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"island": 1}, r"^outer_sync\.island: must be below 1, got 1"),
        ({"codec": "bf16"}, r"^outer_sync\.codec: expected one of \['none', 'int8', 'int4'\], got 'bf16'"),
        ({"fragments": 5}, r"^outer_sync\.fragments: must be at most inner_steps 4, got 5"),
        ({"fragments": 2, "delay_steps": 3}, r"^outer_sync\.delay_steps: must be at most 2, the steps between two"),
        ({"momentum": 1.0}, r"^outer_sync\.momentum: must be below 1, got 1\.0"),
        ({"quorum": 2}, r"^outer_sync\.quorum: must be at most 1, as many as there are islands, got 2"),
        ({"samples_before": 1}, r"^outer_sync\.round_samples: must be at least 33, .* got 32"),
        ({"interfaces": []}, r"^outer_sync\.interfaces: must name one interface for each of 1 ranks, got \(\)"),
        ({"inner_steps": 3}, r"^steps: must be a multiple of outer_sync\.inner_steps 3, .* got 8"),
        ({"grace_s": 0}, r"^outer_sync\.grace_s: must be above 0, got 0"),
    ],
)
def test_islands_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    data = json.loads(make_config(outer_sync=ONE_ISLAND, steps=8).to_json())
    data["outer_sync"] |= change

    with pytest.raises(ValueError, match=message):
        RunConfig.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"emulation": EmulationSettings(0.01, 0.02)}, r"^evaluation\.patience: must be null in a rehearsal"),
        ({"outer_sync": ONE_ISLAND, "steps": 8}, r"^evaluation\.patience: must be null with islands"),
    ],
)
def test_runs_that_cannot_stop_early_refuse_patience(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(evaluation=EvaluationSettings(2, 1, patience=3), validation_fraction=0.1, **more)
