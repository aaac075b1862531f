"""One-step environments with composite actions and a known optimum; importing this registers them with Gymnasium."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class GuessEnv(gymnasium.Env[Any, Any]):
    """Shows -1 or 1, and pays a share of 1 for every number of the action that is the right one for it."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    right: ClassVar[dict[float, list[int]]]
    """The best action for each observation; its return is 1."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.shown = float(self.np_random.integers(2) * 2 - 1)
        return np.array([self.shown], np.float32), {}

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        reward = float(np.mean(np.ravel(action) == self.right[self.shown]))
        return np.array([self.shown], np.float32), reward, True, False, {}


class DialsEnv(GuessEnv):
    """Three dials with different counts of positions, which do not start at 0."""

    action_space = spaces.MultiDiscrete([2, 4, 3], start=[0, -1, 5])
    right: ClassVar = {-1.0: [0, 2, 6], 1.0: [1, -1, 5]}


class MaskedDialsEnv(DialsEnv):
    """The same dials, whose last positions are illegal."""

    def action_masks(self) -> Any:
        return np.array([1, 0, 1, 1, 1, 0, 0, 1, 1], np.int8)

    def step(self, action: Any) -> Step:
        if action[0] == 1 or action[1] == 2 or action[2] == 5:
            raise ValueError(f"{action!r} is illegal")
        return super().step(action)


class SwitchesEnv(GuessEnv):
    """A panel of two by two switches."""

    action_space = spaces.MultiBinary((2, 2))
    right: ClassVar = {-1.0: [1, 0, 0, 1], 1.0: [0, 0, 1, 1]}


gymnasium.register("tests/Dials-v0", f"{__name__}:DialsEnv")
gymnasium.register("tests/Switches-v0", f"{__name__}:SwitchesEnv")
