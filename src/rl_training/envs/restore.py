"""Restore an env to the middle of an episode: with its own state if it offers one, else by replaying its actions.

Replaying reproduces an env bit for bit if it is a function of its seed and its actions. Copying or pickling the env
object would be silently wrong for simulators that keep their state outside of Python.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

from rl_training.envs.changes import PendingChanges
from rl_training.envs.layers import AnyEnv, layers_of
from rl_training.envs.packed import PackedEnv
from rl_training.envs.plain import pack_state, unpack_state
from rl_training.envs.samples import RunningEpisode
from rl_training.errors import describe_error

# Wrappers without a state of their own, except for the time limit, which `_set_state` sets.
_PLAIN_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, PackedEnv)
_STICKY_TRIES = 50  # each is sticky with a probability of 1/4


@dataclass(frozen=True)
class Restored:
    """The observation of a restored env, or the reason why it could not be restored."""

    obs: Any
    failure: str | None = None


def restore_env(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    """Restore an env like `restore_or_raise`, but return an exception as the failure."""
    try:
        return restore_or_raise(env, episode, expected_obs)
    except Exception as error:  # an env that fails only now is not a function of its seed and actions
        return Restored(None, f"replaying its actions raised {describe_error(error)}")


def restore_or_raise(env: AnyEnv, episode: RunningEpisode, expected_obs: Any) -> Restored:
    """Restore `env` to the newest step of `episode`; it must then show `expected_obs` and have the same return."""
    changes = PendingChanges(env, episode.changes, partial(env.reset, seed=episode.seed))
    try:
        reason = why_not_restorable(episode)
        if reason:
            return Restored(None, reason)
        restore = _replay if episode.state is None else _set_state
        return restore(env, episode, expected_obs, changes)
    finally:
        changes.make_all()  # also after a failure, because the env then begins a new episode


def why_not_restorable(episode: RunningEpisode) -> str | None:
    """Return why an episode cannot be restored at all; none if it may be possible."""
    if episode.seed is None:
        return "the seed of its episode is not known"
    if episode.state is None and episode.actions is None:
        return f"its episode of {episode.length} steps is too long to replay"
    return None


def _replay(env: AnyEnv, episode: RunningEpisode, expected_obs: Any, changes: PendingChanges) -> Restored:
    changes.make_before_episode()
    obs, _ = env.reset(seed=episode.seed)
    total = 0.0
    for step, action in enumerate(episode.actions if episode.actions is not None else (), start=1):
        changes.make_before(step)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            return Restored(None, f"the replayed episode ended after step {step} of {episode.length}")
    if not same_values(to_space_dtype(env, obs), expected_obs):
        return Restored(None, "replaying its actions led to another observation")
    if total != episode.episode_return:
        return Restored(None, f"replaying its actions gave the return {total}, not {episode.episode_return}")
    return Restored(obs)


def to_space_dtype(env: AnyEnv, obs: Any) -> Any:
    """Convert an observation to its space's type, as in a batch."""
    space = env.observation_space
    return obs if space.shape is None else np.asarray(obs, dtype=space.dtype)


def _set_state(env: AnyEnv, episode: RunningEpisode, expected_obs: Any, changes: PendingChanges) -> Restored:
    own = own_state(env)
    if own is None:
        return Restored(None, "it no longer has get_state() and set_state()")
    changes.make_before_episode()
    env.reset(seed=episode.seed)
    changes.make_all()  # before the state is set, because it contains the later effects of these changes
    own.set(unpack_state(episode.state), episode)
    if not same_values(pack_state(own.get()), episode.state):
        return Restored(None, "its set_state() does not restore what get_state() returned")
    for layer in layers_of(env):  # the env's own state does not include a time limit around it
        if isinstance(layer, TimeLimit):
            layer._elapsed_steps = episode.length  # type: ignore[assignment]  # declared as None, its first value
    return Restored(expected_obs)


def capture_state(env: AnyEnv) -> Any:
    """Return the env's own state in a form for checkpoints; none if the env does not offer one."""
    own = own_state(env)
    return None if own is None else pack_state(own.get())


@dataclass(frozen=True)
class OwnState:
    """Functions that get and set the whole state of an env."""

    get: Callable[[], Any]
    set: Callable[[Any, RunningEpisode], object]


def own_state(env: AnyEnv) -> OwnState | None:
    """Return the env's own `get_state` and `set_state`, or those of the Atari emulator; none if there are none.

    A wrapper around the env may have a state of its own, such as the last actions. Only a replay restores that, so only
    wrappers without a state are skipped here.
    """
    layer: Any = env
    while type(layer) in _PLAIN_WRAPPERS:
        layer = layer.env
    get_state, set_state = getattr(layer, "get_state", None), getattr(layer, "set_state", None)
    if callable(get_state) and callable(set_state):
        return OwnState(get_state, lambda state, _: set_state(state))
    if layer is env.unwrapped and type(layer).__module__.startswith("ale_py."):
        return _emulator_state(layer)  # replaying its long episodes is slow
    return None


def _emulator_state(emulator: Any) -> OwnState:
    from ale_py import ALEState

    def get() -> dict[str, Any]:
        state = emulator.clone_state(include_rng=True).serialize()
        return {"emulator": state, "generator": emulator.np_random.bit_generator.state}

    def set_back(state: dict[str, Any], episode: RunningEpisode) -> None:
        if episode.actions is not None and episode.length:
            # A sticky action repeats the previous one, which no state contains. Repeat it until one try is not sticky.
            for _ in range(_STICKY_TRIES):
                emulator.ale.act(emulator._action_set[int(episode.actions[-1])])
        emulator.restore_state(ALEState(state["emulator"]))
        emulator.np_random.bit_generator.state = state["generator"]

    return OwnState(get, set_back)


def same_values(left: Any, right: Any) -> bool:
    """Return whether two trees of arrays, tensors and plain values are exactly equal; NaN equals NaN."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_values(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_values, left, right))
    first, second = np.asarray(left), np.asarray(right)
    if first.dtype.kind in "fc" and second.dtype.kind in "fc":
        return np.array_equal(first, second, equal_nan=True)
    return np.array_equal(first, second)
