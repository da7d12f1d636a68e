"""Every key of job.yaml and hosts.yaml has a meaning and an example that its record takes, and a place in the docs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.job import Job
from holmes_core.records.reference import Key, keys_of
from tests import doc_keys

JOB: dict[str, Any] = {
    "model": {"family": "llama", "num_layers": 8, "hidden_size": 256, "num_heads": 8, "seq_length": 128},
    "data": {"path": "/data/text.bin", "validation_fraction": 0.1},
    "steps": 1000,
    "global_batch_size": 64,
}
HOSTS = {"hosts": [{"name": "a1"}]}
EXPERTS = {"experts": 8, "experts_per_token": 2}
# What a section or key needs to be there, by its name.
NEEDS: dict[str, dict[str, Any]] = {
    "model.rope_scaling": {"model": {"rope_scaling": {"kind": "llama3", "factor": 8.0}}},
    **{f"model.{key}": {"model": EXPERTS} for key in ("experts", "experts_per_token", "expert_ffn")},
    **{f"model.{key}": {"model": EXPERTS} for key in ("shared_experts", "first_dense_layers", "normalized_routing")},
    "optimizer.router_balance": {"model": EXPERTS},
    "model.latent_attention": {"model": {"latent_attention": {"kv_rank": 512}}},
    "model.linear_attention": {
        "model": {
            "num_layers": 36,
            "linear_attention": {"layers": 36, "key_heads": 16, "value_heads": 32, "head_dim": 128},
        }
    },
    "trainable.lora": {"trainable": {"lora": {"rank": 16, "targets": ["query"]}}},
    "model.tanh_gelu": {"model": {"family": "gpt"}},
    "data.path[]": {"data": {"path": [{"path": "/data/text.bin", "weight": 0.7}]}},
    "evaluation": {"evaluation": {"every_steps": 10}},
    "checkpoint": {"checkpoint": {"path": "/shared/ckpt", "every_steps": 10}},
    "compute.overheads": {"compute": {"overheads": {"action_s": 0.0, "update_bytes_per_s": 1e9}}},
    "compute.emulate": {"compute": {"emulate": {"forward_s_per_layer": 0.1, "backward_s_per_layer": 0.2}}},
    "compute.calibration": {
        "compute": {"calibration": {"run": "runs/1", "compute_factor": 1.0, "network_efficiency": 1.0}}
    },
    "launch.code": {"model": {"factory": "my_model.py:build"}},
    "container": {"container": {"engine": "docker", "image": "image"}},
    "hosts[].container": {"hosts": [{"name": "a1", "container": {"engine": "docker", "image": "image"}}]},
    "trainer": {"trainer": {"engine": "megatron"}},
    "trainer.command": {"data": None},
    "trunks[]": {"trunks": [{"between": ["east", "west"], "gbps": 10}]},
    "trunks[].cluster": {"trunks": [{"between": None}]},
    "security.tunnel_gbps": {"security": {"between_clusters": "wireguard"}},
    "security.tunnel_hub": {"hosts": [{"name": "gateway"}], "security": {"between_clusters": "wireguard"}},
    "security.tunnel_hub_address": {
        "hosts": [{"name": "gateway"}],
        "security": {"between_clusters": "wireguard", "tunnel_hub": "gateway"},
    },
}
FILES: list[tuple[type[BaseModel], dict[str, Any]]] = [(Job, JOB), (HostsFile, HOSTS)]
KEYS = [(cls, base, key) for cls, base in FILES for key in keys_of(cls)]


def merged(base: Any, over: Any) -> Any:
    """`over` put into `base`, key by key; of lists of sections the first into the first."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{name: merged(base.get(name), value) for name, value in over.items()}}
    if isinstance(base, list) and isinstance(over, list) and isinstance(over[0], dict):
        return [merged(base[0], over[0])]
    return over


@pytest.mark.parametrize(("cls", "base", "key"), KEYS, ids=[f"{cls.__name__}.{key.name}" for cls, _, key in KEYS])
def test_key_has_a_meaning_and_an_example_that_its_record_takes(
    cls: type[BaseModel], base: dict[str, Any], key: Key
) -> None:
    assert key.meaning.endswith("."), f"{key.name} needs a docstring below it, sentences and then `Example: VALUE`"
    assert key.example or key.is_section, f"{key.name}: its docstring needs an `Example: VALUE`"
    for needed in (key.section, key.name):
        base = merged(base, NEEDS.get(needed, {}))

    taken = cls.model_validate(merged(base, yaml.safe_load(key.written()) or {}))

    value: Any = taken
    for part in key.name.split("."):
        value = getattr(value, part.removesuffix("[]"))
        value = value[0] if part.endswith("[]") else value
    assert key.is_section or value not in (None, ())


@pytest.mark.parametrize("name", list(doc_keys.PAGES))
def test_page_is_as_the_records_are(name: str) -> None:
    assert (doc_keys.DOCS / name).read_text(encoding="utf-8") == doc_keys.page(name), (
        "write it: python -m tests.doc_keys"
    )


def test_types_and_defaults_are_in_words() -> None:
    keys = {key.name: key for key in keys_of(Job)}

    def words(name: str) -> tuple[str, str]:
        return keys[name].type, keys[name].default

    assert words("steps") == ("whole number, at least 1", "required")
    assert words("optimizer.beta2") == ("number, at least 0, below 1", "0.95")
    assert words("precision") == ("fp32, bf16 or fp16", "not set")
    assert words("data.path") == ("path that begins with / or ~/, or list of sections", "required")
    assert words("parallel.layers") == ("list, each: whole number, at least 1", "not set")
    assert words("launch.environment") == ("names, each with: text", "{}")
    assert words("optimizer") == ("section", "see its keys")
