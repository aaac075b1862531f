"""Action distributions, one per kind of action space: drawn in NumPy while acting, scored in torch while learning.

A distribution also converts its actions, which lie in the policy's own space, to those that the env takes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rl_training.errors import EnvironmentSetupError
from rl_training.packing import Leaf, PackedActions
from rl_training.policies.acting import NoiseParts
from rl_training.policies.base import Array
from rl_training.policies.decoding import ActionPart
from rl_training.policies.networks.protocol import FloatArray, Shape

LOG_STD = "log_std"
SUPPORTED_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, Box of floats, and Dict and Tuple of these"
_WIDEST = 1e30  # a half range beyond this stands for "no bound"
ILLEGAL = -1e30
"""The output for a choice that a mask forbids.

With at least one legal choice, the probability of an illegal one is exactly 0. This output is finite, so that 0 times
the output, or times its log-probability, is 0 and not NaN.
"""
_EXACT_FLOATS = 2**24  # float32 holds all integers up to here


class ActionDistribution(Protocol):
    """A distribution over the actions of one kind of space; the actor's outputs are its parameters."""

    num_outputs: int
    """Outputs the actor network needs."""
    noise: NoiseParts
    """The random numbers that one action is made of: their kinds, in order, and how many there are of each."""
    mask_size: int
    """The number of choices that a mask of legal actions covers; 0 if the distribution cannot use masks."""
    shapes: dict[str, Shape]
    """Parameters of the distribution itself, besides the network's."""
    action_shape: Shape
    action_dtype: torch.dtype

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The rules by which the outputs become the likeliest action, one for each part of a nested action."""

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one action per row, drawn with the random numbers `noise` [batch, number].

        `masks` [batch, mask_size] are true for legal choices; none: all choices are legal.
        """

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the likeliest legal action per row."""

    def to_env(self, actions: Array) -> Array:
        """Return what the env receives for these actions."""

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "Scores":
        """Compute how likely these actions are."""


class Scores(Protocol):
    """Log-probabilities and entropies of a batch, and how to differentiate them."""

    logprobs: Tensor  # [batch]
    entropies: Tensor  # [batch]

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the gradients of a loss for the actor's outputs and for the distribution's own parameters.

        `logprob_gradients` [batch] are those for the log-probs, `entropy_gradient` is that for each of the entropies.
        """


class Categorical:
    """A softmax over the actions of a Discrete space."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_outputs = self.mask_size = int(space.n)
        self.noise: NoiseParts = (("gumbel", self.num_outputs),)
        self.shapes: dict[str, Shape] = {}
        self.action_shape: Shape = ()
        self.action_dtype = torch.int64
        self._start = int(space.start)

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The action with the highest output."""
        return (_choices((self.num_outputs,), np.array([self._start]), (), np.dtype(np.int64)),)

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one action per row by the Gumbel-max trick, which needs no normalisation."""
        del params
        drawn: Array = (_legal_array(outputs, masks) + noise).argmax(axis=1)
        return drawn

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the likeliest legal action per row."""
        likeliest: Array = _legal_array(outputs, masks).argmax(axis=1)
        return likeliest

    def to_env(self, actions: Array) -> Array:
        """Return the actions with the start of the space added."""
        return actions + self._start if self._start else actions

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "CategoricalScores":
        """Compute how likely these actions are."""
        del params
        return CategoricalScores(outputs, actions, masks)


def _legal_array(outputs: FloatArray, masks: Array | None) -> FloatArray:
    """Replace the logits of illegal choices."""
    return outputs if masks is None else np.where(masks, outputs, np.float32(ILLEGAL))


class CategoricalScores:
    """Log-probs and entropies [...] under a softmax of `outputs` [..., choice] over the choices that are legal."""

    def __init__(self, outputs: Tensor, actions: Tensor, masks: Tensor | None = None) -> None:
        self._actions, self._masks = actions.unsqueeze(-1), masks
        legal = outputs if masks is None else torch.where(masks, outputs, ILLEGAL)
        self._logprobs = torch.log_softmax(legal, dim=-1)
        self._probs = self._logprobs.exp()
        self.logprobs = self._logprobs.gather(-1, self._actions).squeeze(-1)
        self.entropies = -(self._probs * self._logprobs).sum(dim=-1)

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """d log p(a) / d output = [output is a's] - p, and d entropy / d output = -p (log p + entropy)."""
        gradients = logprob_gradients.unsqueeze(-1)
        outputs = (self._probs * -gradients).scatter_add_(-1, self._actions, gradients)
        if entropy_gradient:
            outputs -= entropy_gradient * self._probs * (self._logprobs + self.entropies.unsqueeze(-1))
        # The probability of an illegal choice is 0 already, unless all choices of a row are illegal.
        return outputs if self._masks is None else torch.where(self._masks, outputs, 0.0), {}


