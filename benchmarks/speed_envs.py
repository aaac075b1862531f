"""Envs for the speed benchmarks: one with images, one that sleeps. Importing this module registers them."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_PIXELS = 84
_CELL = 4  # pixels of a side
_CELLS = _PIXELS // _CELL
_PADDLE = _CELLS // 3  # cells
_BALL = 28  # pixels of a side; PPO needs several times the budget to learn to see a ball of four pixels
_BALLS = 3  # per episode
_SLEEPER_STEPS = 1_000  # per episode

Image = np.ndarray[Any, np.dtype[np.uint8]]


class FallingBall(gymnasium.Env[Any, Any]):
    """A ball falls through an image of 84x84 bytes. Each step with the paddle below the ball has a reward of 1.

    The ball drifts sideways, which a single image does not show. The paddle is a third as wide as the image, and the
    action puts it to the left, into the middle or to the right. An episode has three balls of 21 steps each. Random
    actions have a return of 21 on average.
    """

    observation_space = spaces.Box(0, 255, (_PIXELS, _PIXELS, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Put the paddle into the middle, and drop the first ball."""
        super().reset(seed=seed, options=options)
        self._steps, self._paddle = 0, _PADDLE
        self._drop()
        return self._draw(), {}

    def _drop(self) -> None:
        self._column, self._drift = int(self.np_random.integers(_CELLS)), int(self.np_random.integers(-1, 2))

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Move the ball down and sideways, and put the paddle where the action says."""
        self._steps += 1
        if self._steps % _CELLS == 0:
            self._drop()
        elif not 0 <= self._column + self._drift < _CELLS:
            self._drift = -self._drift
        self._column = min(max(self._column + self._drift, 0), _CELLS - 1)
        self._paddle = _PADDLE * int(action)
        reward = float(self._paddle <= self._column < self._paddle + _PADDLE)
        return self._draw(), reward, self._steps == _BALLS * _CELLS, False, {}

    def _draw(self) -> Image:
        image = np.zeros((_PIXELS, _PIXELS, 1), np.uint8)
        row, column, paddle = (_CELL * place for place in (self._steps % _CELLS, self._column, self._paddle))
        image[row : row + _BALL, max(column - _BALL // 2, 0) : column + _BALL // 2] = 255
        image[-_CELL:, paddle : paddle + _CELL * _PADDLE] |= 128
        return image


class Sleeper(gymnasium.Env[Any, Any]):
    """An env whose steps take a given time without using the processor, as if a simulator ran on another machine.

    It shows how collectors scale on a machine that has fewer cores than collectors. Observations are random, the reward
    is always 1, and an episode has 1,000 steps.
    """

    observation_space = spaces.Box(-1.0, 1.0, (16,), np.float32)

    def __init__(self, milliseconds: float, *, continuous: bool = False) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32) if continuous else spaces.Discrete(4)
        self._seconds = milliseconds / 1e3
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        del action
        time.sleep(self._seconds)
        self._steps += 1
        return self._observe(), 1.0, False, self._steps == _SLEEPER_STEPS, {}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 16).astype(np.float32)


gymnasium.register("FallingBall-v0", f"{__name__}:FallingBall")
gymnasium.register("Sleeper-v0", f"{__name__}:Sleeper")
