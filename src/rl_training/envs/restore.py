"""Bringing an env back to where an episode was: by its own state if it offers one, else by replaying its actions.

An env that is a function of its seed and its actions is reproduced to the last bit by replaying them. Copying or
pickling the env object instead would be silently wrong for simulators that keep their state outside of Python.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Env
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

from rl_training.envs.samples import RunningEpisode
from rl_training.errors import CheckpointError, describe_error

AnyEnv = Env[Any, Any]

# Nothing around the env may have a memory, but for a time limit, which `_set_state` sets.
_PLAIN_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics)
_STICKY_TRIES = 50  # an action is repeated with a probability of a quarter


@dataclass(frozen=True)
class Restored:
    """What an env shows after it was brought back, or why it could not be."""

    obs: Any
    failure: str | None = None


def restore_env(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    """As `bring_back`; an exception is one more reason why it could not be."""
    try:
        return bring_back(env, episode, expected_obs)
    except Exception as error:  # an env that fails only now is no function of its seed and actions
        return Restored(None, f"replaying its actions raised {describe_error(error)}")


def bring_back(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    """Bring `env` to where `episode` was; it must then show `expected_obs`, after the same return."""
    reason = unreplayable(episode)
    if reason:
        return Restored(None, reason)
    return _replay(env, episode, expected_obs) if episode.state is None else _set_state(env, episode, expected_obs)


def unreplayable(episode: RunningEpisode) -> str | None:
    """Return why an episode cannot be brought back at all; none if it can be tried."""
    if episode.seed is None:
        return "the seed of its episode is not known"
    if episode.state is None and episode.actions is None:
        return f"its episode of {episode.length} steps is too long to replay"
    return None


def _replay(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    obs, _ = env.reset(seed=episode.seed)
    total = 0.0
    for step, action in enumerate(episode.actions if episode.actions is not None else (), start=1):
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            return Restored(None, f"the replayed episode ended with step {step} of {episode.length}")
    if not same_values(in_its_type(env, obs), expected_obs):
        return Restored(None, "replaying its actions led to another observation")
    if total != episode.episode_return:
        return Restored(None, f"replaying its actions gave the return {total}, not {episode.episode_return}")
    return Restored(obs)


def in_its_type(env: AnyEnv, obs: Any) -> Any:
    """Convert an observation to its space's type, in which batches hold it."""
    space = env.observation_space
    return obs if space.shape is None else np.asarray(obs, dtype=space.dtype)


def _set_state(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    own = own_state(env)
    if own is None:
        return Restored(None, "it no longer gives and takes its state")
    env.reset(seed=episode.seed)
    own.set(unpack_state(episode.state), episode)
    if not same_values(pack_state(own.get()), episode.state):
        return Restored(None, "its set_state() does not bring back what get_state() gave")
    layer: Any = env
    while layer is not env.unwrapped:  # the env's own state knows nothing of a time limit around it
        if isinstance(layer, TimeLimit):
            layer._elapsed_steps = episode.length  # type: ignore[assignment]  # declared as None, its first value
        layer = layer.env
    return Restored(expected_obs)


def capture_state(env: AnyEnv) -> Any:
    """The env's own state, ready for a checkpoint; none when it does not offer one."""
    own = own_state(env)
    return None if own is None else pack_state(own.get())


@dataclass(frozen=True)
class OwnState:
    """How an env gives and takes its whole state."""

    get: Callable[[], Any]
    set: Callable[[Any, RunningEpisode], object]


def own_state(env: AnyEnv) -> OwnState | None:
    """How to get and set the env's state: by its own methods, or by those of the Atari emulator; none if it has none.

    A wrapper around the one that offers its state may remember something itself, such as the last actions. Only a
    replay brings such a memory back.
    """
    layer: Any = env
    while type(layer) in _PLAIN_WRAPPERS:
        layer = layer.env
    get_state, set_state = getattr(layer, "get_state", None), getattr(layer, "set_state", None)
    if callable(get_state) and callable(set_state):
        return OwnState(get_state, lambda state, _: set_state(state))
    if layer is env.unwrapped and type(layer).__module__.startswith("ale_py."):
        return _emulator_state(layer)  # its long episodes replay slowly
    return None


def _emulator_state(emulator: Any) -> OwnState:
    from ale_py import ALEState

    def get() -> dict[str, Any]:
        state = emulator.clone_state(include_rng=True).serialize()
        return {"emulator": state, "generator": emulator.np_random.bit_generator.state}

    def set_back(state: dict[str, Any], episode: RunningEpisode) -> None:
        if episode.actions is not None and episode.length:
            # A sticky action is the one before, which no state holds: repeated, one of these is not sticky.
            for _ in range(_STICKY_TRIES):
                emulator.ale.act(emulator._action_set[int(episode.actions[-1])])
        emulator.restore_state(ALEState(state["emulator"]))
        emulator.np_random.bit_generator.state = state["generator"]

    return OwnState(get, set_back)


def pack_state(state: Any) -> Any:
    """Arrays to tensors, so that a checkpoint takes them; a tuple becomes a list, what is not plain is refused."""
    if isinstance(state, (np.ndarray, np.generic)):
        return torch.from_numpy(np.array(state))
    if isinstance(state, dict):
        return {key: pack_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [pack_state(value) for value in state]
    if state is None or isinstance(state, (bool, int, float, str, bytes)):
        return state
    raise CheckpointError(
        f"get_state() of the environment holds a {type(state).__name__}: give arrays and plain values"
    )


def unpack_state(state: Any) -> Any:
    """What `pack_state` was given, with lists for tuples."""
    if isinstance(state, torch.Tensor):
        return state.numpy().copy()
    if isinstance(state, dict):
        return {key: unpack_state(value) for key, value in state.items()}
    if isinstance(state, list):
        return [unpack_state(value) for value in state]
    return state


def same_values(left: Any, right: Any) -> bool:
    """Whether two trees of arrays, tensors and plain values are equal to the last bit; NaN equals NaN."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_values(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_values, left, right))
    first, second = np.asarray(left), np.asarray(right)
    if first.dtype.kind in "fc" and second.dtype.kind in "fc":
        return np.array_equal(first, second, equal_nan=True)
    return np.array_equal(first, second)
