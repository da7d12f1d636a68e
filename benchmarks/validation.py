"""Published training steps predicted by `holmes plan`, row by row, with errors.

Each row is an inventory and a job (published_steps/row_files.py), planned as any other, with all fixed that the row
fixes. One set of constants per machine type (planner/cost/gpu_speeds.py) and per engine (planner/cost/engines.py),
fitted by `python -m benchmarks.published_steps.fit` to every second row of a table; the other rows are predictions. A
micro-batch size that is not published is the one that the planner takes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from benchmarks.doc_table import DOCS, write_table
from benchmarks.figure import print_figure
from benchmarks.published_steps.expert_pairs import NOT_STATED, TABLES, Pair, pairs
from benchmarks.published_steps.measurements import SOURCES, Measurement, measurements
from benchmarks.published_steps.predict_row import calibrates, is_planned, plan_row
from benchmarks.published_steps.row_files import SITES

DOC = DOCS / "cost-model.md"
COLUMNS = "| row | b | calibrates | published s | predicted s | error |"
MEMORY_COLUMNS = " GB | predicted GB | error |"


@dataclass(frozen=True)
class Judged:
    """A row, and what its plan says: seconds, GB of the fullest rank where the publication has them, and whether memory
    holds it."""

    row: Measurement
    calibrates: bool
    step_s: float
    memory_gb: float | None
    fits: bool

    @property
    def error(self) -> float:
        """Of the step time, as a part of the published one."""
        return self.step_s / self.row.step_s - 1

    @property
    def memory_error(self) -> float | None:
        """Of the peak memory."""
        return None if self.memory_gb is None or self.row.memory_gb is None else self.memory_gb / self.row.memory_gb - 1

    @property
    def name(self) -> str:
        """The row's model and cut."""
        row = self.row
        chunks = f" x{row.chunks}" if row.chunks > 1 else ""
        degrees = {"c": row.cp, "ep": row.ep, "etp": row.etp}
        experts = "".join(f" {key}{degree}" for key, degree in degrees.items() if degree > 1)
        experts += " flex" * row.sends_once
        return f"{row.name} t{row.tp} p{row.pp}{chunks} d{row.dp}{experts} B{row.global_batch_size} {row.recompute}"


def judge(row: Measurement) -> Judged:
    """The row predicted."""
    plan, fits = plan_row(row)
    memory = None if row.memory_gb is None else max(plan.prediction.memory_bytes) / 1e9
    chosen = replace(row, micro_batch_size=plan.micro_batch_size)
    return Judged(chosen, calibrates(row), plan.prediction.step_s, memory, fits)


def mean_error(rows: Sequence[Judged]) -> float:
    """Mean of the absolute errors of step times."""
    return statistics.fmean(abs(row.error) for row in rows)


def bias(rows: Sequence[Judged]) -> float:
    """Mean of the errors of step times with their signs."""
    return statistics.fmean(row.error for row in rows)


def worst(rows: Sequence[Judged]) -> float:
    """The largest of the absolute errors of step times."""
    return max(abs(row.error) for row in rows)


def rank_correlation(rows: Sequence[Judged]) -> float:
    """Spearman's, of predicted and published step times."""
    published, predicted = [row.row.step_s for row in rows], [row.step_s for row in rows]
    return statistics.correlation(
        *([sorted(values).index(value) for value in values] for values in (published, predicted))
    )


