"""What a run will do, counted before it starts with the rules that the loops follow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from rl_training.experiment.schedules import crosses


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


def count_events(interval: int, boundaries: Iterable[int]) -> int:
    """How often something happens that is due every `interval` env steps, and always at the end."""
    steps = [0, *boundaries]
    due = [crosses(interval, before, after) for before, after in pairwise(steps)]
    return sum(due) + (0 if due[-1] else 1)


def count_regular_events(interval: int, size: int, iterations: int) -> int:
    """The same for iterations of `size` env steps each, without walking through them."""
    if interval == 0:
        return 1
    if size >= interval:
        return iterations
    total = size * iterations
    return total // interval + (0 if crosses(interval, total - size, total) else 1)
