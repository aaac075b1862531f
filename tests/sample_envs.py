"""Environments that tests of several rooms use; importing this registers them with Gymnasium."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env[Any, Any]):
    """Shows (episode number, step), reuses one array for every observation, and ends after `limit` steps.

    `ending` is "terminated", "truncated" or "both".
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, limit: int = 3, ending: str = "terminated") -> None:
        self.limit, self.ending = limit, ending
        self.shown = np.array([-1.0, 0.0], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.shown[:] = self.shown[0] + 1.0, 0.0
        return self.shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown[1] += 1.0
        ended = bool(self.shown[1] == self.limit)
        terminated = ended and self.ending != "truncated"
        truncated = ended and self.ending != "terminated"
        return self.shown, 1.0 + float(action), terminated, truncated, {}


class SeedEnv(CountingEnv):
    """Shows the number its generator draws first in the episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.shown[0] = self.np_random.random()
        return self.shown, {}


gymnasium.register("tests/Counting-v0", f"{__name__}:CountingEnv")
gymnasium.register("tests/Seed-v0", f"{__name__}:SeedEnv")
