"""Search spaces: the parameters that a study varies, and the values that each may take.

A space is a YAML map from parameters to ranges or lists of values. It is checked before a study starts, as strictly as
a config.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rl_training.errors import ConfigError, Problem
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.sources import Layer, read_yaml
from rl_training.experiment.validation import StrictModel, config_error, nearest_name, to_plain, validate_section

SPACES_DIR = Path(__file__).parents[1] / "search_spaces"

Scale = Literal["linear", "log", "one_minus_log", "powers_of_two"]
SEARCHED_FIELDS = ("num_envs", "frame_stack", "terminal_on_life_loss")
"""The config fields that a study may vary besides the parameters of the algorithm."""
FIRST_RUNG = "first_rung"
_OPERATORS = re.compile(r"[*/]")

Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Range(StrictModel):
    """Numbers from `low` to `high`, both included."""

    low: Number
    """The smallest value. If both ends are whole numbers, all values are."""
    high: Number
    """The largest value."""
    scale: Scale = "linear"
    """How values are spread: evenly; evenly in their logarithm, or in that of 1 - value; or only powers of two."""
    at_most: str | None = None
    """The upper limit of a value: other parameters and `first_rung`, joined by `*` and `/`.

    For example, `num_steps * num_envs`, or `first_rung / num_envs`, where `first_rung` stands for the env steps after
    which trials are compared for the first time.
    """

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def limiting_names(self) -> list[str]:
        """The names in `at_most`."""
        return [] if self.at_most is None else [name.strip() for name in _OPERATORS.split(self.at_most)]

    def lower(self, value: Any, known: Mapping[str, Any]) -> Any:
        """Return a value, or the largest one that `at_most` allows; `known` maps the names in `at_most` to numbers."""
        if self.at_most is None:
            return value
        first, *others = [known[name] for name in self.limiting_names]
        limit = float(first)
        for operator, other in zip(_OPERATORS.findall(self.at_most), others, strict=True):
            limit = limit * other if operator == "*" else limit / other
        if self.scale == "powers_of_two":
            limit = 2 ** int(math.log2(max(limit, 1)))
        elif self.is_whole:
            limit = max(int(limit), 1)
        return min(value, limit)

    @property
    def ends(self) -> list[Any]:
        """The smallest and the largest value."""
        return [self.low, self.high]

    def find_problem(self) -> str | None:
        """Return what is wrong with the range; none if it is valid."""
        if self.low >= self.high:
            return f"low={self.low} is not below high={self.high}: the range is empty"
        if self.scale == "log" and self.low <= 0:
            return f"low={self.low}: a log scale needs values above 0"
        if self.scale == "one_minus_log" and (self.is_whole or not 0 <= self.low < self.high < 1):
            return f"low={self.low}, high={self.high}: the scale one_minus_log needs numbers from 0 to below 1"
        if self.scale == "powers_of_two" and not all(_is_power_of_two(end) for end in self.ends):
            return f"low={self.low}, high={self.high}: the scale powers_of_two needs powers of two, such as 32 and 1024"
        return None


class Choices(StrictModel):
    """A list of values without an order."""

    choices: Annotated[tuple[Any, ...], Field(min_length=2)]
    """The values."""

    @property
    def ends(self) -> list[Any]:
        """All values."""
        return list(self.choices)

    def find_problem(self) -> str | None:
        """Return what is wrong with the list; none if it is valid."""
        values = [to_plain(value) for value in self.choices]
        twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
        return None if twice is None else f"{twice!r} is listed twice"


Values = Range | Choices


@dataclass(frozen=True)
class SearchSpace:
    """The values of every parameter that a study varies, by name."""

    parameters: dict[str, Values]

    def plain(self) -> dict[str, Any]:
        """Return the space as plain values, as its YAML file has them."""
        return {name: _plain_values(values) for name, values in self.parameters.items()}

    def limit(self, config: TrainConfig, drawn: Mapping[str, Any], first_rung: int) -> dict[str, Any]:
        """Return the drawn values, with those above their `at_most` lowered to it."""
        plain = plain_config(config)
        known = {**plain["algo_kwargs"], **plain, **drawn, FIRST_RUNG: first_rung}
        ranges = {name: values for name, values in self.parameters.items() if isinstance(values, Range)}
        for name, values in ranges.items():
            unusable = [each for each in values.limiting_names if not _is_positive(known[each])]
            if unusable:
                text = f"{name}: at_most: {unusable[0]}={known[unusable[0]]!r} is not a number above 0"
                raise config_error([Problem((name,), text)])
        for _ in ranges:  # repeatedly, because a limit may depend on a value that another limit lowers
            known |= {name: values.lower(drawn[name], known) for name, values in ranges.items()}
        return {name: known[name] for name in drawn}

    def apply(self, config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
        """Return the config with these values in place of its own.

        A number for a parameter that has a schedule scales the schedule.
        """
        plain = plain_config(config)
        for name, value in values.items():
            section = plain if name in TrainConfig.model_fields else plain["algo_kwargs"]
            section[name] = _scaled(section.get(name), value)
        return TrainConfig(**plain)


def _scaled(before: Any, value: Any) -> Any:
    """Return the value, or the schedule that it scales."""
    if not isinstance(before, dict) or not before.get("start") or not isinstance(value, (int, float)):
        return value
    return {**before, "start": value, "end": before["end"] * value / before["start"]}


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_power_of_two(value: float) -> bool:
    return isinstance(value, int) and value >= 1 and value & (value - 1) == 0


def _plain_values(values: Values) -> Any:
    return list(values.choices) if isinstance(values, Choices) else values.model_dump(exclude_defaults=True)


def load_space(given: Path | Mapping[str, Any] | None, algo: str) -> Layer:
    """Return a space as a layer: from a file, from a map, or the shipped one of an algorithm."""
    if isinstance(given, Path):
        return read_yaml(given)
    if given is not None:
        return Layer("space", dict(given))
    path = SPACES_DIR / f"{algo}.yaml"
    if not path.exists():
        raise ConfigError(f"there is no shipped search space for {algo}: give a file with --space")
    return read_yaml(path, "preset")


def read_space(layer: Layer, config: TrainConfig) -> SearchSpace:
    """Check a space for a config whose `algo_kwargs` contain every parameter. An error lists all problems."""
    if not layer.values:
        raise ConfigError(f"{layer.file or 'space'}: the search space has no parameter")
    found = [(name, _read_parameter(str(name), given, config)) for name, given in layer.values.items()]
    problems = [problem for _, values in found if isinstance(values, list) for problem in values]
    if problems:
        raise config_error(problems)
    return SearchSpace({str(name): values for name, values in found if not isinstance(values, list)})


def _read_parameter(name: str, given: Any, config: TrainConfig) -> Values | list[Problem]:
    known = [*SEARCHED_FIELDS, *config.algo_kwargs]
    if name not in known:
        return [Problem((name,), _describe_unknown(name, known))]
    try:
        values = _parse(name, given)
    except ConfigError as error:
        return list(error.problems)
    names = values.limiting_names if isinstance(values, Range) else []
    missing = [each for each in names if each not in (*known, FIRST_RUNG)]
    why = f"at_most: {_describe_unknown(missing[0], known)}" if missing else values.find_problem()
    return values if why is None else [Problem((name,), f"{name}: {why}")]


def _describe_unknown(name: str, known: list[str]) -> str:
    nearest = nearest_name(name, known)
    if nearest:
        return f"{name}: unknown parameter; did you mean '{nearest}'?"
    reason = "cannot be searched" if name in TrainConfig.model_fields else "unknown parameter"
    return f"{name}: {reason}; a study can vary {', '.join(sorted(known))}"


def _parse(name: str, given: Any) -> Values:
    if isinstance(given, list):
        return validate_section(Choices, {"choices": given}, name)
    if not isinstance(given, dict):
        text = f"{name}={given!r}: give a list of values, or a range such as {{low: 1.0e-5, high: 1.0e-3, scale: log}}"
        raise config_error([Problem((name,), text)])
    return validate_section(Range, given, name)
