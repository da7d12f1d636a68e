"""Lines of JSON and rows of Parquet without a document, skipped up to the job's limit. Free of torch."""

from __future__ import annotations


class BadLines:
    """The skipped lines, at most `limit` over all files. `first` names one, with the reason."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.first: str | None = None

    def skip(self, reason: str, count: int = 1) -> None:
        """Skip `count` lines, the first of them for `reason`, which names its file and line.

        Raises:
            ValueError: more lines are skipped than the job allows.
        """
        self.count += count
        self.first = self.first or reason
        if self.count > self.limit:
            if self.limit == 0:
                raise ValueError(f"{reason}; `skip_bad_lines: N` in `data` skips up to N such lines")
            raise ValueError(
                f"{reason}; more lines hold no document than `skip_bad_lines: {self.limit}` in `data` allows; the "
                f"first: {self.first}"
            )

    @property
    def sentence(self) -> str:
        """The count and the first line, for the log and the run record."""
        return f"{self.count:,} bad lines of the data are skipped, of at most {self.limit:,}; the first: {self.first}"
