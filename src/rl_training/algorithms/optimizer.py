"""The optimizer: it clips gradients and applies an update rule to one flat vector, eagerly or compiled."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.base import ComputeGradients, GradientStep, LearnerParams
from rl_training.algorithms.step_packages import CompiledStep, load_step, package_key
from rl_training.errors import NonFiniteUpdateError, describe_error
from rl_training.policies.params import FlatLayout, HostedParams
from rl_training.signals import waiting_for_others
from rl_training.waits import announced

ADAM_BETAS = (0.9, 0.999)
_RMSPROP_ALPHA = 0.99
_EPS = 1e-8

State = Mapping[str, Tensor]
"""The tensors that an update rule keeps from one step to the next, by name."""


def check_finite(loss: float, gradient_norm: float, step: GradientStep) -> None:
    """Reject a gradient step that would carry NaN or infinity into the weights."""
    if math.isfinite(loss + gradient_norm):
        return
    raise NonFiniteUpdateError(
        f"the {step.name} is rejected, its loss is {loss:g} and its gradient norm {gradient_norm:g}: {_suspect(step)}",
        step,
    )


def _suspect(step: GradientStep) -> str:
    """Name the first number of the batch that is not finite, or else the settings."""
    for name, field in step.batch.items():
        places = (~torch.isfinite(field)).nonzero().tolist()
        if places:
            return f"{name}{places[0]} of its batch is {field[tuple(places[0])].item()}"
    settings = ", ".join(f"{name} {value:g}" for name, value in step.settings.items())
    return f"its batch is finite, so the weights have grown too large ({settings}): lower learning_rate"


class UpdateRule(Protocol):
    """A rule that turns gradients into changes of the parameters, such as Adam.

    A compiled step contains its rule as a constant, so a rule can be pickled and its `repr` shows all its numbers. It
    never changes an entry of the flat vector whose value and gradient are both zero: these are the padding.
    """

    def make_state(self, flat: Tensor) -> dict[str, Tensor]:
        """Create the state of a new optimizer."""

    def step(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: float) -> None:
        """Change parameters and state in place, with the fastest kernels."""

    def new_values(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: Tensor) -> list[Tensor]:
        """Compute the new parameters and then the new state from plain operations, which a compiler fuses."""


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) as in `torch.optim.Adam`: weight decay is added to the gradient.

    With `decoupled`, weight decay shrinks the parameters themselves, as in `torch.optim.AdamW` (Loshchilov and Hutter
    2019).
    """

    eps: float = _EPS
    weight_decay: float = 0.0
    decoupled: bool = False

    def make_state(self, flat: Tensor) -> dict[str, Tensor]:
        """Create the running mean and mean square of the gradient, and the step count."""
        steps = torch.zeros((), device=flat.device)
        return {"mean": torch.zeros_like(flat), "square": torch.zeros_like(flat), "steps": steps}

    def step(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: float) -> None:
        """Change parameters and moments in place.

        `torch.optim` gives the same bits, but takes four times as long for small networks, and one second more at the
        start to import a compiler that is not needed here.
        """
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        kernel(
            [flat],
            [gradient],
            [state["mean"]],
            [state["square"]],
            [],
            [state["steps"].add_(1)],
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=self.eps,
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            amsgrad=False,
            maximize=False,
        )

    def new_values(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: Tensor) -> list[Tensor]:
        """Compute the new parameters, moments and step count."""
        if self.decoupled:
            flat = flat * (1 - learning_rate * self.weight_decay) if self.weight_decay else flat
        else:
            gradient = _add_decay(gradient, flat, self.weight_decay)
        steps = state["steps"] + 1
        mean = torch.lerp(state["mean"], gradient, 1 - ADAM_BETAS[0])
        square = torch.lerp(state["square"], gradient.square(), 1 - ADAM_BETAS[1])
        # Because of the stack, the compiled code computes the two numbers once, not again for every few parameters.
        rate, spread = torch.stack([learning_rate / (1 - ADAM_BETAS[0] ** steps), 1 - ADAM_BETAS[1] ** steps])
        return [flat - rate * mean / ((square / spread).sqrt() + self.eps), mean, square, steps]


