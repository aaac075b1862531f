"""Callbacks: five events of a run, fanned out to any objects that have the five methods."""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rl_training.algorithms.base import UpdateResult
from rl_training.errors import ConfigError
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict

EVENTS = ("on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_train_end")


class Listener(Protocol):
    """Any object with the methods of the five events; `Callback` says when each event happens."""

    def on_train_start(self, trainer: TrainerState, /) -> None:
        """Receive the start of the run."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult, /) -> None:
        """Receive the size of a collection and its finished episodes."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult, /) -> None:
        """Receive the metrics of an update."""

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict, /) -> None:
        """Receive the metrics of an evaluation."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult, /) -> None:
        """Receive the result of the run."""


class Callback:
    """A listener with empty methods: inherit from it and override what you need."""

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


@runtime_checkable
class Stateful(Protocol):
    """A callback with a memory, which goes into checkpoints: tensors and plain values."""

    def state_dict(self) -> dict[str, Any]:
        """What the callback remembers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""


class CallbackList(Callback):
    """Fans every event out, in order."""

    def __init__(self, callbacks: Iterable[Listener] | None = None) -> None:
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

    def state_dict(self) -> list[dict[str, Any]]:
        """What the callbacks that have a memory remember, in order."""
        return [
            {"name": type(callback).__qualname__, "state": callback.state_dict()}
            for callback in self.callbacks
            if isinstance(callback, Stateful)
        ]

    def load_state_dict(self, saved: list[dict[str, Any]]) -> None:
        """Give each callback what the saved one of the same class remembered; others begin anew."""
        waiting = list(saved)
        for callback in self.callbacks:
            name = type(callback).__qualname__
            found = next((entry for entry in waiting if entry["name"] == name), None)
            if found is not None and isinstance(callback, Stateful):
                waiting.remove(found)
                callback.load_state_dict(found["state"])


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


class StopWithoutImprovement(Callback):
    """Ends the run once `patience` evaluations in a row have not raised the best mean return by more than `margin`."""

    def __init__(self, patience: int, margin: float = 0.0) -> None:
        if patience < 1:
            raise ConfigError(f"patience={patience}: at least 1 evaluation is needed")
        self.patience, self.margin = patience, margin
        self._best = -math.inf
        self._waited = 0

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Compare with the best so far."""
        if metrics["eval_return_mean"] > self._best + self.margin:
            self._best, self._waited = metrics["eval_return_mean"], 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            trainer.request_stop(f"no better evaluation than {self._best:g} in {self.patience}")

    def state_dict(self) -> dict[str, Any]:
        """The best return, and how long it has stood."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self._best, self._waited = float(state["best"]), int(state["waited"])


class StopAfterWallTime(Callback):
    """Ends the run once it has trained for `seconds`, earlier parts of a resumed run included."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not (math.isfinite(seconds) and seconds > 0.0):
            raise ConfigError(f"seconds={seconds}: give a positive time")
        self.seconds = seconds
        self._clock = clock
        self._earlier = 0.0
        self._started_at = clock()

    def on_train_start(self, trainer: TrainerState) -> None:
        """Start the clock."""
        del trainer
        self._started_at = self._clock()

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Look at the clock."""
        del result
        if self._elapsed() >= self.seconds:
            trainer.request_stop(f"{self.seconds:g} s of wall time have passed")

    def _elapsed(self) -> float:
        return self._earlier + self._clock() - self._started_at

    def state_dict(self) -> dict[str, Any]:
        """The seconds used so far."""
        return {"elapsed": self._elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self._earlier = float(state["elapsed"])


@dataclass(frozen=True)
class StopRules:
    """What may end a run before its budget is used up; nothing does by default."""

    at_return: float | None = None
    """A mean return of an evaluation."""
    after_minutes: float | None = None
    """Of training."""
    patience: int | None = None
    """Evaluations in a row without a better one."""

    def callbacks(self) -> list[Callback]:
        """New callbacks that see to it."""
        callbacks: list[Callback] = []
        if self.at_return is not None:
            callbacks.append(StopAtReturn(self.at_return))
        if self.after_minutes is not None:
            callbacks.append(StopAfterWallTime(60.0 * self.after_minutes))
        if self.patience is not None:
            callbacks.append(StopWithoutImprovement(self.patience))
        return callbacks
