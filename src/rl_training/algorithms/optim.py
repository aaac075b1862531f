"""Adam on one flat parameter vector: clipping and the step are one call each, and only finite ones are taken."""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Batch, GradientStep
from rl_training.compiling import remember_compiling
from rl_training.errors import NonFiniteUpdateError, told

Settings = Mapping[str, float | Tensor]
Numbers = tuple[Tensor, ...]
LossFn = Callable[[Tensor, Batch, Settings], tuple[Tensor, Numbers]]
"""From (flat parameters, batch, settings) to the loss, and numbers to watch."""

_BETAS = (0.9, 0.999)


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


def _shrinking(norm: Tensor, max_norm: float) -> Tensor:
    """The factor that brings a gradient of this norm down to at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


def _without_guards(guards: Any) -> list[bool]:
    """Nothing that a step depends on changes but the size of its batch, and each size is compiled by itself."""
    return [False] * len(guards)


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
            beta1=_BETAS[0],
            beta2=_BETAS[1],
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

    def update(self, gradient: Tensor, learning_rate: Tensor, accepted: Tensor) -> None:
        """The same step from plain operations, which a compiler fuses; it is taken where `accepted` says so."""
        steps = self._steps + 1
        mean = torch.lerp(self._mean, gradient, 1 - _BETAS[0])
        square = torch.lerp(self._square, gradient.square(), 1 - _BETAS[1])
        deviation = (square / (1 - _BETAS[1] ** steps)).sqrt() + self._eps
        moved = self._flat - learning_rate / (1 - _BETAS[0] ** steps) * mean / deviation
        for tensor, new in ((self._flat, moved), (self._mean, mean), (self._square, square), (self._steps, steps)):
            tensor.copy_(torch.where(accepted, new, tensor))


class Descent:
    """Moves one flat vector against the gradient of one loss: clipped, by Adam, and only while all is finite.

    Compiled, a step is one graph from the batch to the new parameters; the same maths, but not the same last bits.
    """

    def __init__(
        self, flat: Tensor, loss: LossFn, *, eps: float = 1e-8, max_norm: float | None = None, compiled: bool = False
    ) -> None:
        self.adam = FlatAdam(flat, eps)
        self._flat = flat
        self._loss = loss
        self._max_norm = max_norm
        self._compiles = compiled
        self._compiled: dict[int, Any] = {}  # by size of the batch

    def take(self, step: GradientStep) -> tuple[Numbers, Tensor]:
        """Take one step; what its loss gives to watch, and the norm of the gradient before it was clipped."""
        return self._move_compiled(step) if self._compiles else self._move(step)

    def _move(self, step: GradientStep) -> tuple[Numbers, Tensor]:
        flat = self._flat.detach().requires_grad_()
        loss, numbers = self._loss(flat, step.batch, step.settings)
        (gradient,) = torch.autograd.grad(loss, flat)
        norm = torch.linalg.vector_norm(gradient)
        check_finite(loss.detach(), norm, step)
        if self._max_norm is not None:
            gradient.mul_(_shrinking(norm, self._max_norm))
        self.adam.step(gradient, step.settings["learning_rate"])
        return numbers, norm

    def _move_compiled(self, step: GradientStep) -> tuple[Numbers, Tensor]:
        settings = {name: torch.tensor(value) for name, value in step.settings.items()}
        size = len(step.batch["actions"])
        if size in self._compiled:
            loss, numbers, norm = self._compiled[size](step.batch, settings)
        else:
            try:
                loss, numbers, norm = self._compile(step.batch, settings)
            except Exception as error:
                warnings.warn(f"compiling failed ({told(error)[:200]}): updates run eagerly", stacklevel=2)
                self._compiles = False
                return self._move(step)
        check_finite(loss, norm, step)
        return numbers, norm

    def _compile(self, batch: Batch, settings: dict[str, Tensor]) -> tuple[Tensor, Numbers, Tensor]:
        """Take the first compiled step, which compiles it."""
        began = time.perf_counter()
        # The compiler keeps its results with a function's code: without guards, each needs a code of its own.
        code = Descent._move_whole.__code__.replace()
        function = FunctionType(code, Descent._move_whole.__globals__)
        compiled: Any = torch.compile(
            MethodType(function, self), fullgraph=True, dynamic=False, options={"guard_filter_fn": _without_guards}
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler thinks of itself
            result: tuple[Tensor, Numbers, Tensor] = compiled(batch, settings)
        self._compiled[len(batch["actions"])] = compiled
        remember_compiling(time.perf_counter() - began)
        return result

    def _repeat_loss(
        self, flat: Tensor, batch: Batch, settings: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Numbers]]:
        loss, numbers = self._loss(flat, batch, settings)
        return loss, (loss, numbers)

    def _move_whole(self, batch: Batch, settings: dict[str, Tensor]) -> tuple[Tensor, Numbers, Tensor]:
        """One graph: loss, gradient, clipping, Adam; a step that is not finite leaves everything as it is."""
        gradient, (loss, numbers) = torch.func.grad(self._repeat_loss, has_aux=True)(self._flat, batch, settings)
        norm = torch.linalg.vector_norm(gradient)
        if self._max_norm is not None:
            gradient = gradient * _shrinking(norm, self._max_norm)
        self.adam.update(gradient, settings["learning_rate"], torch.isfinite(loss + norm))
        return loss, numbers, norm
