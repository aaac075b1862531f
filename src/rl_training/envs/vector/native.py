"""Envs that Gymnasium steps all at once in NumPy: so far its CartPole, a hundred of which cost little more than one.

Gymnasium's own begins episodes by itself and draws all of them from one generator. Here every episode begins with a
seed of its own, as in the other vector envs, so the trajectories are theirs to the last bit.
"""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.spaces import MultiDiscrete
from gymnasium.utils import seeding

from rl_training.envs.episodes import BoolArray, EpisodeTracker, ResetResult, Seeds
from rl_training.envs.guard import ENV_FAILURES, STEP_PATIENCE, EnvCalls
from rl_training.envs.restore import restore_env
from rl_training.envs.vector.protocol import EnvFactory, Restoration, StepResult, finish_restore, finish_step
from rl_training.errors import EnvironmentSetupError

_START_BOUND = 0.05  # of every component of a new episode's state


def has_native(env_id: str) -> bool:
    """Whether an env can be stepped this way."""
    spec = gymnasium.registry.get(env_id)
    return spec is not None and str(spec.vector_entry_point).endswith(f"cartpole:{CartPoleVectorEnv.__name__}")


class _Pushes(MultiDiscrete):
    """CartPole's actions, 0 or 1 for every env; Gymnasium's own check takes a fifth of a step's time."""

    def contains(self, x: Any) -> bool:
        """Whether every action is one of the two."""
        return not np.count_nonzero(x >> 1)


class NativeEpisodeVectorEnv:
    """Steps all envs in one call; `env_fn` makes a single one of them, in which running episodes are replayed."""

    def __init__(
        self, env_id: str, env_kwargs: dict[str, Any], env_fn: EnvFactory, *, num_envs: int, run_seed: int
    ) -> None:
        if not has_native(env_id):
            raise EnvironmentSetupError(f"{env_id} has no native vector env: use vectorization sync, async or auto")
        self.num_envs = num_envs
        self._env_fn = env_fn
        self._env: Any = gymnasium.make_vec(
            env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **env_kwargs
        ).unwrapped
        self._env.action_space = _Pushes([2] * num_envs)
        self._env.reset(seed=0)  # makes room for the states; every episode draws its own
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self.tracker = EpisodeTracker(num_envs, run_seed)
        self.calls = EnvCalls()

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, mask: BoolArray, seeds: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        low, high = maybe_parse_reset_bounds(options, -_START_BOUND, _START_BOUND)
        for index in np.flatnonzero(mask).tolist():
            generator, _ = seeding.np_random(seeds[index])
            self._env.state[:, index] = generator.uniform(low, high, size=4)
            self._env.steps[index] = 0
        return self._shown(), {}

    def _shown(self) -> Any:
        return self._env.state.T.astype(np.float32)

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        taken = self.tracker.begin_step(actions)
        self.calls.index = 0  # all envs are stepped at once
        self.calls.begin(lambda index: self.tracker.locate(index, taken[index]))
        try:
            obs, rewards, terminated, truncated, infos = self._env.step(taken)
        except ENV_FAILURES as failure:
            raise self.calls.error(failure) from failure
        finally:
            self.calls.end()
        self.calls.patience = STEP_PATIENCE
        self._env.prev_done[:] = False  # nothing is reset but by `reset`
        return finish_step(self.tracker, taken, (obs, rewards.astype(np.float64), terminated, truncated, infos))

    def state_dict(self) -> dict[str, Any]:
        """What brings every env back to where it is."""
        return self.tracker.state_dict()

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Bring every env back to where `state` was taken, when it showed `last_obs` [env, ...]."""
        self.tracker.load_state_dict(state)
        failures: dict[int, str] = {}
        with closing(self._env_fn()) as env:
            for index in np.flatnonzero(~self.tracker.ended).tolist():
                episode = self.tracker.running(index)
                with self.calls.slow(self.tracker.locate_restore, index, episode.length):
                    restored = restore_env(env, episode, last_obs[index])
                if restored.failure:
                    failures[index] = restored.failure
                    continue
                single: Any = env.unwrapped
                self._env.state[:, index] = single.state
                self._env.steps[index] = self.tracker.lengths[index]
        return finish_restore(self.tracker, failures, self.reset, self._shown)

    def close(self) -> None:
        """Release what the envs hold."""
        self._env.close()
