"""The protocol of trackers, which receive the metrics of a run in addition to `metrics.jsonl`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunContext

Metrics = Mapping[str, int | float]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is opened for."""

    context: RunContext
    config: TrainConfig
    resumed_at: int | None = None
    """Env step from which the run continues in its own directory; None for a new run."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and its final metrics."""

    status: str
    metrics: Metrics = field(default_factory=dict)


class Tracker(Protocol):
    """A receiver of everything that a run logs, in the order of env steps."""

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Log the metrics of an env step, measured at Unix time `at`."""

    def close(self, outcome: Outcome) -> None:
        """Write everything that is still pending, and the outcome of the run."""
