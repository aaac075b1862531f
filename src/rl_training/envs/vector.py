"""Vector envs with autoreset off, an explicit seed per episode, and statistics for all envs at once.

A `reset` without a seed starts the next episode of every env that it concerns, with that episode's own seed; so
trajectories do not depend on the kind of vector env.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.envs.common import EnvFactory, Restoration, StepResult, finish_restore, finish_step, misfit
from rl_training.envs.episodes import BoolArray, EpisodeTracker, ResetResult, Seeds
from rl_training.envs.native import NativeEpisodeVectorEnv
from rl_training.envs.restore import AnyEnv, capture_state, restore_env
from rl_training.envs.workers import AsyncEpisodeVectorEnv
from rl_training.errors import EnvironmentStepError, told

__all__ = ["AnyEnv", "EpisodeVectorEnv", "Restoration", "SyncEpisodeVectorEnv"]


class SyncEpisodeVectorEnv(SyncVectorEnv):
    """Steps every env in this process."""

    def __init__(self, env_fns: Sequence[EnvFactory], run_seed: int) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        self.tracker = EpisodeTracker(self.num_envs, run_seed)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, mask: BoolArray, seeds: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        infos: dict[str, Any] = {}
        for index in np.flatnonzero(mask).tolist():
            try:
                self._env_obs[index], info = self.envs[index].reset(seed=seeds[index], options=options)
            except Exception as error:
                raise EnvironmentStepError(
                    f"{self.tracker.locate_reset(index, seeds[index])}: {told(error)}"
                ) from error
            infos = self._add_info(infos, info, index)
        return self._batch(self._env_obs, lambda index: self.tracker.locate_reset(index, seeds[index])), infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        taken = self.tracker.begin_step(actions)
        observations = []
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        truncated = np.empty(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            try:
                obs, rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            except Exception as error:
                raise EnvironmentStepError(f"{self.tracker.locate(index, taken[index])}: {told(error)}") from error
            observations.append(obs)
            if info:
                infos = self._add_info(infos, info, index)
        batch = self._batch(observations, lambda index: self.tracker.locate(index, taken[index]))
        result = finish_step(self.tracker, taken, (batch, rewards, terminated, truncated, infos))
        self._env_obs = observations
        return result

    def _batch(self, observations: Sequence[Any], locate: Callable[[int], str]) -> Any:
        """The observations in fresh memory: what a caller keeps is never written again, neither by us nor by an env."""
        space = self.single_observation_space
        try:
            if isinstance(space, Box):  # what Gymnasium's functions do for it, in a fraction of the time
                batch = np.array(observations)
                if batch.shape[1:] == space.shape and batch.dtype == space.dtype:
                    return batch
                return np.stack(observations, out=np.empty((self.num_envs, *space.shape), space.dtype))
            fresh: Any = create_empty_array(space, self.num_envs, fn=np.empty)
            return concatenate(space, observations, fresh)
        except (TypeError, ValueError):
            for index, obs in enumerate(observations):
                problem = misfit(space, obs)
                if problem:
                    raise EnvironmentStepError(f"{locate(index)}: {problem}") from None
            raise

    def state_dict(self) -> dict[str, Any]:
        """What brings every env back to where it is."""
        states = None if self.tracker.out_of_step else [capture_state(env) for env in self.envs]
        return self.tracker.state_dict(states)

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Bring every env back to where `state` was taken, when it showed `last_obs` [env, ...]."""
        self.tracker.load_state_dict(state)
        failures: dict[int, str] = {}
        for index in np.flatnonzero(~self.tracker.ended).tolist():
            episode = self.tracker.running(index, state["states"][index])
            restored = restore_env(self.envs[index], episode, last_obs[index])
            self._env_obs[index] = restored.obs
            if restored.failure:
                failures[index] = restored.failure
        return finish_restore(
            self.tracker, failures, self.reset, lambda: self._batch(self._env_obs, self.tracker.locate)
        )


EpisodeVectorEnv = SyncEpisodeVectorEnv | AsyncEpisodeVectorEnv | NativeEpisodeVectorEnv
