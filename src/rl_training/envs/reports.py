"""The numbers that environments report about an episode, in the info of its last step."""

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from rl_training.experiment.metrics import SUCCESS_RATE, TAKEN_NAMES
from rl_training.packing import MASK_NAME

MAX_NUMBERS = 50  # names per episode, and in one line of the log
MAX_NAME_LENGTH = 60

_GYMNASIUM_KEYS = ("episode", "TimeLimit.truncated", MASK_NAME)
_RENAMED = {"is_success": SUCCESS_RATE}
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_UNSAFE = re.compile(r"[^\w.-]")
_SHOWN_KEYS = 3

Info = Mapping[str, Any]


class InfoReader:
    """Reads the numbers in the info of an episode's last step, and warns once if some are left out."""

    def __init__(self) -> None:
        self._warned = False

    def read(self, info: Info) -> dict[str, float]:
        """Return the finite numbers under names that can be logged; the mean of `is_success` is `success_rate`."""
        numbers: dict[str, float] = {}
        left_out: list[str] = []
        for key, value in info.items():
            number = _finite_number(value)
            if number is None or not isinstance(key, str) or key in _GYMNASIUM_KEYS or key.startswith("_"):
                continue
            name = _RENAMED.get(key) or _UNSAFE.sub("_", key)
            fits = len(numbers) < MAX_NUMBERS and 0 < len(name) <= MAX_NAME_LENGTH
            if fits and name not in numbers and name not in TAKEN_NAMES:
                numbers[name] = number
            else:
                left_out.append(key)
        if left_out and not self._warned:
            self._warned = True
            _warn_of(left_out)
        return numbers


def _finite_number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, _NUMBERS) else math.nan
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if math.isfinite(number) else None


def _warn_of(keys: Sequence[str]) -> None:
    shown = ", ".join(repr(key[:MAX_NAME_LENGTH]) for key in keys[:_SHOWN_KEYS])
    more = f" and {len(keys) - _SHOWN_KEYS:,} more" if len(keys) > _SHOWN_KEYS else ""
    warnings.warn(
        f"not logged: {shown}{more} of the info at an episode's end; the first {MAX_NUMBERS} numbers are, if their "
        f"names have at most {MAX_NAME_LENGTH} characters and are no other metric's",
        stacklevel=1,  # always this line, so that training and evaluation together show it once
    )


def info_of(infos: Info, index: int, num_envs: int) -> dict[str, Any]:
    """Return one env's part of the infos of a batched env.

    They are arrays [env], as in a `gymnasium.vector.VectorEnv`; an array `_NAME` says which envs gave `NAME`.
    """
    batched = {
        key: values
        for key, values in infos.items()
        if isinstance(values, np.ndarray) and values.shape[:1] == (num_envs,)
    }
    return {
        key: values[index] for key, values in batched.items() if f"_{key}" not in batched or batched[f"_{key}"][index]
    }


def average_numbers(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the episodes that reported it; keep the first `MAX_NUMBERS` names."""
    found: dict[str, list[float]] = {}
    for info in infos:
        for name, number in info.items():
            found.setdefault(name, []).append(number)
    return {name: sum(numbers) / len(numbers) for name, numbers in islice(found.items(), MAX_NUMBERS)}
