"""Wrappers that turn nested observations and actions into arrays, with the mask of legal actions if an env has one."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.envs.layers import AnyEnv, layers_of
from rl_training.errors import ActionMaskError, EnvironmentSetupError
from rl_training.packing import (
    MASK_NAME,
    Array,
    PackedActions,
    PackedObservations,
    StackedFrames,
    is_packed_as_observation,
)

MASK_METHOD = "action_masks"
OBSERVED = "observation."  # prefix of a mask source that is an entry of a Dict observation


class StackedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows the newest frames in one observation; the first frame of an episode is repeated."""

    def __init__(self, env: AnyEnv, num_frames: int) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Box):
            raise EnvironmentSetupError(
                f"frame_stack={num_frames} needs Box observations, the observation space is {env.observation_space}"
            )
        self.observation_space = StackedFrames(env.observation_space, num_frames)
        self._num_frames = num_frames
        self._stack = np.zeros(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack = np.concatenate([StackedFrames.to_frame(np.asarray(obs))] * self._num_frames)
        return self._stack, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        frame = StackedFrames.to_frame(np.asarray(obs))
        self._stack = np.concatenate([self._stack[len(frame) :], frame])
        return self._stack, reward, terminated, truncated, info


class ActionMasks:
    """Reads the masks of an env's legal actions, and refuses those that do not fit its actions."""

    def __init__(self, env: AnyEnv, source: str) -> None:
        """`source` says where the masks come from, as a value of the config field `action_mask`."""
        self.size = count_choices(env.action_space)
        self.entry = source.removeprefix(OBSERVED) if source.startswith(OBSERVED) else None
        self._choices = choices_of_actions(env.action_space)
        self._method = find_mask_method(env) if source == "method" else None
        self._check_source(source, env.observation_space)

    def _check_source(self, source: str, space: spaces.Space[Any]) -> None:
        """Refuse a source of masks that the env does not have; info is only known once the env is reset."""
        if source == "method" and self._method is None:
            raise EnvironmentSetupError(f"action_mask: method needs an env with a method {MASK_METHOD}()")
        if self.entry is not None and not (isinstance(space, spaces.Dict) and self.entry in space.spaces):
            raise EnvironmentSetupError(f"action_mask: {source} needs a Dict observation with an entry '{self.entry}'")

    def read(self, obs: Any, info: dict[str, Any], *, terminated: bool) -> Array:
        """Return the mask after a reset or a step, [choice]."""
        return read_mask(self._current(obs, info), self._choices, may_be_empty=terminated)

    def _current(self, obs: Any, info: dict[str, Any]) -> Any:
        if self.entry is not None:
            return obs[self.entry]
        if self._method is not None:
            return self._method()
        if MASK_NAME not in info:
            raise ActionMaskError(f'info has no "{MASK_NAME}"; set action_mask: off to train without masks')
        return info[MASK_NAME]


def read_mask(given: Any, choices: Sequence[int], *, may_be_empty: bool = False) -> Array:
    """Return a mask as flags, one per choice; refuse one of another size, or one that leaves no action.

    The mask after the last step of an episode may allow no action, because none follows.
    """
    if given is None:
        raise ActionMaskError("the action mask is None")
    mask = np.asarray(given, np.bool_).ravel()
    if mask.size != sum(choices):
        raise ActionMaskError(f"the action mask has {mask.size} entries, the actions have {sum(choices)}")
    end = 0
    for size in () if may_be_empty else choices:
        end += size
        if not mask[end - size : end].any():
            raise ActionMaskError("the action mask allows no action")
    return mask


class PackedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows observations as rows and takes actions as arrays, whatever the spaces of the env."""

    def __init__(self, env: AnyEnv, action_mask: str = "off") -> None:
        """`action_mask` says where the mask comes from, as the config field of that name does."""
        super().__init__(env)
        masks = None if action_mask in ("off", "auto") else ActionMasks(env, action_mask)
        self._masks = masks
        size, entry = (masks.size, masks.entry) if masks else (0, None)
        self._rows = PackedObservations(env.observation_space, size, without=entry)
        self.observation_space = self._rows
        self._actions = PackedActions(env.action_space) if is_nested(env.action_space) else None
        if self._actions is not None:
            self.action_space = self._actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._pack(obs, info, terminated=False)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        given = action if self._actions is None else self._actions.unpack(action)
        obs, reward, terminated, truncated, info = self.env.step(given)
        row, info = self._pack(obs, info, terminated=bool(terminated))
        return row, reward, terminated, truncated, info

    def _pack(self, obs: Any, info: dict[str, Any], *, terminated: bool) -> tuple[Array, dict[str, Any]]:
        if self._masks is None:
            return self._rows.pack(obs), info
        mask = self._masks.read(obs, info, terminated=terminated)
        return self._rows.pack(obs, mask), {key: value for key, value in info.items() if key != MASK_NAME}


def is_nested(space: spaces.Space[Any]) -> bool:
    """Return whether a space is a Dict or Tuple."""
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def needs_packing(env: AnyEnv, action_mask: str) -> bool:
    """Return whether the env must be wrapped in a `PackedEnv`, because of its spaces or its mask."""
    masked = action_mask not in ("off", "auto")
    return masked or is_nested(env.action_space) or is_packed_as_observation(env.observation_space)


def choices_of_actions(space: spaces.Space[Any]) -> list[int]:
    """Return how many choices each number of an action has; empty for actions that cannot be masked."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in np.ravel(space.nvec)] if isinstance(space, spaces.MultiDiscrete) else []


def count_choices(space: spaces.Space[Any]) -> int:
    """Return the size of a mask for an action space; refuse spaces that have none."""
    choices = choices_of_actions(space)
    if not choices:
        raise EnvironmentSetupError(
            f"actions of {space} cannot be masked, only those of Discrete and MultiDiscrete: set action_mask: off"
        )
    return sum(choices)


def find_mask_method(env: AnyEnv) -> Callable[[], Any] | None:
    """Return the method that gives the legal actions, from the outermost layer that has it; none if no layer has it."""
    for layer in layers_of(env):
        method: Callable[[], Any] | None = getattr(layer, MASK_METHOD) if MASK_METHOD in dir(type(layer)) else None
        if callable(method):
            return method
    return None


def find_mask(env: AnyEnv) -> str:
    """Return where an env gives the mask of its legal actions, as a value of `action_mask`; `off` if nowhere.

    This resets the env.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict) and MASK_NAME in space.spaces:
        return f"{OBSERVED}{MASK_NAME}"
    if find_mask_method(env) is not None:
        return "method"
    _, info = env.reset(seed=0)
    return "info" if MASK_NAME in info else "off"


def make_legal(action: Any, obs: Array, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Any:
    """Return a random action unchanged if the mask in a packed observation allows it, else a legal one in its place."""
    if not isinstance(observation_space, PackedObservations) or observation_space.mask is None:
        return action
    return legal_action(action, observation_space.read(obs[None], observation_space.mask)[0], action_space)


def legal_action(action: Any, mask: Array, action_space: spaces.Space[Any]) -> Any:
    """Return an action unchanged if a mask [choice] allows it, else a legal one in its place."""
    given = np.ravel(action - np.asarray(getattr(action_space, "start", 0)))
    numbers, end = given.copy(), 0
    for index, choices in enumerate(choices_of_actions(action_space)):
        legal = np.flatnonzero(mask[end : end + choices])
        if numbers[index] not in legal:
            numbers[index] = legal[numbers[index] % len(legal)]
        end += choices
    if np.array_equal(numbers, given):
        return action
    return numbers.reshape(np.shape(action)) + np.asarray(getattr(action_space, "start", 0))
