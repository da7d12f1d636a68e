"""A node's environment as plain KEY=VALUE lines: what shells, `docker --env-file` and systemd all read."""

from __future__ import annotations

from collections.abc import Mapping


def env_file(variables: Mapping[str, str], plan_digest: str) -> str:
    """One line a variable, by name; no quotes and no `export`, so that every reader sees the same value."""
    lines = [f"# plan {plan_digest}", *(f"{name}={variables[name]}" for name in sorted(variables))]
    return "\n".join(lines) + "\n"
