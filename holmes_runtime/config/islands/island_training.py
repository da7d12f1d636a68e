"""The facts about an island's training that its outer loop needs. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_runtime.config.checks import check
from holmes_runtime.config.field_limits import AboveZero, Count, Positive, SharedSettings
from holmes_runtime.config.run_settings import OuterSync


@dataclass(frozen=True)
class IslandTraining(SharedSettings):
    """The training of one island: `steps` steps of `step_tokens` tokens each, on `num_ranks` ranks.

    `timeout_s` limits each wait for ranks of this or another island. `tokenizer` is the file of the tokenizer, the
    same on all islands, or None if text is not tokenized.
    """

    outer_sync: OuterSync
    steps: Positive
    step_tokens: Count
    num_ranks: Positive
    timeout_s: AboveZero
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        every, interfaces = self.outer_sync.inner_steps, self.outer_sync.interfaces
        rule = f"must be a multiple of outer_sync.inner_steps {every}, so that it ends with a round"
        check("steps", self.steps, rule, self.steps % every == 0)
        rule = f"must name one interface for each of {self.num_ranks} ranks"
        check("outer_sync.interfaces", interfaces, rule, len(interfaces) == self.num_ranks)
