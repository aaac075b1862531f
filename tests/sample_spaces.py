"""Envs with nested observations, masks and images, each with a known optimum; `sample_spaces:Name-v0` in configs."""

from typing import Any

import numpy as np
from gymnasium import Env, register, registry, spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class NestedEnv(Env[Any, Any]):
    """The action must equal the switch if the lamp is lit, and differ from it if not: both parts are needed."""

    observation_space = spaces.Dict(
        {
            "panel": spaces.Dict({"switch": spaces.Discrete(2, start=3), "dials": spaces.MultiDiscrete([3, 2])}),
            "lamp": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "note": spaces.Text(5),
        }
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def _show(self) -> dict[str, Any]:
        self._switch, self._lit = (int(value) for value in self.np_random.integers(2, size=2))
        dials = np.array([self.np_random.integers(3), self.np_random.integers(2)])
        lamp = np.array([1.0 if self._lit else -1.0, self.np_random.uniform(-1.0, 1.0)], np.float32)
        return {"panel": {"switch": np.int64(3 + self._switch), "dials": dials}, "lamp": lamp, "note": "hello"}

    def step(self, action: Any) -> Step:
        self._steps += 1
        right = (int(action) == self._switch) == bool(self._lit)
        return self._show(), float(right), False, self._steps >= 10, {}


class TupleEnv(NestedEnv):
    """The same with a tuple of a number, a vector and bits."""

    observation_space = spaces.Tuple(  # type: ignore[assignment]  # another kind of space on purpose
        (spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float64), spaces.MultiBinary(3))
    )

    def _show(self) -> Any:
        self._switch, self._lit = (int(value) for value in self.np_random.integers(2, size=2))
        bits = self.np_random.integers(2, size=3).astype(np.int8)
        return self._switch, np.array([1.0 if self._lit else -1.0]), bits


class MaskedEnv(Env[Any, Any]):
    """A corridor of five cells, in which walls are illegal: it raises if one walks into them.

    Actions are left, right and two that are never legal. The right end is worth 1, each step costs 0.1.
    """

    observation_space = spaces.Box(0.0, 4.0, (1,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, source: str = "info", no_action_at: int | None = None) -> None:
        self._source, self._no_action_at = source, no_action_at
        if source == "observation":
            entries = {"cell": MaskedEnv.observation_space, "action_mask": spaces.MultiBinary(4)}
            self.observation_space = spaces.Dict(entries)  # type: ignore[assignment]  # with the mask in it

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell, self._steps = int(self.np_random.integers(4)), 0
        return self._show(), self._info()

    def legal(self) -> Any:
        mask = np.array([self._cell > 0, self._cell < 4, False, False], np.int8)
        return mask * 0 if self._steps == self._no_action_at else mask

    def _show(self) -> Any:
        cell = np.array([self._cell], np.float32)
        return {"cell": cell, "action_mask": self.legal()} if self._source == "observation" else cell

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.legal()} if self._source == "info" else {}

    def step(self, action: Any) -> Step:
        if not self.legal()[int(action)]:
            raise RuntimeError(f"action {action} is illegal in cell {self._cell}")
        self._steps += 1
        self._cell += 1 if action == 1 else -1
        done = self._cell == 4
        return self._show(), 1.0 if done else -0.1, done, self._steps >= 30, self._info()


class MaskMethodEnv(MaskedEnv):
    """The same, with the mask from a method."""

    def __init__(self) -> None:
        super().__init__(source="method")

    def action_masks(self) -> Any:
        return self.legal()


class BrokenMaskEnv(MaskedEnv):
    """A mask in info that is too short, None or missing from the second step on."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def _info(self) -> dict[str, Any]:
        if self._steps < 2:
            return super()._info()
        masks: dict[str, Any] = {"short": self.legal()[:3], "none": None}
        return {"action_mask": masks[self._fault]} if self._fault in masks else {}


class ShortMaskEnv(MaskedEnv):
    """A mask that is too short from the first reset on."""

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.legal()[:3]}


class LateMaskEnv(MaskedEnv):
    """A mask that is given after steps, but not after a reset; every action is legal."""

    def legal(self) -> Any:
        return np.ones(4, np.int8)

    def _info(self) -> dict[str, Any]:
        return super()._info() if self._steps else {}


class NestedActionEnv(Env[Any, Any]):
    """Each part of the action has a target that the observation shows."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Dict(
        {"gear": spaces.Discrete(3, start=1), "lights": spaces.MultiBinary(2), "wheel": spaces.Box(-2.0, 4.0, (1,))}
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.np_random.choice([-1.0, 1.0], size=2).astype(np.float32)
        return self._obs, {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        gear = float(action["gear"] == (3 if self._obs[0] > 0 else 1))
        lights = float(np.mean(action["lights"] == (self._obs > 0)))
        wheel = 1.0 - min(abs(float(action["wheel"][0]) - 2.0 * float(self._obs[1])), 1.0)
        return self._obs, gear + lights + wheel, True, False, {}


class MaskedBoxEnv(MaskedEnv):
    """Continuous actions, with a mask that nobody can use."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)  # type: ignore[assignment]  # on purpose

    def step(self, action: Any) -> Step:
        return super().step(1)


for _name in ("Nested", "Tuple", "Masked", "MaskMethod", "MaskedBox", "NestedAction"):
    if f"{_name}-v0" not in registry:
        register(f"{_name}-v0", f"sample_spaces:{_name}Env")
