"""Schedules and intervals, as pure functions of the env step and the planned budget."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, model_validator

from rl_training.experiment.validation import Float, StrictModel


class Schedule(StrictModel):
    """A value over time: `constant` keeps `start`, `linear` goes from `start` to `end` over the planned budget."""

    schedule: Literal["constant", "linear"] = "constant"
    start: Float
    end: Float = 0.0

    def __str__(self) -> str:
        return f"{self.start:g}" if self.schedule == "constant" else f"linear from {self.start:g} to {self.end:g}"

    @model_validator(mode="after")
    def _end_needs_linear(self) -> "Schedule":
        if self.schedule == "constant" and "end" in self.model_fields_set:
            raise ValueError("'end' needs schedule: linear")
        return self

    def value(self, step: int, total_steps: int) -> float:
        """Return the value at env step `step` of a run planned for `total_steps`."""
        if self.schedule == "constant":
            return self.start
        progress = min(max(step / total_steps, 0.0), 1.0)
        return self.start + progress * (self.end - self.start)


def crosses(interval: int, before: int, after: int) -> bool:
    """Return whether a multiple of `interval` lies in (before, after]; never for an interval of 0."""
    return interval > 0 and after // interval > before // interval


def _from_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Schedule(start=value)
    if isinstance(value, (dict, Schedule)):
        return value
    raise ValueError("give a number, or {schedule: linear, start: 3e-4, end: 0.0}")


def _to_number(schedule: Schedule) -> float | dict[str, Any]:
    if schedule.schedule == "constant":
        return schedule.start
    return schedule.model_dump()


def _positive(schedule: Schedule) -> Schedule:
    if schedule.start <= 0.0 or schedule.end < 0.0:
        raise ValueError("start must be above 0, end must not be negative")
    return schedule


# In a config, a plain number means a constant schedule; a constant schedule is written back as a number.
PositiveSchedule = Annotated[
    Schedule, BeforeValidator(_from_number), AfterValidator(_positive), PlainSerializer(_to_number)
]
