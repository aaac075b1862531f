"""What the vector envs share, whether their envs live in this process or in others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.envs.episodes import Array, BoolArray, EpisodeTracker, FloatArray, ResetResult
from rl_training.envs.restore import AnyEnv

EnvFactory = Callable[[], AnyEnv]
StepResult = tuple[Any, FloatArray, BoolArray, BoolArray, dict[str, Any]]


@dataclass(frozen=True)
class Restoration:
    """What the envs show after a restore; those in `failures` (by index: why) have begun a new episode."""

    obs: Any
    failures: dict[int, str] = field(default_factory=dict)


def finish_step(tracker: EpisodeTracker, actions: Array, result: StepResult) -> StepResult:
    """Check and count a step that all envs have taken; its infos tell of the episodes that ended with it."""
    obs, rewards, terminated, truncated, infos = result
    tracker.check_numbers(obs, actions, rewards)
    infos.update(tracker.record(actions, rewards, terminated | truncated))
    if tracker.recorder.recording:
        tracker.recorder.record_step(actions, obs, rewards, terminated, truncated)
    return result


def finish_restore(
    tracker: EpisodeTracker, failures: dict[int, str], reset: Callable[..., ResetResult], shown: Callable[[], Any]
) -> Restoration:
    """Begin the next episode of the envs that had ended or could not be brought back."""
    restarted = tracker.ended.copy()
    restarted[list(failures)] = True
    obs = reset(options={"reset_mask": restarted})[0] if restarted.any() else shown()
    tracker.out_of_step = False
    return Restoration(obs, failures)


def misfit(space: Space[Any], obs: Any) -> str | None:
    """How an observation misses its space's shape or type, if it does."""
    given = np.asarray(obs)
    if given.shape == space.shape and np.can_cast(given.dtype, space.dtype or given.dtype, "same_kind"):
        return None
    return (
        f"expected an observation of shape {space.shape} and type {space.dtype}, "
        f"got shape {given.shape} and type {given.dtype}"
    )
