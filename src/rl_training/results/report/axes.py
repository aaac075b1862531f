"""Axes of plots: where a value lies between the two ends, and which values are labelled."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.experiment.search_space import Choices, Range, Values

_TICKS = 6
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_LONGEST_LABEL = 12  # characters of the name of a choice
_LONG_STEP = 1_000_000  # env steps from here on are shortened, such as 1M
_SMALLEST = 1e-300  # the smallest number whose logarithm is taken


@dataclass(frozen=True)
class Axis:
    """One axis. Values are converted by `transform`, such as a logarithm, and then spread evenly."""

    label: str
    low: float
    """The converted value at the beginning of the axis."""
    high: float
    """The converted value at the end of the axis."""
    ticks: tuple[tuple[Any, str], ...]
    """Values with their labels, in order."""
    transform: Callable[[Any], float] = float
    slot: float = 0.0
    """The share of the axis that belongs to one value, if only some values exist; 0 otherwise."""

    def share(self, value: Any) -> float:
        """Return where a value lies: 0 at the beginning of the axis, 1 at its end, and never outside."""
        return min(max((self.transform(value) - self.low) / (self.high - self.low), 0.0), 1.0)


def linear_axis(label: str, low: float, high: float, *, room: float = 0.0, most: int = _TICKS) -> Axis:
    """Return an axis from `low` to `high`, widened at both ends by the share `room` of its length."""
    low, high = widen(low, high, room)
    return Axis(label, low, high, tuple((tick, compact(tick)) for tick in nice_ticks(low, high, most)))


def step_axis(label: str, steps: Sequence[int]) -> Axis:
    """Return a logarithmic axis of positive numbers of env steps, each of which is a tick."""
    ends = widen(math.log(steps[0]), math.log(steps[-1]), 0.05)
    ticks = [(step, f"{step:,}" if step < _LONG_STEP else compact(step)) for step in steps]
    return Axis(label, *ends, _thinned(ticks), _log)


def parameter_axis(name: str, values: Values, found: Sequence[Any]) -> Axis:
    """Return the axis of a searched parameter. It contains its range and all values that were found."""
    if isinstance(values, Choices):
        return _choice_axis(name, values, found)
    numbers = [float(number) for number in (*values.ends, *found)]
    transform = _TRANSFORMS[values.scale]
    low, high = widen(transform(min(numbers)), transform(max(numbers)), 0.05)
    slot = math.log(2.0) / (high - low) if values.scale == "powers_of_two" else 0.0
    return Axis(name, low, high, _range_ticks(values, min(numbers), max(numbers)), transform, slot)


def describe_values(values: Values) -> str:
    """Describe the values that a parameter may have, such as `0.97 to 0.9999, logarithmic in 1 - value`."""
    if isinstance(values, Choices):
        return " or ".join(map(choice_key, values.choices))
    low, high = map(parameter_text, values.ends)
    return f"{low} to {high}{_SCALE_NAMES[values.scale]}"


def parameter_text(value: Any) -> str:
    """Format a parameter with four digits, or with four digits of 1 - value if it is close to 1; None is a dash."""
    if isinstance(value, dict) and "start" in value:
        return f"{value.get('schedule')} from {value['start']} to {value.get('end')}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-" if value is None else choice_key(value)
    if isinstance(value, int):
        return f"{value:,}"
    if 0.9 < value < 1.0:
        return f"{value:.{3 - math.ceil(math.log10(1.0 - value))}f}".rstrip("0")
    return f"{value:.4g}"


def choice_key(value: Any) -> str:
    """Return the text that stands for a choice."""
    return value if isinstance(value, str) else json.dumps(value)


def _choice_axis(name: str, values: Choices, found: Sequence[Any]) -> Axis:
    keys = list(dict.fromkeys(choice_key(value) for value in (*values.choices, *found)))
    places = {key: index + 0.5 for index, key in enumerate(keys)}
    labels = [(key, key if len(key) <= _LONGEST_LABEL else key[: _LONGEST_LABEL - 1] + "…") for key in keys]
    return Axis(
        name, 0.0, float(len(keys)), _thinned(labels), lambda value: places[choice_key(value)], slot=1.0 / len(keys)
    )


def _range_ticks(values: Range, low: float, high: float) -> tuple[tuple[float, str], ...]:
    if values.scale == "linear":
        return tuple((tick, compact(tick)) for tick in nice_ticks(*widen(low, high, 0.0), 4))
    if values.scale == "powers_of_two":
        powers = range(math.ceil(_log(low) / math.log(2.0) - 1e-9), math.floor(_log(high) / math.log(2.0) + 1e-9) + 1)
        return _thinned([(2.0**power, f"{2**power:,}" if power >= 0 else f"{2.0**power:g}") for power in powers])
    if values.scale == "log":
        return _thinned([(tick, compact(tick)) for tick in _log_ticks(low, high)])
    distances = _log_ticks(1.0 - high, 1.0 - low)
    return _thinned([(1.0 - tick, f"{1.0 - tick:.10g}") for tick in reversed(distances)])


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten in a range, with 2 and 5 times them if there are too few."""
    low, high = max(low, _SMALLEST), max(high, _SMALLEST)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0,), (1.0, 2.0, 5.0)):
        ticks = [float(f"{factor:g}e{power}") for power in powers for factor in factors]
        inside = [tick for tick in ticks if low * (1.0 - 1e-9) <= tick <= high * (1.0 + 1e-9)]
        if len(inside) >= 3:
            break
    return inside


def _thinned(ticks: Sequence[tuple[Any, str]]) -> tuple[tuple[Any, str], ...]:
    """Return every n-th tick, so that the labels do not touch."""
    return tuple(ticks[:: math.ceil(len(ticks) / _TICKS) or 1])


def _log(value: float) -> float:
    return math.log(max(float(value), _SMALLEST))


def _distance_to_one(value: float) -> float:
    return -_log(1.0 - float(value))


_TRANSFORMS: dict[str, Callable[[Any], float]] = {
    "linear": float,
    "log": _log,
    "powers_of_two": _log,
    "one_minus_log": _distance_to_one,
}
_SCALE_NAMES = {
    "linear": "",
    "log": ", logarithmic",
    "powers_of_two": ", powers of two",
    "one_minus_log": ", logarithmic in 1 - value",
}


def nice_ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return up to `most` + 1 round numbers from `low` to `high`: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def compact(value: float) -> str:
    """Format a number for an axis, such as 20k, 1.5M, -200, 0.25 or 1e-05."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def widen(low: float, high: float, share: float) -> tuple[float, float]:
    """Widen the range, so that points at its ends are visible and the ends differ."""
    room = share * (high - low) if high > low else max(abs(high), 1.0) * 0.1
    return low - room, high + room
