"""What one node's agent needs to know beyond the run configuration. Free of torch; the launcher writes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class NodeConfig:
    """`interfaces` must exist on the node; `silence_limit_s` without a word from the controller ends the ranks."""

    run_id: str
    host: str
    node_rank: int
    num_nodes: int
    num_ranks: int
    master_address: str
    master_port: int
    interfaces: tuple[str, ...]
    environment: dict[str, str]
    silence_limit_s: float

    def to_json(self) -> str:
        """The text `from_json` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Raises TypeError for a missing or unknown key: launcher and runtime are of different versions."""
        data = json.loads(text)
        return cls(**{**data, "interfaces": tuple(data["interfaces"])})
