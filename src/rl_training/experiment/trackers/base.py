"""What a tracker is: one more place that gets the metrics of a run, beside `metrics.jsonl`, which is the truth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunContext

Metrics = Mapping[str, int | float]


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers know it."""

    context: RunContext
    config: TrainConfig
    resumed_at: int | None = None
    """The env step from which it goes on in its own directory, if it does."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and its final numbers."""

    status: str
    metrics: Metrics = field(default_factory=dict)


class Tracker(Protocol):
    """Gets everything that is logged, in order of env steps."""

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Take what was measured at an env step, at a Unix time."""

    def close(self, outcome: Outcome) -> None:
        """Write what is left, and how the run ended."""


def finite(metrics: Metrics) -> dict[str, int | float | None]:
    """The metrics for formats that have no word for infinity: what is no finite number is none."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