def _choices(choices: tuple[int, ...], first: Array, shape: Shape, dtype: np.dtype[Any]) -> ActionPart:
    columns = slice(0, sum(choices))
    return ActionPart(
        kind="choices", outputs=columns, masks=columns, shape=shape, dtype=np.dtype(dtype), choices=choices, first=first
    )


class MultiCategorical:
    """One softmax for each number of a MultiDiscrete action, independent of each other."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self._choices = [int(number) for number in space.nvec.ravel()]
        self.num_outputs = self.mask_size = sum(self._choices)
        self.noise: NoiseParts = (("gumbel", self.num_outputs),)
        self.shapes: dict[str, Shape] = {}
        self.action_shape: Shape = (len(self._choices),)
        self.action_dtype = torch.int64
        self._start = space.start.ravel()
        self._env_shape, self._env_dtype = space.shape, space.dtype
        self._most = max(self._choices)
        exists = np.arange(self._most) < np.array(self._choices)[:, None]
        self._places = np.flatnonzero(exists)  # of all choices, in a table with a row for each number

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The choice with the highest output for every number."""
        return (_choices(tuple(self._choices), self._start, self._env_shape, self._env_dtype),)

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one action [batch, number] per row by the Gumbel-max trick."""
        del params
        return self._best(_legal_array(outputs, masks) + noise)

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the likeliest legal action [batch, number] per row."""
        return self._best(_legal_array(outputs, masks))

    def _best(self, scores: FloatArray) -> Array:
        """Return the choice with the highest score for every number."""
        table = np.full((len(scores), len(self._choices) * self._most), -np.inf, np.float32)
        table[:, self._places] = scores
        best: Array = table.reshape(len(scores), -1, self._most).argmax(axis=2)
        return best

    def to_env(self, actions: Array) -> Array:
        """Return the actions with the start of the space added, in its shape."""
        return (actions + self._start).reshape(len(actions), *self._env_shape).astype(self._env_dtype, copy=False)

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "MultiCategoricalScores":
        """Compute how likely these actions are."""
        del params
        return MultiCategoricalScores(outputs, actions, self._choices, masks)


class MultiCategoricalScores:
    """Log-probs and entropies [batch] under one softmax per number of an action, summed over the numbers.

    Numbers with fewer `choices` than others are padded with illegal choices, so that all numbers are scored at once.
    """

    def __init__(self, outputs: Tensor, actions: Tensor, choices: Sequence[int], masks: Tensor | None = None) -> None:
        self._choices, self._masks = choices, masks
        legal = outputs if masks is None else torch.where(masks, outputs, ILLEGAL)
        self._scores = CategoricalScores(self._separate(legal), actions)
        self.logprobs, self.entropies = self._scores.logprobs.sum(dim=1), self._scores.entropies.sum(dim=1)

    def _separate(self, outputs: Tensor) -> Tensor:
        """Arrange outputs [batch, choice of any number] as [batch, number, choice]."""
        most = max(self._choices)
        if len(self._choices) * most == outputs.shape[1]:
            return outputs.reshape(len(outputs), -1, most)
        numbers = torch.split_with_sizes(outputs, self._choices, dim=1)
        return torch.stack([functional.pad(each, (0, most - each.shape[1]), value=ILLEGAL) for each in numbers], dim=1)

    def _join(self, separate: Tensor) -> Tensor:
        """Undo `_separate`."""
        if len(self._choices) * separate.shape[2] == sum(self._choices):
            return separate.flatten(1)
        return torch.cat([separate[:, number, :count] for number, count in enumerate(self._choices)], dim=1)

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Pass the gradient of the sums on to every softmax."""
        gradients = logprob_gradients.unsqueeze(1).expand(-1, len(self._choices))
        outputs = self._join(self._scores.backward(gradients, entropy_gradient)[0])
        return outputs if self._masks is None else torch.where(self._masks, outputs, 0.0), {}


class Bernoulli:
    """One coin for each number of a MultiBinary action, independent of each other."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.num_outputs = int(np.prod(space.shape))
        self.noise: NoiseParts = (("logistic", self.num_outputs),)
        self.mask_size = 0
        self.shapes: dict[str, Shape] = {}
        self.action_shape: Shape = (self.num_outputs,)
        self.action_dtype = torch.int64
        self._env_shape, self._env_dtype = space.shape, space.dtype

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """One part of bits: 1 for every positive output, 0 for the others."""
        columns = slice(0, self.num_outputs)
        return (ActionPart(kind="bits", outputs=columns, shape=self._env_shape, dtype=np.dtype(self._env_dtype)),)

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one action [batch, number] per row: a logistic number exceeds -x with probability sigmoid(x)."""
        del params, masks
        return (outputs + noise > 0.0).astype(np.int64)

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the likeliest action [batch, number] per row."""
        del masks
        return (outputs > 0.0).astype(np.int64)

    def to_env(self, actions: Array) -> Array:
        """Return the same numbers in the env's shape and type."""
        return actions.reshape(len(actions), *self._env_shape).astype(self._env_dtype, copy=False)

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "BernoulliScores":
        """Compute how likely these actions are."""
        del params, masks
        return BernoulliScores(outputs, actions)


