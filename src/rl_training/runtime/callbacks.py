"""Callbacks: objects with five methods that receive the five events of a run."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rl_training.algorithms.base import UpdateResult
from rl_training.errors import ConfigError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metrics import RETURN, describe_missing, logged_name, result_name
from rl_training.experiment.validation import suggest
from rl_training.plugins import find_argument_problem, import_object, is_object_path, split_entry
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
        """Called when the run directory exists, before anything is collected; also when a run is resumed."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Called when new experience is in the buffer."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Called after an update of the learner."""

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Called after an evaluation."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Called when the run has ended for any reason and its last checkpoint is written."""


@runtime_checkable
class Stateful(Protocol):
    """A callback whose state is saved in checkpoints, as tensors and plain values."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the callback."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""


class CallbackList(Callback):
    """Passes every event to several callbacks, in order."""

    def __init__(self, callbacks: Iterable[Listener] | None = None) -> None:
        self.callbacks = list(callbacks or ())
        for callback in self.callbacks:
            if isinstance(callback, type):
                raise ConfigError(f"callback {callback.__name__} is a class: give an object, {callback.__name__}(...)")
            missing = [event for event in EVENTS if not callable(getattr(callback, event, None))]
            if missing:
                raise ConfigError(f"callback {type(callback).__name__} has no {', '.join(missing)}")

    def on_train_start(self, trainer: TrainerState) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            callback.on_train_start(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            callback.on_collect_end(trainer, result)

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            callback.on_update_end(trainer, result)

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            callback.on_eval_end(trainer, metrics)

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Call every callback, even if one raises; raise the first error at the end."""
        errors: list[Exception] = []
        for callback in self.callbacks:
            try:
                callback.on_train_end(trainer, result)
            except Exception as error:  # the other callbacks must still be called
                errors.append(error)
        for further in errors[1:]:
            warnings.warn(f"another callback failed in on_train_end: {further!r}", stacklevel=2)
        if errors:
            raise errors[0]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of the callbacks that have one, in order."""
        return [
            {"name": type(callback).__qualname__, "state": callback.state_dict()}
            for callback in self.callbacks
            if isinstance(callback, Stateful)
        ]

    def find_missing(self, saved: list[dict[str, Any]]) -> list[str]:
        """Return the names of the callbacks that have a saved state and are not in this list."""
        waiting = [entry["name"] for entry in saved]
        for callback in self.callbacks:
            if type(callback).__qualname__ in waiting:
                waiting.remove(type(callback).__qualname__)
        return waiting

    def load_state_dict(self, saved: list[dict[str, Any]]) -> None:
        """Load for each callback the saved state of its class; a callback without a saved state starts anew."""
        waiting = list(saved)
        for callback in self.callbacks:
            name = type(callback).__qualname__
            found = next((entry for entry in waiting if entry["name"] == name), None)
            if found is not None and isinstance(callback, Stateful):
                waiting.remove(found)
                callback.load_state_dict(found["state"])


class StopAt(Callback):
    """Ends the run once a metric of an evaluation, such as `success_rate` or `return`, reaches `threshold`."""

    def __init__(self, metric: str, threshold: float) -> None:
        if not math.isfinite(threshold):
            raise ConfigError(f"threshold={threshold}: give a finite value")
        if metric.startswith(("rollout/", "train/", "time/")):
            raise ConfigError(f"stop at {metric}: only evaluations stop a run; give a metric such as eval/success_rate")
        self.metric, self.threshold = metric, threshold
        self._checked = False

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Compare the metric with the threshold; warn if the first evaluation does not have it."""
        value = metrics.get(result_name(self.metric))
        if value is None and not self._checked:
            warnings.warn(f"the run cannot stop early: {describe_missing(self.metric, metrics)}", stacklevel=2)
        self._checked = True
        if value is not None and value >= self.threshold:
            named = "" if self.metric == RETURN else f"{logged_name(self.metric)} "
            trainer.request_stop(f"evaluation reached {named}{value:g}")


class StopAtReturn(StopAt):
    """Ends the run once an evaluation's mean return reaches `threshold`."""

    def __init__(self, threshold: float) -> None:
        super().__init__(RETURN, threshold)


