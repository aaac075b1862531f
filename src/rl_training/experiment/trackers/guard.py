"""Nothing that a tracker does may hurt its run: errors are told once, and waiting is done in another thread."""

import queue
import threading
import warnings
from collections.abc import Callable
from typing import NamedTuple

from rl_training.errors import describe_error
from rl_training.experiment.trackers.base import Metrics, Outcome, Tracker

_MAX_WAITING = 10_000  # logs; who is that far behind will not catch up


class GuardedTracker:
    """A tracker that is left out after its first error, of which one warning tells."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name = name
        self._open = open_tracker
        self._tracker: Tracker | None = None

    def open(self) -> "GuardedTracker":
        """Open the tracker itself."""
        try:
            self._tracker = self._open()
        except Exception as error:
            self._leave_out(error)
        return self

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Hand on, if the tracker still works."""
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
            f"tracker {self._name} failed and is left out ({describe_error(error)}); metrics.jsonl has everything",
            stacklevel=3,
        )


class _Logged(NamedTuple):
    metrics: Metrics
    step: int
    at: float


class BackgroundTracker:
    """Runs a tracker in a thread of its own, so that training never waits for a network, not even to begin."""

    def __init__(self, open_tracker: Callable[[], Tracker], closing_seconds: float) -> None:
        self._open = open_tracker
        self._closing_seconds = closing_seconds
        self._waiting: queue.Queue[_Logged | Outcome] = queue.Queue(_MAX_WAITING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def start(self) -> "BackgroundTracker":
        """Begin to open the tracker."""
        self._thread.start()
        return self

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Leave it for the thread; raises what went wrong there before."""
        self._put(_Logged(dict(metrics), step, at))

    def close(self, outcome: Outcome) -> None:
        """Wait for the thread to end, but not for ever."""
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
            raise TimeoutError(f"it is {_MAX_WAITING} logs behind") from None

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
