"""Adam on one flat parameter vector: clipping and the step are one call each, and only finite ones are taken."""

import math

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
    """Adam (Kingma and Ba 2015) over a single tensor, by torch's fused kernel.

    The kernel is called directly: `torch.optim` gives the same bits, costs four times as much for small networks, and
    takes a second to import the compiler that it never uses here.
    """

    def __init__(self, flat: Tensor, eps: float = 1e-8) -> None:
        self._flat = flat
        self._eps = eps
        self._mean, self._square = torch.zeros_like(flat), torch.zeros_like(flat)  # running moments of the gradient
        self._steps = torch.zeros((), device=flat.device)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Move the parameters against `gradient`."""
        torch._fused_adam_(
            [self._flat],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps.add_(1)],
            lr=learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """A copy: the moments themselves go on changing in place."""
        return {name: tensor.cpu().clone() for name, tensor in self._tensors().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state` stopped; an empty one has not begun."""
        for name, tensor in self._tensors().items() if state else ():
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name} of shape {tuple(state[name].shape)} does not fit {tuple(tensor.shape)}")
            tensor.copy_(state[name])

    def _tensors(self) -> dict[str, Tensor]:
        return {"mean": self._mean, "square": self._square, "steps": self._steps}
