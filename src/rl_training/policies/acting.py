"""Actors, which choose actions for some of the envs of a run while experience is collected, and their random numbers.

Each random number is a function of the run's seed, its purpose, the env, the step and its position. So it does not
matter which envs act together, in which process they act, or whether a step is repeated. The numbers are hashed
counters (SplitMix64; Steele, Lea and Flood 2014), which NumPy computes for many steps at once.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rl_training.policies.base import Array, Streams
from rl_training.policies.networks.protocol import Shape
from rl_training.streams import derive_keys

Kind = Literal["uniform", "normal", "gumbel", "logistic"]
NoiseParts = tuple[tuple[Kind, int], ...]
"""The kinds of the random numbers in a row, from left to right, and how many there are of each."""
Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_HALF = np.uint64(32)
_BLOCK_NUMBERS = 16_384  # computed at once: a fraction of a millisecond
_MAX_BLOCK_STEPS = 1_024


class Actor(Protocol):
    """Chooses the actions of some of the envs, with the newest parameters of a policy.

    Its random numbers depend only on the run's seed, the env's index and the step.
    """

    def act(self, obs: Array, step: int) -> Array:
        """Return actions for observations [env, ...] at env step `step`, in the policy's own space."""

    def to_env(self, actions: Array) -> Array:
        """Return what the envs receive for actions in the policy's own space."""

    def begin_episodes(self, begun: Array) -> None:
        """Note that the next step of the envs that `begun` [env] marks is the first of an episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next actions depend on besides parameters, observations and the step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an empty one is that of a new run."""


class Noise(Protocol):
    """Random numbers [env, size] for every step."""

    def at(self, step: int) -> Array:
        """Return the numbers for env step `step`."""

    def begin_episodes(self, begun: Array) -> None:
        """Note that the next step of the envs that `begun` [env] marks is the first of an episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next numbers depend on besides the step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""


def draw(kind: Kind, shape: Shape, stream: np.random.Generator) -> Array:
    """Draw numbers of one kind from an ordinary generator, for predictions."""
    if kind == "normal":
        return stream.standard_normal(shape, dtype=np.float32)
    if kind == "uniform":
        return stream.random(shape)
    drawn = stream.gumbel(size=shape) if kind == "gumbel" else stream.logistic(size=shape)
    return drawn.astype(np.float32)


def draw_rows(parts: NoiseParts, num_rows: int, source: np.random.Generator | Streams) -> Array:
    """Draw rows of numbers of several kinds for predictions, from one ordinary generator or from one per row."""
    if not isinstance(source, np.random.Generator):
        return np.vstack([draw_rows(parts, 1, own) for own in source])
    return np.hstack([draw(kind, (num_rows, size), source) for kind, size in parts])


class Draws:
    """Numbers [env, size] of one kind for some of the envs of a run, at any step."""

    def __init__(
        self, kind: Kind, size: int, *, seed: int, purpose: str, num_envs: int, envs: Sequence[int] | None = None
    ) -> None:
        """`num_envs` counts all envs of the run; `envs` are the indices of those that need numbers, none for all."""
        self._kind: Kind = kind
        self._size, self._num_envs = size, num_envs
        indices = np.arange(num_envs) if envs is None else np.array(envs)
        counters = (indices.astype(np.uint64)[:, None] + np.uint64(1)) * _GOLDEN
        self._keys = [_mix(counters + key) for key in derive_keys(seed, purpose, 2)]
        self._block_steps = min(max(_BLOCK_NUMBERS // max(len(indices) * size, 1), 1), _MAX_BLOCK_STEPS)
        self._first, self._block = 0, np.empty((0, len(indices), size))

    def at(self, step: int) -> Array:
        """Return the numbers [env, size] for the vector step that begins at env step `step`, counted over all envs."""
        number = step // self._num_envs
        if not self._first <= number < self._first + len(self._block):
            self._first, self._block = number, _transform(self._kind, self._hash(number))
        block: Array = self._block[number - self._first]
        return block

    def _hash(self, first: int) -> Keys:
        """Hash the counters of a block of steps, [step, env, size]."""
        counters = np.arange(first * self._size, (first + self._block_steps) * self._size, dtype=np.uint64)
        hashed = counters.reshape(self._block_steps, 1, self._size) * _GOLDEN + self._keys[0]
        return _mix(_mix(hashed) + self._keys[1])  # the second key separates envs whose first sums are equal

    def begin_episodes(self, begun: Array) -> None:
        """Do nothing: no number depends on an earlier one."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no number depends on an earlier one."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: no number depends on an earlier one."""


def _mix(hashed: Keys) -> Keys:
    """Scramble numbers in place."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        hashed ^= hashed >> shift
        hashed *= factor
    hashed ^= hashed >> _SHIFTS[-1]
    return hashed


