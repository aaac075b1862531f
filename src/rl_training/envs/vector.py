"""Gymnasium's vector envs with autoreset off, an explicit seed per episode, and statistics for all envs at once.

Both classes step and reset exactly as Gymnasium's do. A `reset` without a seed starts the next episode of every env
that it concerns, with that episode's own seed; so trajectories do not depend on the kind of vector env.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.envs.episodes import BoolArray, EpisodeTracker, FloatArray, ResetResult, Seeds

AnyEnv = Env[Any, Any]
EnvFactory = Callable[[], AnyEnv]
StepResult = tuple[Any, FloatArray, BoolArray, BoolArray, dict[str, Any]]


class SyncEpisodeVectorEnv(SyncVectorEnv):
    """Steps every env in this process."""

    def __init__(self, env_fns: Sequence[EnvFactory], run_seed: int) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        self.tracker = EpisodeTracker(self.num_envs, run_seed)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(super().reset, seed, options)

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        self.tracker.check_running()
        observations = []
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        truncated = np.empty(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            obs, rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            observations.append(obs)
            if info:
                infos = self._add_info(infos, info, index)
        # Fresh memory every step: what a caller keeps is never written again, neither by us nor by an env.
        fresh: Any = create_empty_array(self.single_observation_space, self.num_envs, fn=np.empty)
        self._env_obs = observations
        batch: Any = concatenate(self.single_observation_space, observations, fresh)
        self._autoreset_envs = terminated | truncated
        infos.update(self.tracker.record(rewards, self._autoreset_envs))
        return batch, rewards, terminated, truncated, infos


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
        infos.update(self.tracker.record(rewards, terminated | truncated))
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
