"""Callbacks: five events of a run, fanned out to any objects that have the five methods."""

import math
import time
import warnings
from collections.abc import Callable, Iterable

from rl_training.algorithms.base import UpdateResult
from rl_training.errors import ConfigError
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict

EVENTS = ("on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_train_end")


class Callback:
    """Override what you need. Inheriting is a convenience: any object with the five methods works."""

    def on_train_start(self, trainer: TrainerState) -> None:
        """The run directory exists, nothing has been collected."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """New experience is in the buffer."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """The learner has learnt from it."""

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """An evaluation is done."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """The run is over, for whatever reason; its last checkpoint is written."""


class CallbackList(Callback):
    """Fans every event out, in order."""

    def __init__(self, callbacks: Iterable[Callback] | None = None) -> None:
        self.callbacks = list(callbacks or ())
        for callback in self.callbacks:
            missing = [event for event in EVENTS if not callable(getattr(callback, event, None))]
            if missing:
                raise ConfigError(f"callback {type(callback).__name__} has no {', '.join(missing)}")

    def on_train_start(self, trainer: TrainerState) -> None:
        """Tell every callback."""
        for callback in self.callbacks:
            callback.on_train_start(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Tell every callback."""
        for callback in self.callbacks:
            callback.on_collect_end(trainer, result)

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Tell every callback."""
        for callback in self.callbacks:
            callback.on_update_end(trainer, result)

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Tell every callback."""
        for callback in self.callbacks:
            callback.on_eval_end(trainer, metrics)

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Tell every callback, even when one raises; the first error is raised when all have been told."""
        errors: list[Exception] = []
        for callback in self.callbacks:
            try:
                callback.on_train_end(trainer, result)
            except Exception as error:  # the others must still hear of the end
                errors.append(error)
        for further in errors[1:]:
            warnings.warn(f"another callback failed in on_train_end: {further!r}", stacklevel=2)
        if errors:
            raise errors[0]


class StopAtReturn(Callback):
    """Ends the run once an evaluation's mean return reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        if not math.isfinite(threshold):
            raise ConfigError(f"threshold={threshold}: give a finite return")
        self.threshold = threshold

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Compare the mean return."""
        if metrics["eval_return_mean"] >= self.threshold:
            trainer.request_stop(f"evaluation reached {metrics['eval_return_mean']:g}")


class StopAfterWallTime(Callback):
    """Ends the run once `seconds` have passed since it started."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not (math.isfinite(seconds) and seconds > 0.0):
            raise ConfigError(f"seconds={seconds}: give a positive time")
        self.seconds = seconds
        self._clock = clock
        self._started_at = clock()

    def on_train_start(self, trainer: TrainerState) -> None:
        """Start the clock."""
        del trainer
        self._started_at = self._clock()

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Look at the clock."""
        del result
        if self._clock() - self._started_at >= self.seconds:
            trainer.request_stop(f"{self.seconds:g} s of wall time have passed")
