"""Writing metrics and digests to the run directory as JSON lines, and passing metrics on to the trackers."""

import json
import os
import time
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rl_training.experiment.files import open_regular
from rl_training.experiment.runs import RunContext, finite, read_intact_metadata
from rl_training.experiment.trackers.base import Outcome, Tracker

_MAX_WAITING = 10_000  # lines that are kept in memory while they cannot be written


class LineFile:
    """A log to which lines are appended. A line that cannot be written is kept and written with a later one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._warned = False
        self._waiting: deque[str] = deque(maxlen=_MAX_WAITING)

    def open(self) -> "LineFile":
        """Create the file, so that readers find it. Only the first failure causes a warning."""
        self._flush()
        return self

    def write(self, line: str) -> None:
        """Append this line, after those that could not be written before."""
        self._waiting.append(line)
        self._flush()

    def close(self) -> None:
        """Try once more to write the lines that wait, and close the file; closing twice is fine."""
        if self._waiting:
            self._flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _flush(self) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            while self._waiting:
                _append(self._descriptor, self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            if not self._warned:
                self._warned = True
                reason = f"{self._path} cannot be written: {error.strerror}"
                warnings.warn(f"{reason}; training continues, and the lines are kept for a later attempt", stacklevel=4)


def _append(descriptor: int, line: str) -> None:
    rest, size = f"{line}\n".encode(), os.fstat(descriptor).st_size
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size)  # otherwise the next line would be appended to half of this one
        raise


class RunLogger:
    """The writer of a run's metrics and digests. Steps are env steps, summed over all envs."""

    def __init__(self, context: RunContext, trackers: Sequence[Tracker] = ()) -> None:
        self._metrics = LineFile(context.metrics_path).open()
        self._digests = LineFile(context.digests_path).open()
        self._context = context
        self._trackers = trackers

    def log_metrics(self, metrics: dict[str, int | float], step: int) -> None:
        """Write the metrics as one line, and pass them to the trackers under the same names."""
        at = round(time.time(), 3)
        self._metrics.write(json.dumps({"step": step, "time": at, **finite(metrics)}, allow_nan=False))
        for tracker in self._trackers:
            tracker.log(metrics, step, at)

    def log_digest(self, digest: str, step: int) -> None:
        """Write the digest of the run's state at `step`, so that a repeated run can be compared."""
        self._digests.write(json.dumps({"step": step, "sha256": digest}))

    def close(self) -> None:
        """Close the files, and close the trackers with the outcome of the run; closing twice is fine."""
        self._metrics.close()
        self._digests.close()
        outcome = _read_outcome(self._context)
        for tracker in self._trackers:
            tracker.close(outcome)


def _read_outcome(context: RunContext) -> Outcome:
    """Read the outcome of an ended run from `metadata.json`; a run that is still marked as running has failed."""
    metadata = read_intact_metadata(context)
    status = str(metadata.get("status", "running"))
    return Outcome("failed" if status == "running" else status, metadata.get("metrics") or {})
