"""Metrics on disk: JSON lines as the truth, handed on to the run's trackers."""

import json
import time
from collections.abc import Sequence

from rl_training.errors import RunDirectoryError
from rl_training.experiment.runs import RunContext, read_metadata
from rl_training.experiment.trackers.base import Outcome, Tracker, finite


class RunLogger:
    """Appends metrics and digests to the run directory; the x-axis is env steps, all envs counted."""

    def __init__(self, context: RunContext, trackers: Sequence[Tracker] = ()) -> None:
        # Line-buffered: a crash loses at most the line being written.
        self._file = context.metrics_path.open("a", buffering=1, encoding="utf-8")
        self._digests = context.digests_path.open("a", buffering=1, encoding="utf-8")
        self._context = context
        self._trackers = trackers

    def log_metrics(self, metrics: dict[str, int | float], step: int) -> None:
        """Write one line; the trackers get the same numbers under the same names."""
        at = round(time.time(), 3)
        self._file.write(json.dumps({"step": step, "time": at, **finite(metrics)}) + "\n")
        for tracker in self._trackers:
            tracker.log(metrics, step, at)

    def log_digest(self, digest: str, step: int) -> None:
        """Write what the state of the run amounts to at `step`, for whoever repeats it."""
        self._digests.write(json.dumps({"step": step, "sha256": digest}) + "\n")

    def close(self) -> None:
        """Flush and close, and tell the trackers how the run ended; closing twice is fine."""
        self._file.close()
        self._digests.close()
        outcome = _outcome(self._context)
        for tracker in self._trackers:
            tracker.close(outcome)


def _outcome(context: RunContext) -> Outcome:
    """What `metadata.json` says of a run that has ended; one that says nothing of its end has failed."""
    try:
        metadata = read_metadata(context)
    except RunDirectoryError:
        return Outcome("failed")
    status = str(metadata.get("status"))
    return Outcome("failed" if status == "running" else status, metadata.get("metrics") or {})
