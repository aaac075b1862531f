"""Protection of a run from its trackers: an error gives one warning, and slow trackers run in a thread."""

import queue
import threading
import warnings
from collections.abc import Callable
from typing import NamedTuple

from rl_training.errors import describe_error
from rl_training.experiment.trackers.base import Metrics, Outcome, Tracker

_MAX_WAITING = 10_000  # log entries; a tracker that is further behind will not catch up


class GuardedTracker:
    """A tracker that gives a warning and is left out after its first error."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name = name
        self._open = open_tracker
        self._tracker: Tracker | None = None

    def open(self) -> "GuardedTracker":
        """Open the underlying tracker."""
        try:
            self._tracker = self._open()
        except Exception as error:
            self._leave_out(error)
        return self

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Pass the metrics on, if the tracker still works."""
        try:
            if self._tracker is not None:
                self._tracker.log(metrics, step, at)
        except Exception as error:
            self._leave_out(error)

    def close(self, outcome: Outcome) -> None:
        """Close the tracker, if it still works; closing twice is fine."""
        tracker, self._tracker = self._tracker, None
        try:
            if tracker is not None:
                tracker.close(outcome)
        except Exception as error:
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        self._tracker = None
        warnings.warn(
            f"tracker {self._name} failed and is left out ({describe_error(error)}); metrics.jsonl is not affected",
            stacklevel=3,
        )


class _Logged(NamedTuple):
    metrics: Metrics
    step: int
    at: float


class BackgroundTracker:
    """A tracker that works in its own thread, so that training never waits for the network, not even to start."""

    def __init__(self, open_tracker: Callable[[], Tracker], closing_seconds: float) -> None:
        self._open = open_tracker
        self._closing_seconds = closing_seconds
        self._waiting: queue.Queue[_Logged | Outcome] = queue.Queue(_MAX_WAITING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def start(self) -> "BackgroundTracker":
        """Start the thread, which opens the tracker."""
        self._thread.start()
        return self

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Queue the metrics for the thread. Raise the error with which the thread has ended, if any."""
        self._put(_Logged(dict(metrics), step, at))

    def close(self, outcome: Outcome) -> None:
        """Wait for the thread to finish, for a limited time."""
        self._put(outcome)
        self._thread.join(self._closing_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"it did not finish within {self._closing_seconds:.0f} s")
        self._raise_error()

    def _put(self, item: _Logged | Outcome) -> None:
        self._raise_error()
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            raise TimeoutError(f"it is {_MAX_WAITING} log entries behind") from None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            tracker = self._open()
            while isinstance(item := self._waiting.get(), _Logged):
                tracker.log(*item)
            tracker.close(item)
        except Exception as error:
            self._error = error
