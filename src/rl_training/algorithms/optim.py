"""Adam on one flat parameter vector, clipped and only while all is finite; and Adam on one number."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import GradientStep
from rl_training.algorithms.step_packages import CompiledStep, load_step, package_key
from rl_training.algorithms.whole_step import ADAM_BETAS, SlopeFn, WholeStep, with_norm
from rl_training.errors import NonFiniteUpdateError, told
from rl_training.policies.host import HostedParams
from rl_training.signals import waiting_for_others

_EPS = 1e-8


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


class FlatAdam:
    """Adam (Kingma and Ba 2015) over a single tensor, by torch's fused kernel.

    The kernel is called directly: `torch.optim` gives the same bits, costs four times as much for small networks, and
    takes a second to import the compiler that it never uses here.
    """

    def __init__(self, flat: Tensor, eps: float = _EPS) -> None:
        self._flat = flat
        self.eps = eps
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
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """A copy: the moments themselves go on changing in place."""
        return {name: tensor.cpu().clone() for name, tensor in self.tensors().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state` stopped; an empty one has not begun."""
        for name, tensor in self.tensors().items() if state else ():
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name} of shape {tuple(state[name].shape)} does not fit {tuple(tensor.shape)}")
            tensor.copy_(state[name])

    def tensors(self) -> dict[str, Tensor]:
        """The moments and the number of steps, as they change."""
        return {"mean": self._mean, "square": self._square, "steps": self._steps}


class ScalarAdam:
    """Adam for a single number, in Python: a kernel for it takes twenty times as long, and waits for a GPU."""

    def __init__(self, value: float) -> None:
        self.value = value
        self._mean, self._square, self._steps = 0.0, 0.0, 0

    def step(self, gradient: float, learning_rate: float) -> None:
        """Move the value against `gradient`."""
        self._steps += 1
        self._mean += (1 - ADAM_BETAS[0]) * (gradient - self._mean)
        self._square += (1 - ADAM_BETAS[1]) * (gradient * gradient - self._square)
        rate = learning_rate / (1 - ADAM_BETAS[0] ** self._steps)
        spread = math.sqrt(self._square / (1 - ADAM_BETAS[1] ** self._steps))
        self.value -= rate * self._mean / (spread + _EPS)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments and the number of steps, named as those of `FlatAdam`; not the value."""
        numbers = {"mean": self._mean, "square": self._square, "steps": self._steps}
        return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state` stopped, also that of a `FlatAdam` over one number; an empty one has not begun."""
        if not state:
            return
        self._mean, self._square, self._steps = state["mean"].item(), state["square"].item(), int(state["steps"].item())


def mean_numbers(names: Iterable[str], watched: Sequence[Sequence[float]]) -> dict[str, int | float]:
    """The named numbers, each averaged over the steps taken."""
    return {name: sum(values) / len(values) for name, values in zip(names, zip(*watched, strict=True), strict=True)}


class TakenStep(NamedTuple):
    """What a gradient step came to."""

    watched: list[float]  # the loss first, the norm of the gradient before it was clipped last
    errors: Tensor | None


class Descent:
    """Moves the first of some networks down the slope of one loss: clipped, by Adam, and only while all is finite.

    Compiled, a step is one graph from the batch to the new parameters; the same maths, but not the same last bits.
    """

    def __init__(
        self,
        networks: Mapping[str, HostedParams],
        slope: SlopeFn,
        *,
        eps: float = _EPS,
        max_norm: float = math.inf,
        compile_as: str | None = None,
    ) -> None:
        flats = [params.flat for params in networks.values()]
        self.adam = FlatAdam(flats[0], eps)
        self._state = [*flats, *self.adam.tensors().values()]  # what a step depends on beside its batch and settings
        self._layouts = {name: params.layout for name, params in networks.items()}
        self._networks = {name: params.tensors() for name, params in networks.items()}
        self._slope = slope
        self._max_norm = max_norm
        self._compile_as = compile_as
        self._compiled: dict[tuple[Any, ...], CompiledStep] = {}  # by names, size and strides of the inputs
        self._packages: list[str] = []
        self._settings: tuple[dict[str, float], list[Tensor]] = ({}, [])  # of the newest step, also as tensors

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as nothing: the process that compiles wants a learner for its slope alone."""
        return type(None), ()

    @property
    def packages(self) -> list[str] | None:
        """The names of the compiled packages in use; none when steps run eagerly."""
        return None if self._compile_as is None else list(self._packages)

    def take(self, step: GradientStep) -> TakenStep:
        """Take one step, unless it is not finite."""
        return self._move(step) if self._compile_as is None else self._move_compiled(step, self._compile_as)

    @torch.inference_mode()
    def _move(self, step: GradientStep) -> TakenStep:
        slope = self._slope(self._networks, step.batch, step.settings)
        watched = with_norm(slope).tolist()
        check_finite(watched[0], watched[-1], step)
        shrinking = self._max_norm / (watched[-1] + 1e-6)
        if shrinking < 1.0:
            slope.gradient.mul_(shrinking)
        self.adam.step(slope.gradient, step.settings["learning_rate"])
        return TakenStep(watched, slope.errors)

    def _move_compiled(self, step: GradientStep, compile_as: str) -> TakenStep:
        if self._settings[0] != step.settings:
            self._settings = dict(step.settings), [torch.tensor(value) for value in step.settings.values()]
        fields = list(step.batch.values())
        inputs = [*self._state, *fields, *self._settings[1]]
        like = (len(fields[0]), *step.batch, *step.settings, *map(Tensor.stride, fields))
        if like not in self._compiled:
            try:
                whole_step = self._whole_step(step)
                with waiting_for_others():
                    self._compiled[like] = load_step(whole_step, inputs, compile_as)
                self._packages.append(package_key(whole_step, inputs, compile_as))
            except Exception as error:
                warnings.warn(f"compiling failed ({told(error)[:200]}): updates run eagerly", stacklevel=2)
                self._compile_as = None
                return self._move(step)
        numbers, *errors = self._compiled[like].run(inputs)
        watched = numbers.tolist()
        check_finite(watched[0], watched[-1], step)
        return TakenStep(watched, errors[0] if errors else None)

    def _whole_step(self, step: GradientStep) -> WholeStep:
        return WholeStep(
            self._slope, self._layouts, tuple(step.batch), tuple(step.settings), self.adam.eps, self._max_norm
        )