class StopWithoutImprovement(Callback):
    """Ends the run once `patience` evaluations in a row have not raised the best one by more than `margin`.

    The config's `best_metric` says which evaluation is the best: by default, the one with the highest mean return.
    """

    def __init__(self, patience: int, margin: float = 0.0) -> None:
        if patience < 1:
            raise ConfigError(f"patience={patience}: at least 1 evaluation is needed")
        self.patience, self.margin = patience, margin
        self._best = -math.inf
        self._waited = 0

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Compare the evaluation with the best one so far."""
        value = metrics.get(result_name(trainer.config.best_metric), -math.inf)
        if value > self._best + self.margin:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            trainer.request_stop(f"no evaluation better than {self._best:g} in the last {self.patience}")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the number of evaluations since then."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._best, self._waited = float(state["best"]), int(state["waited"])


class StopAfterWallTime(Callback):
    """Ends the run once it has trained for `seconds`, including the time before a resume."""

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
        """Check the clock."""
        del result
        if self._elapsed() >= self.seconds:
            trainer.request_stop(f"{self.seconds:g} s of wall time have passed")

    def _elapsed(self) -> float:
        return self._earlier + self._clock() - self._started_at

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds used so far."""
        return {"elapsed": self._elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._earlier = float(state["elapsed"])


class StopAtStep(Callback):
    """Ends the run at an env step; a resume to a later step continues as if it had never ended."""

    def __init__(self, step: int) -> None:
        if step < 1:
            raise ConfigError(f"step={step}: give a step of at least 1")
        self.step = step

    def on_train_start(self, trainer: TrainerState) -> None:
        """Stop if the step is already reached."""
        self._check_step(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Stop after this iteration if the step is reached."""
        del result
        self._check_step(trainer)

    def _check_step(self, trainer: TrainerState) -> None:
        if trainer.global_step >= self.step:
            trainer.request_stop(f"step {self.step} is reached")


_BUILT_IN: dict[str, type[Callback]] = {
    kind.__name__: kind for kind in (StopAtReturn, StopAt, StopWithoutImprovement, StopAfterWallTime, StopAtStep)
}


def make_callbacks(config: TrainConfig) -> list[Listener]:
    """Make the callbacks that a config names; refuse unknown names and wrong arguments."""
    return [_make_callback(*split_entry(entry)) for entry in config.callbacks]


def _make_callback(name: str, kwargs: dict[str, Any]) -> Listener:
    make = import_object(name, "callbacks") if is_object_path(name) else _BUILT_IN.get(name)
    if make is None:
        remedy = suggest(name, _BUILT_IN, f"known: {', '.join(_BUILT_IN)}, and package.module:Name")
        raise ConfigError(f"callbacks: unknown callback '{name}'; {remedy}")
    if not callable(make):
        raise ConfigError(f"callbacks: {name} is a {type(make).__name__}: give a class or a function")
    problem = find_argument_problem(make, (), kwargs)
    if problem:
        raise ConfigError(f"callbacks: {name}: {problem}")
    try:
        callback: Listener = make(**kwargs)
        return CallbackList([callback]).callbacks[0]
    except Exception as error:  # a constructor may raise any error
        raise ConfigError(f"callbacks: {name} with {kwargs}: {describe_error(error)}") from error


@dataclass(frozen=True)
class StopRules:
    """Conditions that end a run before its budget is used up; by default there are none."""

    at_return: float | None = None
    """The mean return of an evaluation at which the run ends."""
    after_minutes: float | None = None
    """The training time after which the run ends."""
    patience: int | None = None
    """The number of evaluations in a row without improvement after which the run ends."""
    at: Mapping[str, float] = field(default_factory=dict)
    """Other metrics of an evaluation, and the values at which the run ends."""
    at_step: int | None = None
    """The env step at which the run ends."""

    def callbacks(self) -> list[Callback]:
        """Return new callbacks that apply these conditions."""
        callbacks: list[Callback] = [StopAt(metric, value) for metric, value in self.at.items()]
        if self.at_return is not None:
            callbacks.append(StopAtReturn(self.at_return))
        if self.after_minutes is not None:
            callbacks.append(StopAfterWallTime(60.0 * self.after_minutes))
        if self.patience is not None:
            callbacks.append(StopWithoutImprovement(self.patience))
        if self.at_step is not None:
            callbacks.append(StopAtStep(self.at_step))
        return callbacks
