"""A judge of Kubernetes objects as strict as `kubectl create --validate=strict`, by the schemas of CRDs.

Unknown keys are faults. Not judged: CEL rules, admission webhooks, and `format`. Schemas of CRDs are structural: none
refers to another one, and `anyOf` occurs only where both integers and text are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CRDS = Path(__file__).parents[3] / "shared" / "consumers" / "crds"
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}
READ = {
    "type", "properties", "items", "required", "enum", "pattern", "additionalProperties", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "anyOf", "default", "format", "nullable", "title",
}  # fmt: skip


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind; a TrainingRuntime has that of a ClusterTrainingRuntime, as both are one Go type."""
    name = "clustertrainingruntime" if kind == "TrainingRuntime" else kind.lower()
    schema: dict[str, Any] = json.loads((CRDS / f"{name}.json").read_text(encoding="utf-8"))["schema"]
    return schema


def faults(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Return the faults for which the API would refuse the object, each with its path."""
    unread = {key for key in schema if key not in READ and not key.startswith("x-kubernetes")}
    assert not unread, unread
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{path}: {value!r} is no number and no text"
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))):
        yield f"{path}: {value!r} is no {kind}"
        return
    if value not in schema.get("enum", [value]):
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        yield from _object_faults(value, schema, path)
    elif isinstance(value, list):
        yield from _limit_faults(len(value), schema, "Items", path)
        for index, each in enumerate(value):
            yield from faults(each, schema["items"], f"{path}[{index}]")
    else:
        yield from _scalar_faults(value, schema, path)


def _object_faults(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _limit_faults(len(value), schema, "Properties", path)
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path}/{key}: missing"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    is_open = not properties or schema.get("x-kubernetes-preserve-unknown-fields", False)
    for key, each in value.items():
        if key in properties:
            yield from faults(each, properties[key], f"{path}/{key}")
        elif isinstance(others, dict):
            yield from faults(each, others, f"{path}/{key}")
        elif not is_open:
            yield f"{path}/{key}: unknown"


def _scalar_faults(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, str):
        yield from _limit_faults(len(value), schema, "Length", path)
        if re.search(schema.get("pattern", ""), value) is None:
            yield f"{path}: {value!r} does not match {schema['pattern']}"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of range"


def _limit_faults(size: int, schema: Mapping[str, Any], what: str, path: str) -> Iterator[str]:
    if not schema.get(f"min{what}", size) <= size <= schema.get(f"max{what}", size):
        yield f"{path}: size {size} is out of range"
