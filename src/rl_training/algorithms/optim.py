"""Adam on one flat parameter vector: clipping and the step are one call each, and only finite ones are taken."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Batch, GradientStep
from rl_training.compiling import remember_compiling
from rl_training.errors import NonFiniteUpdateError, told

Settings = Mapping[str, float | Tensor]


class Slope(NamedTuple):
    """How a loss changes with the parameters."""

    gradient: Tensor  # flat
    watched: Tensor  # numbers to watch, the loss first
    errors: Tensor | None = None  # per transition, where priorities depend on them


SlopeFn = Callable[[Batch, Settings], Slope]
"""The slope of a learner's loss at its present parameters, which are the same between two calls."""

_BETAS = (0.9, 0.999)


def check_finite(loss: float, gradient_norm: float, step: GradientStep) -> None:
    """Refuse a gradient step that would carry NaN or infinity into the weights."""
    if math.isfinite(loss + gradient_norm):
        return
    raise NonFiniteUpdateError(
        f"the {step.name} has loss {loss:g} and gradient norm {gradient_norm:g}, so it is not taken: {_suspect(step)}",
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


def _with_norm(slope: Slope) -> Tensor:
    """The watched numbers, and the norm of the gradient."""
    return torch.cat([slope.watched, torch.linalg.vector_norm(slope.gradient).reshape(1)])


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


def mean_numbers(names: Iterable[str], watched: Sequence[Sequence[float]]) -> dict[str, int | float]:
    """The named numbers, each averaged over the steps taken."""
    return {name: sum(values) / len(values) for name, values in zip(names, zip(*watched, strict=True), strict=True)}


class TakenStep(NamedTuple):
    """What a gradient step came to."""

    watched: list[float]  # the loss first, the norm of the gradient before it was clipped last
    errors: Tensor | None


class Descent:
    """Moves one flat vector down the slope of one loss: clipped, by Adam, and only while all is finite.

    Compiled, a step is one graph from the batch to the new parameters; the same maths, but not the same last bits.
    """

    def __init__(
        self, flat: Tensor, slope: SlopeFn, *, eps: float = 1e-8, max_norm: float = math.inf, compiled: bool = False
    ) -> None:
        self.adam = FlatAdam(flat, eps)
        self._slope = slope
        self._max_norm = max_norm
        self._compiles = compiled
        self._compiled: dict[int, Any] = {}  # by size of the batch
        self._settings: tuple[dict[str, float], dict[str, Tensor]] = ({}, {})  # of the newest step, also as tensors

    def take(self, step: GradientStep) -> TakenStep:
        """Take one step, unless it is not finite."""
        return self._move_compiled(step) if self._compiles else self._move(step)

    @torch.inference_mode()
    def _move(self, step: GradientStep) -> TakenStep:
        slope = self._slope(step.batch, step.settings)
        watched = _with_norm(slope).tolist()
        check_finite(watched[0], watched[-1], step)
        shrinking = self._max_norm / (watched[-1] + 1e-6)
        if shrinking < 1.0:
            slope.gradient.mul_(shrinking)
        self.adam.step(slope.gradient, step.settings["learning_rate"])
        return TakenStep(watched, slope.errors)

    def _move_compiled(self, step: GradientStep) -> TakenStep:
        if self._settings[0] != step.settings:
            self._settings = step.settings, {name: torch.tensor(value) for name, value in step.settings.items()}
        size = len(step.batch["actions"])
        if size in self._compiled:
            numbers, errors = self._compiled[size](step.batch, self._settings[1])
        else:
            try:
                numbers, errors = self._compile(step.batch, self._settings[1])
            except Exception as error:
                warnings.warn(f"compiling failed ({told(error)[:200]}): updates run eagerly", stacklevel=2)
                self._compiles = False
                return self._move(step)
        watched = numbers.tolist()
        check_finite(watched[0], watched[-1], step)
        return TakenStep(watched, errors)

    def _compile(self, batch: Batch, settings: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
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
            result: tuple[Tensor, Tensor | None] = compiled(batch, settings)
        self._compiled[len(batch["actions"])] = compiled
        remember_compiling(time.perf_counter() - began)
        return result

    def _move_whole(self, batch: Batch, settings: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """One graph: slope, clipping, Adam; a step that is not finite leaves everything as it is."""
        slope = self._slope(batch, settings)
        watched = _with_norm(slope)
        shrinking = torch.clamp(self._max_norm / (watched[-1] + 1e-6), max=1.0)
        accepted = torch.isfinite(watched[0] + watched[-1])
        self.adam.update(slope.gradient * shrinking, settings["learning_rate"], accepted)
        return watched, slope.errors