def by_table(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The rows of each table of measurements."""
    tables = dict.fromkeys(row.row.table for row in judged)
    return {table: [row for row in judged if row.row.table == table] for table in tables}


def by_engine(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The rows of each engine and GPU."""
    found: dict[str, list[Judged]] = {}
    for row in judged:
        found.setdefault(f"{SITES[row.row.table].engine} on {row.row.gpu}", []).append(row)
    return found


def summary_lines(judged: Sequence[Judged]) -> list[str]:
    """Two Markdown tables: one line an engine and GPU, one line a table of measurements."""
    lines = [
        "| engine and GPU | rows | mean error | bias | max error | refused for memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in by_engine(judged).items():
        refused = sum(not row.fits for row in rows)
        lines.append(
            f"| {name} | {len(rows)} | {mean_error(rows):.1%} | {bias(rows):+.1%} | {worst(rows):.1%} | {refused} |"
        )
    lines += [
        "",
        "| table | engine | rows | mean error | of rows not calibrated on | bias | max error | rank correlation |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for table, rows in by_table(judged).items():
        others = [row for row in rows if not row.calibrates]
        errors = f"{mean_error(rows):.1%} | {mean_error(others):.1%} | {bias(rows):+.1%} | {worst(rows):.1%}"
        lines.append(f"| {table} | {SITES[table].engine} | {len(rows)} | {errors} | {rank_correlation(rows):.2f} |")
    return lines


def table_lines(table: str, judged: Sequence[Judged]) -> list[str]:
    """A Markdown table: one line a row of `table`."""
    rows = [row for row in judged if row.row.table == table]
    has_memory = any(row.memory_gb is not None for row in rows)
    lines = [f"### {table}", "", SOURCES[table] + ".", ""]
    lines.append(COLUMNS + MEMORY_COLUMNS * has_memory)
    lines.append("|---|---|---|---|---|---|" + "---|---|---|" * has_memory)
    for row in rows:
        line = f"| {row.name} | {row.row.micro_batch_size} | {'yes' if row.calibrates else ''} "
        line += f"| {row.row.step_s:.3f} | {row.step_s:.3f} | {row.error:+.1%} |"
        if row.memory_error is not None:
            line += f" {row.row.memory_gb:.1f} | {row.memory_gb:.1f} | {row.memory_error:+.1%} |"
        lines.append(line)
    not_planned = [row for row in measurements() if row.table == table and not is_planned(row)]
    if not_planned:
        lines += ["", f"{len(not_planned)} more rows, with tensor groups over two hosts, are refused by the planner."]
    return [*lines, ""]


def right_order(judged: Sequence[Judged], pair: Pair) -> bool:
    """Return True if the row that was faster is predicted to be."""
    return judged[pair.faster].step_s < judged[pair.slower].step_s


def pair_lines(judged: Sequence[Judged]) -> list[str]:
    """Two Markdown tables: alternatives of one job, in the published and the predicted order, and those not stated."""
    lines = ["### Published alternatives", "", "Pairs of settings of one job that differ by more than 3 %.", ""]
    lines += ["| faster | slower | table | published s | predicted s | order |", "|---|---|---|---|---|---|"]
    for pair in pairs([row.row for row in judged]):
        faster, slower = judged[pair.faster], judged[pair.slower]
        seconds = f"{faster.row.step_s:.1f}, {slower.row.step_s:.1f} | {faster.step_s:.1f}, {slower.step_s:.1f}"
        order = "right" if right_order(judged, pair) else "wrong"
        lines.append(f"| {faster.name} | {slower.name} | {faster.row.table} | {seconds} | {order} |")
    lines += ["", "| not stated in job.yaml | why |", "|---|---|"]
    return [*lines, *(f"| {what} | {why} |" for what, why in NOT_STATED), ""]


def write_docs(judged: Sequence[Judged]) -> None:
    """Replace the tables in docs/cost-model.md."""
    lines = [*summary_lines(judged), ""]
    for table in by_table(judged):
        lines += table_lines(table, judged)
    lines += pair_lines([row for row in judged if row.row.table in TABLES])
    write_table(DOC.name, "validation", lines[:-1])


def show(judged: Sequence[Judged]) -> None:
    """The rows for people."""
    table = Table(title="published steps against predicted ones; * the constants were fitted to", title_justify="left")
    for heading in ("table", "row", "b", "published s", "predicted s", "error", "memory error"):
        table.add_column(heading)
    for row in judged:
        mark = "*" if row.calibrates else " "
        memory = "" if row.memory_error is None else f"{row.memory_error:+.1%}"
        seconds = (f"{row.row.step_s:.3f}", f"{row.step_s:.3f}", f"{row.error:+.1%}")
        table.add_row(mark + row.row.table, row.name, str(row.row.micro_batch_size), *seconds, memory)
    Console(highlight=False, width=120).print(table)


def main() -> None:
    """Predict every row; with `--write-docs` also put the tables into docs/cost-model.md."""
    judged = [judge(row) for row in measurements() if is_planned(row)]
    show(judged)
    for table, rows in by_table(judged).items():
        print_figure(f"validation.mean_error.{table}", 100 * mean_error(rows), "%")
        print_figure(f"validation.bias.{table}", 100 * bias(rows), "%")
        print_figure(f"validation.refused.{table}", sum(not row.fits for row in rows), "rows")
        others = [row for row in rows if not row.calibrates]
        print_figure(f"validation.mean_error_not_calibrated.{table}", 100 * mean_error(others), "%")
        print_figure(f"validation.max_error.{table}", 100 * worst(rows), "%")
        print_figure(f"validation.rank_correlation.{table}", rank_correlation(rows), "1")
    for table, rows in by_table(judged).items():
        memory = [abs(row.memory_error) for row in rows if row.memory_error is not None]
        if memory:
            print_figure(f"validation.mean_memory_error.{table}", 100 * statistics.fmean(memory), "%")
    if "--write-docs" in sys.argv:
        write_docs(judged)


if __name__ == "__main__":
    main()
