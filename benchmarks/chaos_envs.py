"""Random-walk envs and a callback for `chaos.py`; importing this module registers the envs with Gymnasium.

Some keep state across episodes, so that replaying their actions does not restore them. This state shows only some steps
into an episode, so that the observation at a checkpoint does not reveal it.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.types import MetricDict

_DRIFTS_AFTER = 15  # steps of an episode

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class HiddenWalk(gymnasium.Env[Any, Any]):
    """A walk that replays; its observation shows only part of the state that decides rewards and endings."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, continuous: bool = False) -> None:
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start at 0."""
        super().reset(seed=seed, options=options)
        self.hidden, self.steps = 0.0, 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action: Any) -> Step:
        """Move randomly, with a small influence of the action."""
        push = float(np.asarray(action).item())
        self.hidden += float(self.np_random.normal()) + 0.2 * push - 0.1
        self.steps += 1
        shown = np.array([np.round(self.hidden)], np.float32)
        return shown, abs(self.hidden), abs(self.hidden) > 6.0, self.steps >= 60, {}

    def get_hidden(self) -> dict[str, Any]:
        """Return the state of the walk."""
        return {"hidden": self.hidden, "steps": self.steps, "generator": self.np_random.bit_generator.state}

    def set_hidden(self, state: dict[str, Any]) -> None:
        """Continue where `get_hidden` was called."""
        self.hidden, self.steps = state["hidden"], state["steps"]
        self.np_random.bit_generator.state = state["generator"]


class PanelWalk(HiddenWalk):
    """A walk that shows a picture, numbers and a choice, and in which some actions are illegal."""

    def __init__(self) -> None:
        super().__init__()
        parts: dict[str, spaces.Space[Any]] = {
            "picture": spaces.Box(0, 255, (8, 8, 1), np.uint8),
            "numbers": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "phase": spaces.Discrete(3, start=1),
        }
        self.observation_space = spaces.Dict(parts)  # type: ignore[assignment]  # more than the walk shows
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start at 0."""
        super().reset(seed=seed, options=options)
        return self._show(), {"action_mask": self._legal()}

    def _legal(self) -> Any:
        return np.array([True, self.steps % 2 == 0, self.steps % 3 == 0, False], np.int8)

    def _show(self) -> dict[str, Any]:
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[self.steps % 8, int(np.clip(self.hidden + 4.0, 0, 7))] = 255
        return {"picture": picture, "numbers": np.array([self.hidden, self.steps]), "phase": 1 + self.steps % 3}

    def step(self, action: Any) -> Step:
        """Move randomly; an illegal action is an error."""
        if not self._legal()[int(action)]:
            raise RuntimeError(f"action {action} is illegal at step {self.steps}")
        _, reward, terminated, truncated, _ = super().step(action)
        return self._show(), reward, terminated, truncated, {"action_mask": self._legal()}


class LevelWalk(HiddenWalk):
    """A walk with a level that callbacks raise, by setting it or through a method, and with gusts of wind."""

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous)
        self.level = 0.0
        self.winds = np.zeros(2)

    def raise_level(self, amount: float) -> float:
        """Raise the level; a reset keeps it."""
        self.level += amount
        return self.level

    def blow(self) -> None:
        """Move the walk by a random distance, which depends on the step at which this is called."""
        self.hidden += float(self.winds.sum() * self.np_random.normal())

    def step(self, action: Any) -> Step:
        """Drift with the level."""
        self.hidden += 0.01 * self.level
        return super().step(action)


class WornWalk(HiddenWalk):
    """A walk that drifts more with every episode; a reset does not undo this."""

    wear = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start at 0 with a larger drift."""
        self.wear += 1e-3
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        """Drift late in the episode."""
        if self.steps >= _DRIFTS_AFTER:
            self.hidden += self.wear
        return super().step(action)


class CountedWalk(HiddenWalk):
    """A walk that drifts with the number of episodes of all walks in its process."""

    episodes: ClassVar[list[int]] = [0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start at 0."""
        self.episodes[0] += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        """Drift late in the episode."""
        if self.steps >= _DRIFTS_AFTER:
            self.hidden += 1e-3 * self.episodes[0]
        return super().step(action)


class UnseededWalk(HiddenWalk):
    """A walk that uses an unseeded generator late in an episode."""

    def __init__(self, continuous: bool = False) -> None:
        super().__init__(continuous)
        self.noise = np.random.default_rng()

    def step(self, action: Any) -> Step:
        """Add unseeded noise late in the episode."""
        if self.steps >= _DRIFTS_AFTER:
            self.hidden += 1e-3 * float(self.noise.normal())
        return super().step(action)


class ForgetfulWalk(UnseededWalk):
    """A walk that offers its state without the state of its unseeded generator."""

    def get_state(self) -> dict[str, Any]:
        """Return the state of the walk."""
        return self.get_hidden()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called."""
        self.set_hidden(state)


class StateWalk(HiddenWalk):
    """A walk that offers its whole state."""

    def get_state(self) -> dict[str, Any]:
        """Return the state of the walk."""
        return self.get_hidden()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called."""
        self.set_hidden(state)


class LaggingActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that passes on a running mean of the actions, which a reset keeps."""

    mean = 0.0

    def step(self, action: Any) -> Any:
        """Pass the mean to the env."""
        self.mean += 0.1 * (float(np.asarray(action).item()) - self.mean)
        return self.env.step(self.mean)


class SmoothActions(LaggingActions):
    """A wrapper that passes on a running mean of the actions of the episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Reset the mean."""
        self.mean = 0.0
        return super().reset(seed=seed, options=options)


def _register(name: str, kind: type, wrapper: type | None = None) -> None:
    wrappers = () if wrapper is None else (WrapperSpec(wrapper.__name__, f"{__name__}:{wrapper.__name__}", {}),)
    gymnasium.register(f"{name}-v0", f"{__name__}:{kind.__name__}", additional_wrappers=wrappers)


class RaiseLevel(Callback):
    """A curriculum for `LevelWalk` that uses every way to change an env, in the middle of episodes."""

    def __init__(self, updates: int = 8) -> None:
        self.updates = updates
        self.num_updates = self.num_episodes = 0

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Count the finished episodes."""
        del trainer
        self.num_episodes += result.num_episodes

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Change the envs at every eighth update, or as often as chosen."""
        del result
        self.num_updates += 1
        if self.num_updates % self.updates:
            return
        trainer.env.set_attr("winds", np.array([0.1, 0.01 * self.num_episodes]))
        trainer.env.call("blow")
        if self.num_updates % (2 * self.updates):
            trainer.env.set_attr("level", 0.1 * self.num_episodes)
        else:
            trainer.env.call("raise_level", amount=0.5)
        trainer.log("curriculum/level", trainer.env.get_attr("level")[0])

    def on_eval_end(self, trainer: TrainerState, metrics: MetricDict) -> None:
        """Change the envs by what the evaluation found."""
        trainer.env.call("raise_level", 0.01 * metrics["eval_return_mean"])

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"updates": self.num_updates, "episodes": self.num_episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved counts."""
        self.num_updates, self.num_episodes = state["updates"], state["episodes"]


for _kind in (HiddenWalk, PanelWalk, LevelWalk, WornWalk, CountedWalk, UnseededWalk, ForgetfulWalk, StateWalk):
    _register(_kind.__name__, _kind)
_register("LaggingWalk", StateWalk, LaggingActions)
_register("SmoothWalk", StateWalk, SmoothActions)
