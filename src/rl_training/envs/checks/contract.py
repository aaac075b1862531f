"""Check that an environment follows Gymnasium's interface, and find the algorithms that can train it."""

import re
import warnings
from contextlib import closing
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Wrapper, spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from rl_training.envs.checks.findings import Finding, LegalActions, Subject, random_actions
from rl_training.envs.checks.recording import obs_fault
from rl_training.envs.packed import MASK_METHOD, OBSERVED
from rl_training.errors import ActionMaskError, EnvironmentSetupError, describe_error
from rl_training.packing import (
    LEAF_SPACES,
    MASK_NAME,
    PackedObservations,
    describe_actions,
    describe_observations,
    nested_spaces,
)

# Advice that does not apply here: actions are scaled to their bounds, and the bounds of observations are not used.
# `check_spaces` reports actions without bounds, and the wrapper around the env is `_CopyingWrapper`.
_IRRELEVANT = ("value is -infinity", "value is infinity", "symmetric and normalized space", "the unwrapped version")
_MAX_MESSAGE_LENGTH = 160  # characters


def without_make_wrappers(env: LegalActions) -> LegalActions:
    """Return the environment without the wrappers that `gymnasium.make` adds."""
    inner = env.env
    while isinstance(inner, (OrderEnforcing, TimeLimit)):
        inner = inner.env
    return LegalActions(inner, env.source)


def check_reset(subject: Subject) -> Finding:
    """Check that `reset(seed=...)` returns an observation of the space and a dict."""
    remedy = "reset(self, *, seed=None, options=None) must return (obs, info)"
    with closing(subject.make()) as env:
        result: Any = without_make_wrappers(env).env.reset(seed=subject.first_seed)
        if not isinstance(result, tuple) or len(result) != 2:
            return Finding("reset", "problem", f"returned {_describe_type(result)}, not (obs, info)", remedy)
        obs, info = result
        if not isinstance(info, dict):
            return Finding("reset", "problem", f"info is {_describe_type(info)}, not a dict", remedy)
        fault = obs_fault(env.observation_space, obs)
    if fault is not None and fault.status == "problem":
        return Finding("reset", "problem", fault.found, fault.remedy)
    return Finding("reset", "ok", "returns (obs, info), and the observation is in its space")


def check_step(subject: Subject) -> Finding:
    """Check that `step` returns five values, the last of them a dict."""
    remedy = "step(self, action) must return (obs, reward, terminated, truncated, info)"
    with closing(subject.make()) as env:
        env = without_make_wrappers(env)
        env.reset(seed=subject.first_seed)
        action = next(random_actions(env.action_space, subject.seed, "contract"))
        result: Any = env.env.step(env.legal(action))
    if not isinstance(result, tuple) or len(result) != 5:
        return Finding("step", "problem", f"returned {_describe_type(result)}, not five values", remedy)
    if not isinstance(result[4], dict):
        return Finding("step", "problem", f"info is {_describe_type(result[4])}, not a dict", remedy)
    return Finding("step", "ok", "returns (obs, reward, terminated, truncated, info)")


def _describe_type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a value of type {type(value).__name__}"


class _CopyingWrapper(Wrapper[Any, Any, Any, Any]):
    """Wrapper that copies everything and converts observations to the declared type.

    Reused arrays and wider floats have checks of their own, so Gymnasium's checker must not see them.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._copied(obs), deepcopy(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result: Any = self.env.step(deepcopy(action))
        obs, reward, terminated, truncated, info = result
        flags = [bool(flag) if isinstance(flag, np.bool_) else flag for flag in (terminated, truncated)]
        return self._copied(obs), deepcopy(reward), flags[0], flags[1], deepcopy(info)

    def _copied(self, obs: Any) -> Any:
        fault = obs_fault(self.observation_space, obs)
        if fault is not None and fault.status == "warning":
            return np.array(obs, dtype=self.observation_space.dtype)
        return deepcopy(obs)


def check_api(subject: Subject) -> Finding:
    """Run Gymnasium's own checker."""
    remedy = "see https://gymnasium.farama.org/api/env"
    with warnings.catch_warnings(record=True) as caught, closing(subject.make()) as env:
        warnings.simplefilter("always")
        # The checker resets without a seed and samples the action space: seed both here, so that it is repeatable.
        env.action_space.seed(subject.first_seed)
        env.reset(seed=subject.first_seed)
        try:
            check_env(_CopyingWrapper(without_make_wrappers(env)), skip_render_check=True, skip_close_check=True)
        except ActionMaskError:
            raise
        except Exception as error:
            text = _compact(str(error) if isinstance(error, AssertionError) else describe_error(error))
            if "truncates after 1 step" not in text:  # unusual, but harmless here
                return Finding("api", "problem", text, remedy)
    messages = [_compact(str(each.message)) for each in caught]
    relevant = list(dict.fromkeys(text for text in messages if not any(part in text for part in _IRRELEVANT)))
    if relevant:
        return Finding("api", "warning", "; ".join(relevant), remedy)
    return Finding("api", "ok", "it passes Gymnasium's checker")


