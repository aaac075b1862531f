"""Gymnasium's vector envs with autoreset off, an explicit seed per episode, and statistics for all envs at once.

A `reset` without a seed starts the next episode of every env that it concerns, with that episode's own seed; so
trajectories do not depend on the kind of vector env.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.envs.episodes import BoolArray, EpisodeTracker, FloatArray, ResetResult, Seeds
from rl_training.envs.restore import capture_state, restore_env
from rl_training.errors import EnvironmentStepError

AnyEnv = Env[Any, Any]
EnvFactory = Callable[[], AnyEnv]
StepResult = tuple[Any, FloatArray, BoolArray, BoolArray, dict[str, Any]]


@dataclass(frozen=True)
class Restoration:
    """What the envs show after a restore; those in `failures` (by index: why) have begun a new episode."""

    obs: Any
    failures: dict[int, str] = field(default_factory=dict)


class SyncEpisodeVectorEnv(SyncVectorEnv):
    """Steps every env in this process."""

    def __init__(self, env_fns: Sequence[EnvFactory], run_seed: int) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        self.tracker = EpisodeTracker(self.num_envs, run_seed)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, seed: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        infos: dict[str, Any] = {}
        for index in np.flatnonzero(mask).tolist():
            try:
                self._env_obs[index], info = self.envs[index].reset(seed=seed[index], options=options or None)
            except Exception as error:
                raise EnvironmentStepError(
                    f"{self.tracker.locate_reset(index, seed[index])}: {_told(error)}"
                ) from error
            infos = self._add_info(infos, info, index)
        return self._batch(self._env_obs), infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        self.tracker.check_running()
        taken = np.array(actions)  # a copy: an env may write into what it is given
        observations = []
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        truncated = np.empty(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            try:
                obs, rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            except Exception as error:
                raise EnvironmentStepError(f"{self.tracker.locate(index, taken[index])}: {_told(error)}") from error
            observations.append(obs)
            if info:
                infos = self._add_info(infos, info, index)
        batch = self._batch(observations)
        self.tracker.check_numbers(batch, taken, rewards)
        self._env_obs = observations
        infos.update(self.tracker.record(taken, rewards, terminated | truncated))
        return batch, rewards, terminated, truncated, infos

    def _batch(self, observations: Sequence[Any]) -> Any:
        """The observations in fresh memory: what a caller keeps is never written again, neither by us nor by an env."""
        fresh: Any = create_empty_array(self.single_observation_space, self.num_envs, fn=np.empty)
        try:
            return concatenate(self.single_observation_space, observations, fresh)
        except (TypeError, ValueError):
            for index, obs in enumerate(observations):
                given = np.asarray(obs)
                space = self.single_observation_space
                if given.shape != space.shape or not np.can_cast(given.dtype, space.dtype or given.dtype, "same_kind"):
                    raise EnvironmentStepError(
                        f"{self.tracker.locate(index)}: expected an observation of shape {space.shape} and type "
                        f"{space.dtype}, got shape {given.shape} and type {given.dtype}"
                    ) from None
            raise

    def state_dict(self) -> dict[str, Any]:
        """What brings every env back to where it is."""
        return self.tracker.state_dict([capture_state(env) for env in self.envs])

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
        restarted = self.tracker.ended.copy()
        restarted[list(failures)] = True
        if restarted.any():
            return Restoration(self.reset(options={"reset_mask": restarted})[0], failures)
        return Restoration(self._batch(self._env_obs))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class AsyncEpisodeVectorEnv(AsyncVectorEnv):
    """Steps every env in a process of its own."""

    def __init__(self, env_fns: Sequence[EnvFactory], run_seed: int) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        self.tracker = EpisodeTracker(self.num_envs, run_seed)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(super().reset, seed, options)

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        self.tracker.check_running()
        obs, rewards, terminated, truncated, infos = super().step(actions)
        infos.update(self.tracker.record(np.array(actions), rewards, terminated | truncated))
        return obs, rewards, terminated, truncated, infos

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Stop the workers; one that is gone already must not hide why the run ends."""
        try:
            super().close_extras(timeout, terminate)
        except (OSError, EOFError):
            for process in self.processes:
                process.kill()
                process.join()


EpisodeVectorEnv = SyncEpisodeVectorEnv | AsyncEpisodeVectorEnv
