"""The tables of docs/cost-model.md are what the model says today: the two cheapest of them, row by row."""

from __future__ import annotations

import pytest

from benchmarks.published_steps.measurements import measurements
from benchmarks.validation import DOC, judge, mean_error, table_lines
from tests.seeds import few_of


@pytest.mark.parametrize(("table", "most"), few_of(1, [("V6", 0.05), ("V5", 0.08)]))
def test_published_steps_are_predicted_as_the_docs_say(table: str, most: float) -> None:
    judged = [judge(row) for row in measurements() if row.table == table]
    assert "\n".join(table_lines(table, judged)) in DOC.read_text(encoding="utf-8"), (
        "the cost model changed: python -m benchmarks.validation --write-docs"
    )
    assert mean_error(judged) <= most
