"""A node's environment as plain KEY=VALUE lines, which shells, `docker --env-file` and systemd can all read."""

from __future__ import annotations

from collections.abc import Mapping


def env_file(variables: Mapping[str, str], reasons: Mapping[str, str], plan_digest: str) -> str:
    """Return one line per variable, sorted by name, each below its reason. Without quotes and `export`, all readers
    see the same value."""
    lines = [f"# plan {plan_digest}"]
    for name in sorted(variables):
        lines += [f"# {' '.join(reasons[name].split())}", f"{name}={variables[name]}"]
    return "\n".join(lines) + "\n"