@dataclass(frozen=True)
class RMSprop:
    """Gradients divided by the root of their running mean square, as in `torch.optim.RMSprop` without momentum.

    Weight decay is added to the gradient.
    """

    eps: float = _EPS
    weight_decay: float = 0.0

    def make_state(self, flat: Tensor) -> dict[str, Tensor]:
        """Create the running mean square."""
        return {"square": torch.zeros_like(flat)}

    def step(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: float) -> None:
        """Change parameters and mean square in place."""
        gradient = _add_decay(gradient, flat, self.weight_decay)
        square = state["square"].mul_(_RMSPROP_ALPHA).addcmul_(gradient, gradient, value=1 - _RMSPROP_ALPHA)
        flat.addcdiv_(gradient, square.sqrt().add_(self.eps), value=-learning_rate)

    def new_values(self, flat: Tensor, state: State, gradient: Tensor, learning_rate: Tensor) -> list[Tensor]:
        """Compute the new parameters and mean square."""
        gradient = _add_decay(gradient, flat, self.weight_decay)
        square = torch.lerp(state["square"], gradient.square(), 1 - _RMSPROP_ALPHA)
        return [flat - learning_rate * gradient / (square.sqrt() + self.eps), square]


def _add_decay(gradient: Tensor, flat: Tensor, weight_decay: float) -> Tensor:
    return gradient.add(flat, alpha=weight_decay) if weight_decay else gradient


def make_rule(params: LearnerParams, eps: float = _EPS) -> UpdateRule:
    """Make the update rule that an algorithm's parameters name."""
    if params.optimizer == "rmsprop":
        return RMSprop(eps, params.weight_decay)
    return Adam(eps, params.weight_decay, decoupled=params.optimizer == "adamw")