class BernoulliScores:
    """Log-probs and entropies [batch] of coins that show 1 with probability sigmoid(output), summed over the coins."""

    def __init__(self, outputs: Tensor, actions: Tensor) -> None:
        self._outputs, self._actions = outputs, actions.to(outputs.dtype)
        self._probs, self._opposite_probs = torch.sigmoid(outputs), torch.sigmoid(-outputs)
        surprises, opposite_surprises = functional.softplus(-outputs), functional.softplus(outputs)
        self.logprobs = -torch.where(actions > 0, surprises, opposite_surprises).sum(dim=1)
        self.entropies = (self._probs * surprises + self._opposite_probs * opposite_surprises).sum(dim=1)

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """d log p(a) / d output = a - p, and d entropy / d output = -output p (1 - p)."""
        outputs = logprob_gradients.unsqueeze(1) * (self._actions - self._probs)
        if entropy_gradient:
            outputs -= entropy_gradient * self._outputs * self._probs * self._opposite_probs
        return outputs, {}


class BoundedActions:
    """The scale of continuous actions: -1 and 1 of the policy stand for the env's bounds where both are finite."""

    def __init__(self, space: spaces.Box) -> None:
        self.size = int(np.prod(space.shape))
        self._env_shape, self._env_dtype = space.shape, space.dtype
        self._low, self._high = space.low.ravel(), space.high.ravel()
        low, high = np.nan_to_num(self._low.astype(np.float64)), np.nan_to_num(self._high.astype(np.float64))
        bounded = high / 2 - low / 2 < _WIDEST
        self._middle = np.where(bounded, high / 2 + low / 2, 0.0).astype(np.float32)
        self._half_range = np.where(bounded, high / 2 - low / 2, 1.0).astype(np.float32)

    def part(self, *, squash: bool = False) -> ActionPart:
        """Describe how the first outputs of a network, or their tanh, become the env's action."""
        return ActionPart(
            kind="numbers",
            outputs=slice(0, self.size),
            shape=self._env_shape,
            dtype=np.dtype(self._env_dtype),
            squash=squash,
            middle=self._middle,
            half_range=self._half_range,
            low=self._low,
            high=self._high,
        )

    def to_env(self, actions: Array) -> Array:
        """Return the actions scaled and clipped to the bounds of the env, in its shape."""
        scaled = np.clip(self._middle + actions * self._half_range, self._low, self._high)
        return scaled.reshape(len(actions), *self._env_shape).astype(self._env_dtype, copy=False)


class DiagonalGaussian:
    """Independent normals with a learned spread that does not depend on the observation.

    The actions drawn are unbounded; only `to_env` clips them.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._actions = BoundedActions(space)
        self.to_env = self._actions.to_env
        self.num_outputs = self._actions.size
        self.noise: NoiseParts = (("normal", self.num_outputs),)
        self.mask_size = 0
        self.shapes: dict[str, Shape] = {LOG_STD: (self.num_outputs,)}
        self.action_shape: Shape = (self.num_outputs,)
        self.action_dtype = torch.float32

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The means, in the bounds of the env."""
        return (self._actions.part(),)

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one unclipped action per row."""
        del masks
        drawn: Array = outputs + noise * np.exp(params[LOG_STD])
        return drawn

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the means."""
        del masks
        return outputs

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "GaussianScores":
        """Compute how likely these actions are."""
        del masks
        return GaussianScores(outputs, params[LOG_STD], actions)


