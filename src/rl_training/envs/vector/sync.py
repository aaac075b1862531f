"""A vector env that steps its envs one after the other in this process."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.envs.changes import Answer, repeat_changes
from rl_training.envs.episodes import BoolArray, EpisodeTracker, ResetResult, Seeds, StepResult, batch_obs
from rl_training.envs.guard import ENV_FAILURES, STEP_PATIENCE, EnvCalls
from rl_training.envs.restore import capture_state, restore_env
from rl_training.envs.vector.protocol import EnvFactory, Restoration


class SyncEpisodeVectorEnv(SyncVectorEnv):
    """Steps every env in this process."""

    def __init__(self, env_fns: Sequence[EnvFactory], run_seed: int, *, first_env: int = 0) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.DISABLED)
        self.tracker = EpisodeTracker(self.num_envs, run_seed, self.single_observation_space, first_env=first_env)
        self._calls = EnvCalls()
        self.calls = [self._calls]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, mask: BoolArray, seeds: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        def locate(index: int) -> str:
            return self.tracker.locate_reset(index, seeds[index])

        infos: dict[str, Any] = {}
        for index in np.flatnonzero(mask).tolist():
            with self._calls.slow(locate, index):
                self._env_obs[index], info = self.envs[index].reset(seed=seeds[index], options=options)
                infos = self._add_info(infos, info, index)
        return batch_obs(self.single_observation_space, self._env_obs, locate), infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs; at the end of an episode, the observation is the true last one of that episode."""
        taken = self.tracker.begin_step(actions)

        def locate(index: int) -> str:
            return self.tracker.locate(index, taken[index])

        observations = []
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        truncated = np.empty(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        env_infos: dict[int, Any] = {}
        calls = self._calls
        calls.begin(locate)
        try:
            for index, env in enumerate(self.envs):
                calls.index = index
                obs, rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
                observations.append(obs)
                if info:
                    env_infos[index] = info
                    infos = self._add_info(infos, info, index)
        except ENV_FAILURES as failure:
            raise calls.error(failure) from failure
        finally:
            calls.end()
        calls.patience = STEP_PATIENCE
        batch = batch_obs(self.single_observation_space, observations, locate)
        result = self.tracker.finish_step(taken, (batch, rewards, terminated, truncated, infos), env_infos)
        self._env_obs = observations
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to restore every env to its current state."""
        if self.tracker.out_of_sync:
            return self.tracker.state_dict()
        states = []
        for index, env in enumerate(self.envs):
            with self._calls.slow("env {}, get_state".format, index):
                states.append(capture_state(env))
        return self.tracker.state_dict(states)

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Restore every env to `state`, in which it showed `last_obs` [env, ...]."""
        self.tracker.load_state_dict(state)
        failures: dict[int, str] = {}
        for index in np.flatnonzero(self.tracker.ended).tolist():
            with self._calls.slow(self.tracker.locate_restore, index):
                repeat_changes(self.envs[index], self.tracker.changes[index])
        for index in np.flatnonzero(~self.tracker.ended).tolist():
            episode = self.tracker.running(index, state["states"][index])
            with self._calls.slow(self.tracker.locate_restore, index, episode.length):
                restored = restore_env(self.envs[index], episode, last_obs[index])
            self._env_obs[index] = restored.obs
            if restored.failure:
                failures[index] = restored.failure
        return Restoration(self.tracker.finish_restore(failures, self.reset, self._current_obs), failures)

    def visit(self, function: Callable[[Any], Answer]) -> list[Answer]:
        """Call a function with every env, and return the answers [env]."""
        answers = []
        for index, env in enumerate(self.envs):
            with self._calls.slow(self.tracker.locate_visit, index):
                answers.append(function(env))
        return answers

    def _current_obs(self) -> Any:
        return batch_obs(self.single_observation_space, self._env_obs, self.tracker.locate)
