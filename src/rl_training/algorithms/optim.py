"""Adam on one flat parameter vector: clipping and the step are one call each, and only finite ones are taken."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import GradientStep
from rl_training.errors import NonFiniteUpdateError


def check_finite(loss: Tensor, gradient_norm: Tensor, step: GradientStep) -> None:
    """Refuse a gradient step that would carry NaN or infinity into the weights."""
    if math.isfinite((loss + gradient_norm).item()):
        return
    raise NonFiniteUpdateError(
        f"the {step.name} has loss {loss.item():g} and gradient norm {gradient_norm.item():g}, so it is not taken: "
        f"{_suspect(step)}",
        step,
    )


def _suspect(step: GradientStep) -> str:
    """The first number of the batch that is not finite, or else the settings."""
    for name, field in step.batch.items():
        places = (~torch.isfinite(field)).nonzero().tolist()
        if places:
            return f"{name}{places[0]} of its batch is {field[tuple(places[0])].item()}"
    settings = ", ".join(f"{name} {value:g}" for name, value in step.settings.items())
    return f"its batch is finite, so the weights have grown too large ({settings})"


def clip_gradient(gradient: Tensor, max_norm: float) -> Tensor:
    """Scale the gradient of all parameters to at most `max_norm`, in place; its norm before that."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    gradient.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


class FlatAdam:
    """Fused Adam over a single tensor."""

    def __init__(self, flat: Tensor, eps: float = 1e-8) -> None:
        self._flat = flat
        self._adam = torch.optim.Adam([flat], eps=eps, fused=True)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Move the parameters against `gradient`."""
        self._adam.param_groups[0]["lr"] = learning_rate
        self._flat.grad = gradient
        self._adam.step()

    def state_dict(self) -> dict[str, Any]:
        """A copy: the moments themselves go on changing in place."""
        return deepcopy(self._adam.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self._adam.load_state_dict(deepcopy(state))