class GaussianScores:
    """Log-probs and entropies [batch] under normals around `means` [batch, dim], summed over the dimensions."""

    def __init__(self, means: Tensor, log_std: Tensor, actions: Tensor) -> None:
        self._precision = torch.exp(-log_std)
        self._deviations = (actions - means) * self._precision
        self._squares = self._deviations.square()
        log_scale = log_std.sum() + 0.5 * len(log_std) * math.log(2 * math.pi)
        self.logprobs = -0.5 * self._squares.sum(dim=1) - log_scale
        self.entropies = (log_scale + 0.5 * len(log_std)).expand(len(actions))

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, d H / d log std = 1."""
        gradients = logprob_gradients.unsqueeze(1)
        log_std = (gradients * (self._squares - 1.0)).sum(dim=0) + entropy_gradient * len(gradients)
        return gradients * self._deviations * self._precision, {LOG_STD: log_std}


@dataclass(frozen=True)
class _Part:
    """One part of a nested action, with its columns in the arrays that belong to the whole action."""

    distribution: ActionDistribution
    outputs: slice
    noise: slice
    actions: slice
    masks: slice
    log_std: slice

    def own_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part's share of the distribution's parameters."""
        return {LOG_STD: params[LOG_STD][self.log_std]} if self.distribution.shapes else {}

    def own_masks(self, masks: Any) -> Any:
        """Return the part's share of the masks; none if it cannot use masks."""
        return None if masks is None or not self.distribution.mask_size else masks[:, self.masks]

    def own_actions(self, rows: Array) -> Array:
        """Return the part's share of actions [batch, column], in its own shape and type."""
        kind = np.int64 if self.distribution.action_dtype is torch.int64 else np.float32
        return rows[:, self.actions].astype(kind).reshape(len(rows), *self.distribution.action_shape)

    def score(self, params: Mapping[str, Tensor], outputs: Tensor, rows: Tensor, masks: Tensor | None) -> Scores:
        """Compute how likely the part's share of actions [batch, column] is."""
        own = rows[:, self.actions].to(self.distribution.action_dtype)
        actions = own.reshape(len(rows), *self.distribution.action_shape)
        return self.distribution.score(
            self.own_params(params), outputs[:, self.outputs], actions, self.own_masks(masks)
        )


class Product:
    """The distributions of all parts of a nested action, independent of each other.

    Masks cover the choices of the Discrete and MultiDiscrete parts, in the order of the parts. The deviations of all
    continuous parts are one parameter.
    """

    def __init__(self, space: PackedActions) -> None:
        if not space.leaves:
            raise EnvironmentSetupError(f"action space {space.original} has no part that a policy could choose")
        distributions = [_build_part(leaf) for leaf in space.leaves]
        self._parts = tuple(_divide(distributions, space.leaves))
        self.num_outputs = sum(each.num_outputs for each in distributions)
        self.mask_size = sum(each.mask_size for each in distributions)
        self.noise: NoiseParts = tuple(part for each in distributions for part in each.noise)
        num_deviations = self._parts[-1].log_std.stop
        self.shapes: dict[str, Shape] = {LOG_STD: (num_deviations,)} if num_deviations else {}
        self.action_shape: Shape = space.shape
        self.action_dtype = torch.float32
        bounds = [_exact_bounds(leaf) for leaf in space.leaves]
        self._low, self._high = (np.concatenate(sides) for sides in zip(*bounds, strict=True))
        self._leaves = space.leaves

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """The parts of the action, each with its columns of the outputs and of the masks."""
        return tuple(self._place(part, leaf) for part, leaf in zip(self._parts, self._leaves, strict=True))

    def _place(self, part: _Part, leaf: Leaf) -> ActionPart:
        (own,) = part.distribution.parts
        masks = part.masks if part.distribution.mask_size else None
        placed = replace(own, path=leaf.path, outputs=part.outputs, masks=masks)
        if own.kind != "numbers":
            return placed
        return replace(placed, low=self._low[part.actions], high=self._high[part.actions])

    def sample(
        self, params: Mapping[str, FloatArray], outputs: FloatArray, noise: Array, masks: Array | None = None
    ) -> Array:
        """Return one action per row; its parts are drawn from their own columns of outputs and noise."""
        return _join(
            part.distribution.sample(
                part.own_params(params), outputs[:, part.outputs], noise[:, part.noise], part.own_masks(masks)
            )
            for part in self._parts
        )

    def mode(self, outputs: FloatArray, masks: Array | None = None) -> Array:
        """Return the likeliest legal action per row."""
        return _join(part.distribution.mode(outputs[:, part.outputs], part.own_masks(masks)) for part in self._parts)

    def to_env(self, actions: Array) -> Array:
        """Return the env actions of all parts as rows of numbers."""
        rows = _join(part.distribution.to_env(part.own_actions(actions)) for part in self._parts)
        return np.clip(rows, self._low, self._high)

    def score(
        self, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None = None
    ) -> "ProductScores":
        """Compute how likely these actions are."""
        return ProductScores([part.score(params, outputs, actions, masks) for part in self._parts])


