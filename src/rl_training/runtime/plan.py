"""The plan of a run: counts of what it will do, computed before it starts with the same rules as the loops."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rl_training.experiment.schedules import crosses

_CHUNK_SIZE = 2**20


@dataclass(frozen=True)
class TrainingPlan:
    """Counts of what a run will do. They are exact unless a callback, a signal, wall time or a KL limit intervenes."""

    env_steps: int
    gradient_steps: int
    evaluations: int
    checkpoints: int
    """The number of checkpoints, including the one before the first step."""
    memory_bytes: int
    """An estimate for experience, parameters and optimizer, without the envs and libraries."""
    details: Mapping[str, int | str]
    """Further counts of this kind of algorithm, by name."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive iterations that follow one rule, from env step `start` to `limit`; both are multiples of `grid`.

    An iteration ends at the first multiple of `grid` (the env steps of one vector step) that reaches the next multiple
    of `size`, or at `limit`. `size` is at least `grid`, so that every multiple of `size` ends an iteration of its own.
    """

    start: int
    limit: int
    size: int
    grid: int

    @property
    def num_full(self) -> int:
        """The number of iterations that end because of a multiple of `size`."""
        return self.limit // self.size - self.start // self.size

    @property
    def num_iterations(self) -> int:
        """The number of all iterations, including one that `limit` cuts short."""
        return self.num_full + (1 if self._last_full_end < self.limit else 0)

    @property
    def last_iteration(self) -> tuple[int, int]:
        """The env steps at which the last iteration begins and ends."""
        if self._last_full_end < self.limit:
            return self._last_full_end, self.limit
        return (self._end(self.limit // self.size - 1) if self.num_full > 1 else self.start), self.limit

    @property
    def _last_full_end(self) -> int:
        return self._end(self.limit // self.size) if self.num_full else self.start

    def _end(self, number: int) -> int:
        return round_up(number * self.size, self.grid)

    def count_crossings(self, interval: int) -> int:
        """Count the iterations that contain a multiple of `interval`."""
        if not self.num_full:
            return int(crosses(interval, self.start, self.limit))
        first = self.start // self.size + 1
        at_start = crosses(interval, self.start, self._end(first))
        at_limit = crosses(interval, self._last_full_end, self.limit)
        return at_start + self._count_between(interval, first, first + self.num_full - 1) + at_limit

    def _count_between(self, interval: int, first: int, last: int) -> int:
        """Count such iterations after number `first`, up to number `last`."""
        shortest = self.size // self.grid * self.grid
        longest = round_up(self.size, self.grid)
        if interval == 0:
            return 0
        if interval <= shortest:
            return last - first
        if interval >= longest:
            return self._end(last) // interval - self._end(first) // interval
        return self._count_by_period(interval, first, last)

    def _count_by_period(self, interval: int, first: int, last: int) -> int:
        """Count one period of iterations, some shorter and some longer than `interval`, and extrapolate."""
        period = math.lcm(self.size, self.grid, interval) // self.size
        periods, rest = divmod(last - first, period)
        in_rest = sum(self._crossing_parts(interval, first, first + rest))
        if not periods:
            return in_rest
        return in_rest + periods * sum(self._crossing_parts(interval, first, first + period))

    def _crossing_parts(self, interval: int, first: int, last: int) -> Iterator[int]:
        for begin in range(first, last, _CHUNK_SIZE):
            numbers = np.arange(begin, min(begin + _CHUNK_SIZE, last) + 1, dtype=np.int64)
            ends = -(-numbers * self.size // self.grid) * self.grid
            yield int(np.count_nonzero(np.diff(ends // interval)))


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def count_events(interval: int, stretches: Iterable[Stretch]) -> int:
    """Count how often an event happens that is due every `interval` env steps and always at the end."""
    parts = [stretch for stretch in stretches if stretch.start < stretch.limit]
    due_at_end = crosses(interval, *parts[-1].last_iteration)
    return sum(part.count_crossings(interval) for part in parts) + (0 if due_at_end else 1)
