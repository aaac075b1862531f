"""What the vector envs share, whether their envs live in this process or in others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.envs.episodes import Array, BoolArray, DoubleArray, EpisodeTracker, ResetResult
from rl_training.envs.restore import AnyEnv
from rl_training.errors import EnvironmentStepError

EnvFactory = Callable[[], AnyEnv]
StepResult = tuple[Any, DoubleArray, BoolArray, BoolArray, dict[str, Any]]


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


def batch_obs(space: Space[Any], observations: Sequence[Any], locate: Callable[[int], str]) -> Any:
    """The observations in fresh memory: what a caller keeps is never written again, neither by us nor by an env.

    One that does not fit its space is refused; `locate` describes where it came from, given its index.
    """
    try:
        if isinstance(space, Box):  # what Gymnasium's functions do for it, in a fraction of the time
            batch = np.array(observations)
            if batch.shape[1:] == space.shape and batch.dtype == space.dtype:
                return batch
            return np.stack(observations, out=np.empty((len(observations), *space.shape), space.dtype))
        fresh: Any = create_empty_array(space, len(observations), fn=np.empty)
        return concatenate(space, observations, fresh)
    except (TypeError, ValueError):
        for index, obs in enumerate(observations):
            problem = misfit(space, obs)
            if problem:
                raise EnvironmentStepError(f"{locate(index)}: {problem}") from None
        raise


def misfit(space: Space[Any], obs: Any) -> str | None:
    """How an observation misses its space's shape or type, if it does."""
    given = np.asarray(obs)
    if given.shape == space.shape and np.can_cast(given.dtype, space.dtype or given.dtype, "same_kind"):
        return None
    return (
        f"expected an observation of shape {space.shape} and type {space.dtype}, "
        f"got shape {given.shape} and type {given.dtype}"
    )
