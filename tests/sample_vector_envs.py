"""A batched env as a user would write it, named in configs as `sample_vector_envs:BatchedPendulum`."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.utils import seeding

MAX_SPEED = 8.0


class BatchedPendulum:
    """Gymnasium's Pendulum-v1 for many envs at once; it knows no time limit."""

    single_observation_space: Space[Any] = Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    single_action_space: Space[Any] = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, num_envs: int, g: float = 10.0) -> None:
        self.num_envs, self._gravity = num_envs, g
        self._angles, self._speeds = np.zeros(num_envs), np.zeros(num_envs)
        self._shown: Any = np.zeros((num_envs, 3), np.float32)  # the same memory at every step

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        for index in np.flatnonzero(options["reset_mask"]):
            high = np.array([np.pi, 1.0])
            self._angles[index], self._speeds[index] = seeding.np_random(seed[index])[0].uniform(low=-high, high=high)
        return self._show(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        pushes = np.clip(actions, -2.0, 2.0)[:, 0]
        normal = (self._angles + np.pi) % (2 * np.pi) - np.pi
        costs = normal**2 + 0.1 * self._speeds**2 + 0.001 * (pushes**2)
        speeds = self._speeds + (3 * self._gravity / 2 * np.sin(self._angles) + 3.0 * pushes) * 0.05
        self._speeds = np.clip(speeds, -MAX_SPEED, MAX_SPEED)
        self._angles = self._angles + self._speeds * 0.05
        never = np.zeros(self.num_envs, np.bool_)
        return self._show(), -costs, never, never, {}

    def _show(self) -> Any:
        self._shown[:] = np.stack([np.cos(self._angles), np.sin(self._angles), self._speeds], axis=1)
        return self._shown

    def close(self) -> None:
        pass


class Float64Pendulum(BatchedPendulum):
    """Shows the numbers as NumPy computes them, although its space says float32."""

    def __init__(self, num_envs: int, g: float = 10.0) -> None:
        super().__init__(num_envs, g)
        self._shown = np.zeros((num_envs, 3))


class ForgetfulPendulum(BatchedPendulum):
    """Draws its episodes from a generator of its own, and so cannot be replayed."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._generator = np.random.default_rng()

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        seeds: list[int | None] = [int(self._generator.integers(2**31)) for _ in seed]
        return super().reset(seed=seeds, options=options)


class OtherSpaces(BatchedPendulum):
    single_action_space = Discrete(2)  # wrong on purpose


def fails(num_envs: int) -> BatchedPendulum:
    raise RuntimeError("no licence")


class BatchedReporting:
    """`tests/Reporting-v0` for many envs at once; no env reports `hidden`, which an array says."""

    single_observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._shown = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        for index in np.flatnonzero(options["reset_mask"]):
            self._shown[index] = seeding.np_random(seed[index])[0].random(), 0.0
        return self._shown, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._shown[:, 1] += 1.0
        drawn = self._shown[:, 0].astype(np.float64)
        infos = {"is_success": drawn > 0.5, "drawn": np.where(drawn > 0.5, drawn, 0.0), "a/b c": drawn, "seconds": 1.0}
        infos |= {"hidden": drawn, "_hidden": np.zeros(self.num_envs, np.bool_), "path": np.zeros((self.num_envs, 2))}
        never = np.zeros(self.num_envs, np.bool_)
        return self._shown, 1.0 + actions, self._shown[:, 1] == 3.0, never, infos

    def close(self) -> None:
        pass
