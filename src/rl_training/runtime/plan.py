"""What a run will do, counted before it starts with the rules that the loops follow."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rl_training.experiment.schedules import crosses

_WALKED_AT_ONCE = 2**20


@dataclass(frozen=True)
class TrainingPlan:
    """Exact counts, but for what a callback, a signal, wall time or a KL early stop may change."""

    env_steps: int
    gradient_steps: int
    evaluations: int
    checkpoints: int
    """The one before the first step included."""
    memory_bytes: int
    """Estimated for experience, parameters and optimizer; the envs and libraries come on top."""
    details: Mapping[str, int | str]
    """What only this kind of algorithm has, by name."""


@dataclass(frozen=True)
class Stretch:
    """Iterations of one rule, from env step `start` to `limit`, which are multiples of `grid`.

    An iteration ends at the first multiple of `grid` (the env steps of one vector step) that reaches the next multiple
    of `size`, or at `limit`. `size` is at least `grid`, so that every multiple of `size` ends an iteration of its own.
    """

    start: int
    limit: int
    size: int
    grid: int

    @property
    def num_full(self) -> int:
        """Iterations that end because of a multiple of `size`."""
        return self.limit // self.size - self.start // self.size

    @property
    def num_iterations(self) -> int:
        """All iterations, the one that `limit` cuts short included."""
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
        """How many iterations contain a multiple of `interval`."""
        if not self.num_full:
            return int(crosses(interval, self.start, self.limit))
        first = self.start // self.size + 1
        at_start = crosses(interval, self.start, self._end(first))
        at_limit = crosses(interval, self._last_full_end, self.limit)
        return at_start + self._count_between(interval, first, first + self.num_full - 1) + at_limit

    def _count_between(self, interval: int, first: int, last: int) -> int:
        """The same for the iterations after the one numbered `first`, up to the one numbered `last`."""
        shortest = self.size // self.grid * self.grid
        longest = round_up(self.size, self.grid)
        if interval == 0:
            return 0
        if interval <= shortest:
            return last - first
        if interval >= longest:
            return self._end(last) // interval - self._end(first) // interval
        return self._walk(interval, first, last)

    def _walk(self, interval: int, first: int, last: int) -> int:
        """Count one by one where iterations are now shorter and now longer than `interval`, but only one period."""
        period = math.lcm(self.size, self.grid, interval) // self.size
        periods, rest = divmod(last - first, period)
        in_rest = sum(self._crossing_parts(interval, first, first + rest))
        if not periods:
            return in_rest
        return in_rest + periods * sum(self._crossing_parts(interval, first, first + period))

    def _crossing_parts(self, interval: int, first: int, last: int) -> Iterator[int]:
        for begin in range(first, last, _WALKED_AT_ONCE):
            numbers = np.arange(begin, min(begin + _WALKED_AT_ONCE, last) + 1, dtype=np.int64)
            ends = -(-numbers * self.size // self.grid) * self.grid
            yield int(np.count_nonzero(np.diff(ends // interval)))


def round_up(number: int, step: int) -> int:
    """The first multiple of `step` that is not below `number`."""
    return -(-number // step) * step


def count_events(interval: int, stretches: Iterable[Stretch]) -> int:
    """How often something happens that is due every `interval` env steps, and always at the end."""
    parts = [stretch for stretch in stretches if stretch.start < stretch.limit]
    due_at_end = crosses(interval, *parts[-1].last_iteration)
    return sum(part.count_crossings(interval) for part in parts) + (0 if due_at_end else 1)