class ProductScores:
    """Log-probs and entropies [batch], summed over the parts of an action."""

    def __init__(self, parts: Sequence[Scores]) -> None:
        self._parts = parts
        self.logprobs = torch.stack([part.logprobs for part in parts]).sum(dim=0)
        self.entropies = torch.stack([part.entropies for part in parts]).sum(dim=0)

    def backward(self, logprob_gradients: Tensor, entropy_gradient: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Pass the gradient of the sums on to every part."""
        found = [part.backward(logprob_gradients, entropy_gradient) for part in self._parts]
        log_std = [params[LOG_STD] for _, params in found if params]
        return torch.cat([outputs for outputs, _ in found], dim=1), {LOG_STD: torch.cat(log_std)} if log_std else {}


def _divide(distributions: Sequence[ActionDistribution], leaves: Sequence[Leaf]) -> Iterator[_Part]:
    """Give every part its columns, one part after the other."""
    ends = [0, 0, 0, 0]
    for each, leaf in zip(distributions, leaves, strict=True):
        num_noise = sum(size for _, size in each.noise)
        num_deviations = sum(size for (size,) in each.shapes.values())
        starts, sizes = ends, (each.num_outputs, num_noise, each.mask_size, num_deviations)
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        outputs, noise, masks, log_std = map(slice, starts, ends)
        yield _Part(each, outputs, noise, slice(leaf.start, leaf.start + leaf.size), masks, log_std)


def _join(actions: Iterable[Array]) -> Array:
    """Return the actions [batch, ...] of all parts side by side, as rows of numbers."""
    return np.hstack([each.reshape(len(each), -1).astype(np.float32, copy=False) for each in actions])


def _exact_bounds(leaf: Leaf) -> tuple[Array, Array]:
    """Return the lowest and the highest float32 numbers within the bounds of a part, which may be of float64."""
    if not isinstance(leaf.space, spaces.Box):
        return np.full(leaf.size, -np.inf, np.float32), np.full(leaf.size, np.inf, np.float32)
    low, high = leaf.space.low.ravel(), leaf.space.high.ravel()
    with np.errstate(over="ignore"):
        lowest, highest = low.astype(np.float32), high.astype(np.float32)
    lowest = np.where(lowest < low, np.nextafter(lowest, np.float32(np.inf)), lowest)
    return lowest, np.where(highest > high, np.nextafter(highest, np.float32(-np.inf)), highest)


def _build_part(leaf: Leaf) -> ActionDistribution:
    """Return the distribution for one part of a nested action."""
    if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)):
        assert leaf.choices is not None
        furthest = max(np.abs(leaf.first_choice).max(), np.abs(leaf.first_choice + leaf.choices).max())
        if furthest > _EXACT_FLOATS:
            raise EnvironmentSetupError(
                f"action space {leaf.space} ({leaf.name}) has values beyond {_EXACT_FLOATS}, which a row of float32 "
                "numbers cannot hold; wrap the env so that it starts at 0"
            )
    return _build_single(leaf.space, f" ({leaf.name})")


def _build_single(space: spaces.Space[Any], name: str = "") -> ActionDistribution:
    """Return the distribution for a space that is not nested; `name` is for the error message."""
    if isinstance(space, spaces.Discrete):
        return Categorical(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian(space)
    raise EnvironmentSetupError(
        f"action space {type(space).__name__}{name} is not supported here; supported: {SUPPORTED_ACTIONS}. "
        "Wrap the env with a gymnasium.ActionWrapper"
    )


def build_distribution(space: spaces.Space[Any]) -> ActionDistribution:
    """Return the distribution for an action space."""
    return Product(space) if isinstance(space, PackedActions) else _build_single(space)
