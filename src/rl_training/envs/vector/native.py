"""Gymnasium's CartPole in NumPy, which steps all envs at once: a hundred envs cost little more than one.

Gymnasium's version starts episodes by itself and draws all of them from one generator. Here every episode starts with
its own seed, as in the other vector envs, so the trajectories are the same to the last bit.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.spaces import MultiDiscrete
from gymnasium.utils import seeding

from rl_training.envs.episodes import ResetResult
from rl_training.errors import EnvironmentSetupError

_START_BOUND = 0.05  # of every component of a new episode's state


def has_native(env_id: str) -> bool:
    """Return whether an env can be stepped this way."""
    spec = gymnasium.registry.get(env_id)
    return spec is not None and str(spec.vector_entry_point).endswith(f"cartpole:{CartPoleVectorEnv.__name__}")


class _Pushes(MultiDiscrete):
    """CartPole's actions, 0 or 1 for every env; Gymnasium's own check takes a fifth of a step's time."""

    def contains(self, x: Any) -> bool:
        """Return whether every action is one of the two."""
        return not np.count_nonzero(x >> 1)


class SeededCartPole:
    """Gymnasium's CartPole as a batched env with a seed per episode."""

    def __init__(self, env_id: str, num_envs: int, env_kwargs: dict[str, Any]) -> None:
        if not has_native(env_id):
            raise EnvironmentSetupError(f"{env_id} has no native vector env: use vectorization sync, async or auto")
        self.num_envs = num_envs
        if env_kwargs.get("max_episode_steps") == -1:  # no limit for `gymnasium.make`, but no steps at all here
            env_kwargs = {**env_kwargs, "max_episode_steps": sys.maxsize}
        self.env: Any = gymnasium.make_vec(
            env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **env_kwargs
        ).unwrapped
        self.env.action_space = _Pushes([2] * num_envs)
        self.env.reset(seed=0)  # allocates the states; every episode draws its own
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> ResetResult:
        """Begin a new episode in the envs that `options["reset_mask"]` marks."""
        low, high = -_START_BOUND, _START_BOUND
        if len(options) > 1:
            low, high = maybe_parse_reset_bounds(options, low, high)
        for index in np.flatnonzero(options["reset_mask"]).tolist():
            generator, _ = seeding.np_random(seed[index])
            self.env.state[:, index] = generator.uniform(low, high, size=4)
            self.env.steps[index] = 0
        return self.env.state.T.astype(np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs."""
        result: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        self.env.prev_done[:] = False  # otherwise the next step would start new episodes by itself
        return result

    def close(self) -> None:
        """Close the envs."""
        self.env.close()
