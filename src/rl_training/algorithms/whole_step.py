"""A gradient step as one graph, from the batch to the new parameters, made to be compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Batch
from rl_training.policies.flat import FlatLayout

Settings = Mapping[str, float | Tensor]
Networks = Mapping[str, Mapping[str, Tensor]]
"""The named parameters of every network that a slope depends on."""

ADAM_BETAS = (0.9, 0.999)


class Slope(NamedTuple):
    """How a loss changes with the parameters."""

    gradient: Tensor  # flat
    watched: Tensor  # numbers to watch, the loss first
    errors: Tensor | None = None  # per transition, where priorities depend on them


SlopeFn = Callable[[Networks, Batch, Settings], Slope]
"""The slope of a learner's loss in the first of the networks; it depends on nothing else that changes."""


def with_norm(slope: Slope) -> Tensor:
    """The watched numbers, and the norm of the gradient."""
    return torch.cat([slope.watched, torch.linalg.vector_norm(slope.gradient).reshape(1)])


@dataclass(frozen=True)
class WholeStep:
    """One graph from the batch to the new parameters: slope, clipping, Adam; only while all is finite.

    Its inputs are the flat parameters of every network, the moments and the step count of Adam, the batch and the
    settings, in this order.
    """

    slope: SlopeFn
    layouts: dict[str, FlatLayout]  # of the networks, the first of which moves
    batch: tuple[str, ...]
    settings: tuple[str, ...]
    eps: float
    max_norm: float

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take the step from plain operations, which a compiler fuses."""
        given = iter(inputs)
        flats = {name: next(given) for name in self.layouts}
        moments = [next(given) for _ in range(3)]
        batch = {name: next(given) for name in self.batch}
        settings = {name: next(given) for name in self.settings}
        networks = {name: layout.tensors(flats[name]) for name, layout in self.layouts.items()}
        slope = self.slope(networks, batch, settings)
        watched = with_norm(slope)
        gradient = slope.gradient * torch.clamp(self.max_norm / (watched[-1] + 1e-6), max=1.0)
        accepted = torch.isfinite(watched[0] + watched[-1])
        self._move([next(iter(flats.values())), *moments], gradient, settings["learning_rate"], accepted)
        return (watched,) if slope.errors is None else (watched, slope.errors)

    def _move(self, state: Sequence[Tensor], gradient: Tensor, learning_rate: Tensor, accepted: Tensor) -> None:
        """Adam on parameters, mean, square and step count; nothing changes unless `accepted`."""
        flat, mean, square, steps = state
        new_steps = steps + 1
        new_mean = torch.lerp(mean, gradient, 1 - ADAM_BETAS[0])
        new_square = torch.lerp(square, gradient.square(), 1 - ADAM_BETAS[1])
        # Stacked, the two are worked out once, and not again for every few parameters.
        rate, spread = torch.stack([learning_rate / (1 - ADAM_BETAS[0] ** new_steps), 1 - ADAM_BETAS[1] ** new_steps])
        moved = flat - rate * new_mean / ((new_square / spread).sqrt() + self.eps)
        for tensor, new in zip(state, (moved, new_mean, new_square, new_steps), strict=True):
            tensor.copy_(torch.where(accepted, new, tensor))
