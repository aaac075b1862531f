"""Where the time of a run goes: the seconds spent collecting, updating and evaluating, kept when a run is resumed."""

from time import perf_counter
from typing import Literal

from rl_training.runtime.types import MetricDict

Part = Literal["collect", "update", "evaluate"]

PARTS: tuple[Part, ...] = ("collect", "update", "evaluate")


class TimeSplit:
    """Adds up seconds; cheap enough for a loop that iterates at every env step."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)

    def add(self, part: Part, since: float) -> None:
        """Count the time from `since`, a value of `perf_counter`, until now."""
        self._seconds[part] += perf_counter() - since

    def metrics(self) -> MetricDict:
        """All seconds so far, by the names under which they are logged."""
        return {f"time/{part}_seconds": round(seconds, 3) for part, seconds in self._seconds.items()}

    def go_on_from(self, metrics: MetricDict) -> None:
        """Count on from logged metrics; what they lack begins at 0."""
        self._seconds = {part: float(metrics.get(f"time/{part}_seconds", 0.0)) for part in PARTS}