def _transform(kind: Kind, hashed: Keys) -> Array:
    """Turn 64 random bits into a number of the given kind."""
    if kind == "uniform":
        return np.asarray((hashed >> np.uint64(11)) * 2.0**-53)
    if kind in ("gumbel", "logistic"):
        between = np.add(hashed >> np.uint64(12), 0.5) * 2.0**-52  # neither 0 nor 1
        numbers = -np.log(-np.log(between)) if kind == "gumbel" else np.log(between) - np.log1p(-between)
        return np.asarray(numbers, dtype=np.float32)
    radii = np.sqrt(-2.0 * np.log(np.add(hashed >> _HALF, 0.5) * 2.0**-32))  # Box and Muller 1958
    angles = np.multiply(hashed & np.uint64(2**32 - 1), 2.0 * math.pi * 2.0**-32)
    return np.asarray(radii * np.cos(angles), dtype=np.float32)


class JoinedDraws:
    """Numbers of several kinds side by side; each part has its own purpose, and therefore its own numbers."""

    def __init__(self, parts: Sequence[Draws]) -> None:
        self._parts = parts
        self.begin_episodes = parts[0].begin_episodes  # does nothing, like those of all parts
        self.state_dict = parts[0].state_dict
        self.load_state_dict = parts[0].load_state_dict

    def at(self, step: int) -> Array:
        """Return the numbers [env, size] of all parts for env step `step`."""
        return np.hstack([part.at(step) for part in self._parts])


class CorrelatedDraws:
    """Normal noise in which each env keeps a share of its last values, so that it explores in one direction for longer.

    The noise of a single step is standard normal, so log-probs and entropies stay valid. Each step must be drawn once,
    in order.
    """

    def __init__(self, draws: Draws, correlation: float, shape: Shape) -> None:
        self._draws = draws
        self._correlation = correlation
        self._innovation = math.sqrt(1.0 - correlation**2)
        self._last = np.zeros(shape, np.float32)
        self._begun = np.ones(shape[0], np.bool_)  # envs whose next step is the first of an episode

    def at(self, step: int) -> Array:
        """Return the noise [env, size] of the step: the next value of an AR(1) process per env."""
        # Simpler than the pink noise of Eberhard et al. 2023: it remembers only one number per env and dimension.
        fresh = self._draws.at(step)
        correlated = self._correlation * self._last + self._innovation * fresh
        self._last = np.where(self._begun[:, None], fresh, correlated).astype(np.float32)
        self._begun[:] = False
        return self._last

    def begin_episodes(self, begun: Array) -> None:
        """Start a new process at the next step of the envs that `begun` [env] marks."""
        self._begun |= begun

    def state_dict(self) -> dict[str, Any]:
        """Return the newest values."""
        return {"last": torch.tensor(self._last), "begun": torch.tensor(self._begun)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an empty one is that of new processes."""
        if state:
            self._last, self._begun = state["last"].numpy().copy(), state["begun"].numpy().copy()


class SampledPolicy(Protocol):
    """A policy whose actions are a function of observations and noise."""

    def sample(self, obs: Array, noise: Array) -> Array:
        """Return actions for observations [env, ...] and noise [env, size], in the policy's own space."""

    def to_env(self, actions: Array) -> Array:
        """Return what the envs receive for actions in the policy's own space."""


class SamplingActor:
    """Draws its actions from a policy's distribution."""

    def __init__(self, policy: SampledPolicy, noise: Noise) -> None:
        self._policy, self._noise = policy, noise
        self.to_env = policy.to_env
        self.begin_episodes = noise.begin_episodes
        self.state_dict = noise.state_dict
        self.load_state_dict = noise.load_state_dict

    def act(self, obs: Array, step: int) -> Array:
        """Return actions drawn for observations [env, ...]."""
        return self._policy.sample(obs, self._noise.at(step))


class WarmUpActor:
    """Acts uniformly between -1 and 1 before env step `until`, then as another actor does."""

    def __init__(self, actor: Actor, uniform: Draws, until: int) -> None:
        self._actor, self._uniform, self._until = actor, uniform, until
        self.to_env = actor.to_env
        self.begin_episodes = actor.begin_episodes
        self.state_dict = actor.state_dict
        self.load_state_dict = actor.load_state_dict

    def act(self, obs: Array, step: int) -> Array:
        """Return uniform actions, or those of the other actor after the warm-up."""
        if step < self._until:
            return (2.0 * self._uniform.at(step) - 1.0).astype(np.float32)
        return self._actor.act(obs, step)