def _compact(message: str) -> str:
    """Return the message as one line without terminal colours, short enough for a table."""
    plain = " ".join(re.sub(r"\x1b\[\d*m", "", message).split()).removeprefix("WARN: ")
    return plain if len(plain) <= _MAX_MESSAGE_LENGTH else f"{plain[: _MAX_MESSAGE_LENGTH - 3]}..."


def trainable_by(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> list[str]:
    """Return the names of the built-in algorithms that support these spaces."""
    try:
        PackedObservations(observation_space)
    except EnvironmentSetupError:
        return []
    if isinstance(action_space, spaces.Discrete):
        return ["dqn", "ppo"]
    if isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
        return ["ppo", "sac"] if action_space.is_bounded() else ["ppo"]
    return ["ppo"] if all(_ppo_acts_in(inner) for _, inner in nested_spaces(action_space)) else []


def _ppo_acts_in(space: spaces.Space[Any]) -> bool:
    is_float_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return is_float_box or isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def _unsupported_parts(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> list[str]:
    """Name the parts of both spaces that no algorithm supports, whatever the rest is."""
    return [
        f"{type(inner).__name__} ({'.'.join([what, *map(str, path)])})"
        for what, space in (("observation", observation_space), ("action", action_space))
        for path, inner in nested_spaces(space)
        if not isinstance(inner, (*LEAF_SPACES, spaces.Text))
    ]


def _seen_space(env: LegalActions) -> spaces.Space[Any]:
    """Return the observation space without the mask, which no network sees."""
    space = env.observation_space
    if env.masks is None or env.masks.entry is None or not isinstance(space, spaces.Dict):
        return space
    return spaces.Dict({key: inner for key, inner in space.spaces.items() if key != env.masks.entry})


def check_spaces(subject: Subject) -> Finding:
    """Report which algorithms can train with these spaces."""
    with closing(subject.make()) as env:
        observation_space, action_space = _seen_space(env), env.action_space
    kinds = f"{type(observation_space).__name__} observations, {type(action_space).__name__} actions"
    algorithms = trainable_by(observation_space, action_space)
    if not algorithms:
        remedy = (
            "use Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these, with floats for continuous "
            "actions; or wrap the env"
        )
        culprits = ", ".join(_unsupported_parts(observation_space, action_space)) or "these"
        return Finding("spaces", "problem", f"{kinds}: no algorithm supports {culprits}", remedy)
    described = (
        f"a network sees {describe_observations(observation_space)}; it chooses {describe_actions(action_space)}"
    )
    if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
        remedy = "declare finite bounds, so that sac can train it and ppo can scale its actions"
        return Finding(
            "spaces", "warning", f"{kinds} without finite bounds: trainable only with ppo; {described}", remedy
        )
    trainable = f"trainable with {' and '.join(algorithms)}; {described}"
    return Finding("spaces", "ok", f"{kinds}: {trainable}")


def check_mask(subject: Subject) -> Finding:
    """Report where the mask of legal actions comes from; an env without a mask has no such check."""
    observed = f"{OBSERVED}{MASK_NAME}"
    places = {"info": f'info["{MASK_NAME}"]', "method": f"{MASK_METHOD}()", observed: f'observation["{MASK_NAME}"]'}
    with closing(subject.make()) as env:
        place, masks = places[env.source], env.masks
    if masks is None:
        text = (
            f"{place} gives a mask, which is not used: algorithms use masks only for Discrete and MultiDiscrete "
            "actions, not for continuous ones"
        )
        return Finding("action mask", "warning", text, "set action_mask: off")
    text = f"{place} gives a mask with {masks.size} entries, and only legal actions were played"
    return Finding("action mask", "ok", text)