class ScalarAdam:
    """Adam for a single number in Python: torch takes twenty times as long, and on a GPU Python would have to wait."""

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
        """Return the moments and the number of steps under the names that `Adam` uses, without the value."""
        numbers = {"mean": self._mean, "square": self._square, "steps": self._steps}
        return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state`, which may be that of an `Adam` over one number; an empty one changes nothing."""
        if not state:
            return
        self._mean, self._square, self._steps = state["mean"].item(), state["square"].item(), int(state["steps"].item())


def mean_metrics(names: Iterable[str], metrics: Sequence[Sequence[float]]) -> dict[str, int | float]:
    """Average each of the named numbers over the gradient steps."""
    return {name: sum(values) / len(values) for name, values in zip(names, zip(*metrics, strict=True), strict=True)}


def flatten_gradients(layout: FlatLayout, gradients: Mapping[str, Tensor]) -> Tensor:
    """Join named gradients into one vector in the order of the parameters, with zeros as padding."""
    parts: list[Tensor] = []
    for name, padding in zip(layout.shapes, layout.chunks[1::2], strict=True):
        parts.append(gradients[name].reshape(-1))
        if padding:
            parts.append(gradients[name].new_zeros(padding))
    return torch.cat(parts)


class AppliedStep(NamedTuple):
    """The metrics and errors of a gradient step."""

    metrics: list[float]
    """The loss first, the norm of the gradient before clipping last."""
    errors: Tensor | None


@dataclass(frozen=True)
class WholeStep:
    """A gradient step as one graph from the batch to the new parameters, made to be compiled.

    Its inputs are the flat parameters of every network, the state of the update rule, the batch and the settings, in
    this order. It changes the first network only if the loss and the gradient are finite.
    """

    compute: ComputeGradients
    layouts: dict[str, FlatLayout]
    batch: tuple[str, ...]
    settings: tuple[str, ...]
    state: tuple[str, ...]
    rule: UpdateRule
    max_norm: float

    def describe(self) -> str:
        """Describe everything that the graph depends on besides its code and the form of its inputs."""
        name = getattr(self.compute, "__qualname__", type(self.compute).__qualname__)
        shapes = [(name, layout.shapes) for name, layout in self.layouts.items()]
        return repr((name, shapes, self.batch, self.settings, self.state, self.rule, self.max_norm))

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the step from plain operations, which a compiler fuses."""
        given = iter(inputs)
        flats = {name: next(given) for name in self.layouts}
        state = {name: next(given) for name in self.state}
        batch = {name: next(given) for name in self.batch}
        settings = {name: next(given) for name in self.settings}
        networks = {name: layout.tensors(flats[name]) for name, layout in self.layouts.items()}
        found = self.compute(networks, batch, settings)
        gradient = flatten_gradients(next(iter(self.layouts.values())), found.gradients)
        metrics = torch.cat([found.metrics, torch.linalg.vector_norm(gradient).reshape(1)])
        gradient = gradient * torch.clamp(self.max_norm / (metrics[-1] + 1e-6), max=1.0)
        accepted = torch.isfinite(metrics[0] + metrics[-1])
        flat = next(iter(flats.values()))
        new_values = self.rule.new_values(flat, state, gradient, settings["learning_rate"])
        for tensor, new in zip((flat, *state.values()), new_values, strict=True):
            tensor.copy_(torch.where(accepted, new, tensor))
        return (metrics,) if found.errors is None else (metrics, found.errors)


class Optimizer:
    """Minimises one loss over the parameters of the first network, and rejects steps that are not finite.

    A compiled step is one graph from the batch to the new parameters. Its results equal the eager ones up to rounding.
    """

    def __init__(
        self,
        networks: Mapping[str, HostedParams],
        compute: ComputeGradients,
        rule: UpdateRule,
        *,
        max_norm: float = math.inf,
        compile_as: str | None = None,
    ) -> None:
        flats = [params.flat for params in networks.values()]
        self.rule = rule
        self._flat, self._state = flats[0], rule.make_state(flats[0])
        self._kept = [*flats, *self._state.values()]  # what a step depends on besides its batch and settings
        self._layouts = {name: params.layout for name, params in networks.items()}
        self._networks = {name: params.tensors for name, params in networks.items()}
        self._layout = next(iter(self._layouts.values()))
        self._compute = compute
        self._max_norm = max_norm
        self._compile_as = compile_as
        self._compiled: dict[tuple[Any, ...], CompiledStep] = {}  # keyed by the names, size and strides of the inputs
        self._packages: list[str] = []
        self._settings: tuple[dict[str, float], list[Tensor]] = ({}, [])  # of the newest step, also as tensors

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as None: the compiling process gets the whole learner, but needs only its loss."""
        return type(None), ()

    @property
    def packages(self) -> list[str] | None:
        """The names of the compiled packages in use; none when steps run eagerly."""
        return None if self._compile_as is None else list(self._packages)

    def apply(self, step: GradientStep) -> AppliedStep:
        """Move the parameters by one gradient step, unless it is not finite."""
        if self._compile_as is not None:
            return self._apply_compiled(step, self._compile_as)
        with torch.inference_mode():
            found = self._compute(self._networks, step.batch, step.settings)
            gradient = flatten_gradients(self._layout, found.gradients)
            metrics = torch.cat([found.metrics, torch.linalg.vector_norm(gradient).reshape(1)]).tolist()
            check_finite(metrics[0], metrics[-1], step)
            shrinking = self._max_norm / (metrics[-1] + 1e-6)
            if shrinking < 1.0:
                gradient.mul_(shrinking)
            self.rule.step(self._flat, self._state, gradient, step.settings["learning_rate"])
        return AppliedStep(metrics, found.errors)

    def _apply_compiled(self, step: GradientStep, compile_as: str) -> AppliedStep:
        if self._settings[0] != step.settings:
            self._settings = dict(step.settings), [torch.tensor(value) for value in step.settings.values()]
        fields = list(step.batch.values())
        inputs = [*self._kept, *fields, *self._settings[1]]
        like = (len(fields[0]), *step.batch, *step.settings, *map(Tensor.stride, fields))
        if like not in self._compiled:
            try:
                self._compiled[like] = self._compile(step, inputs, compile_as)
            except Exception as error:
                warnings.warn(f"compiling failed ({describe_error(error)[:200]}): updates run eagerly", stacklevel=2)
                self._compile_as = None
                return self.apply(step)
        numbers, *errors = self._compiled[like].run(inputs)
        metrics = numbers.tolist()
        check_finite(metrics[0], metrics[-1], step)
        return AppliedStep(metrics, errors[0] if errors else None)

    def _compile(self, step: GradientStep, inputs: list[Tensor], compile_as: str) -> CompiledStep:
        batch, settings, state = tuple(step.batch), tuple(step.settings), tuple(self._state)
        whole_step = WholeStep(self._compute, self._layouts, batch, settings, state, self.rule, self._max_norm)
        with waiting_for_others(), announced("compiling the updates; later runs like this one skip that"):
            key = package_key(whole_step, inputs, compile_as)
            compiled = load_step(key, whole_step, inputs)
        self._packages.append(key)
        return compiled

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the state, which itself changes in place."""
        return {name: tensor.cpu().clone() for name, tensor in self._state.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state`; an empty state stands for a new optimizer."""
        if not state:
            return
        if state.keys() != self._state.keys():
            raise ValueError(f"the saved optimizer has {', '.join(state)}, this one has {', '.join(self._state)}")
        for name, tensor in self._state.items():
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name} of shape {tuple(state[name].shape)} does not fit {tuple(tensor.shape)}")
            tensor.copy_(state[name])
