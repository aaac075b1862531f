"""The `csv` tracker, which writes the lines of `metrics.jsonl` as a table, for spreadsheets and data frames."""

import csv
import io
import os
from typing import TextIO

from rl_training.experiment.files import open_regular, write_text
from rl_training.experiment.runs import RunContext, finite, read_metrics
from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun

CSV_FILE = "metrics.csv"


class CsvTracker:
    """A tracker that appends rows to `metrics.csv`. A new metric adds a column, and the table is rewritten."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._path = context.run_dir / CSV_FILE
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def rewrite(self) -> None:
        """Write the table from `metrics.jsonl`, which already contains every logged line."""
        self._close_file()
        rows = read_metrics(self._context)
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        table = io.StringIO()
        writer = csv.DictWriter(table, self._columns, lineterminator="\n")
        if rows:
            writer.writeheader()
        writer.writerows(rows)
        write_text(self._path, table.getvalue())
        # Line-buffered: a crash loses at most the row being written.
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND)
        self._file = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8", newline="")

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Append a row."""
        if self._file is None or not set(metrics) <= set(self._columns):
            self.rewrite()
            return
        writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        writer.writerow({"step": step, "time": at, **finite(metrics)})

    def close(self, outcome: Outcome) -> None:
        """Close the file."""
        del outcome
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()


def open_csv(run: TrackedRun) -> CsvTracker:
    """Open the tracker, with a table of everything that the run has logged so far."""
    tracker = CsvTracker(run.context)
    tracker.rewrite()
    return tracker
