"""A node's environment as plain KEY=VALUE lines, which shells, `docker --env-file` and systemd all read."""

from __future__ import annotations

from collections.abc import Mapping


def env_file(variables: Mapping[str, str], reasons: Mapping[str, str], plan_digest: str) -> str:
    """Return one line per variable, by name, below its reason; no quotes and no `export`, so that all readers see one
    value."""
    lines = [f"# plan {plan_digest}"]
    for name in sorted(variables):
        lines += [f"# {' '.join(reasons[name].split())}", f"{name}={variables[name]}"]
    return "\n".join(lines) + "\n"
