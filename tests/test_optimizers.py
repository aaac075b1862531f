"""Every optimizer is torch's, eager and compiled; it resumes exactly, and the algorithms learn with it."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from chaos import result_of as outcome
from conftest import MakeConfig, slow_except_first
from test_exact_resume import SignalAt, train
from test_probes import MODELS
from torch import Tensor

from rl_training.algorithms.base import Batch, GradientStep, LearnerParams, LossGradients, Networks, Settings
from rl_training.algorithms.optimizer import (
    Adam,
    Optimizer,
    RMSprop,
    ScalarAdam,
    UpdateRule,
    WholeStep,
    make_rule,
)
from rl_training.algorithms.step_packages import load_step, package_key
from rl_training.errors import NonFiniteUpdateError, TrainingInterrupted
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.policies.params import HostedParams
from rl_training.runtime.workflows import resume_training

RULES: dict[str, tuple[Callable[..., UpdateRule], Callable[..., torch.optim.Optimizer]]] = {
    "adam": (Adam, torch.optim.Adam),
    "adamw": (partial(Adam, decoupled=True), torch.optim.AdamW),
    "rmsprop": (RMSprop, torch.optim.RMSprop),
}
SHAPES = {"weight": (5, 7), "bias": (5,)}  # both are padded in the flat vector
NUM_PARAMS = 5 * 7 + 5
DECAYS = (0.0, 0.1)
every_rule = pytest.mark.parametrize("name", RULES)
with_and_without_decay = pytest.mark.parametrize("weight_decay", DECAYS)
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def gradients_from_batch(networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
    """A loss whose gradients are given: the metric depends on them, so that it is finite only if they are."""
    del networks, settings
    return LossGradients(batch, batch["bias"].sum().reshape(1))


def random_tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def make_params() -> HostedParams:
    params = HostedParams(SHAPES, torch.device("cpu"))
    params.load_state_dict(random_tensors(seed=0))
    return params


def make_named_rule(name: str, weight_decay: float) -> UpdateRule:
    return make_rule(LearnerParams(optimizer=name, weight_decay=weight_decay), eps=1e-5)


def make_optimizer(params: HostedParams, rule: UpdateRule) -> Optimizer:
    return Optimizer({"net": params}, gradients_from_batch, rule)


def make_step(seed: int) -> GradientStep:
    return GradientStep("step", random_tensors(seed), {"learning_rate": 0.1 / seed})


def with_nan(step: GradientStep) -> GradientStep:
    return replace(step, batch={**step.batch, "bias": torch.tensor([0, 0, math.nan, 0, 0])})


def torchs_result(name: str, weight_decay: float) -> dict[str, Tensor]:
    """The parameters after 20 steps of torch's optimizer, with random gradients and a falling learning rate."""
    params = random_tensors(seed=0)
    optimizer = RULES[name][1](params.values(), eps=1e-5, weight_decay=weight_decay)
    for step in map(make_step, range(1, 21)):
        optimizer.param_groups[0]["lr"] = step.settings["learning_rate"]
        for key, gradient in step.batch.items():
            params[key].grad = gradient
        optimizer.step()
    return params


@every_rule
@with_and_without_decay
def test_an_eager_optimizer_is_torchs(name: str, weight_decay: float) -> None:
    params = make_params()
    optimizer = make_optimizer(params, make_named_rule(name, weight_decay))
    for step in map(make_step, range(1, 21)):
        optimizer.apply(step)
    for key, expected in torchs_result(name, weight_decay).items():
        torch.testing.assert_close(params.tensors[key], expected, rtol=1e-6, atol=1e-6)
    assert torch.count_nonzero(params.flat) == NUM_PARAMS  # the padding is zero
    flat, state = params.flat.clone(), optimizer.state_dict()
    with pytest.raises(NonFiniteUpdateError, match=r"bias\[2\] of its batch is nan"):
        optimizer.apply(with_nan(make_step(21)))
    assert torch.equal(params.flat, flat)
    assert all(torch.equal(tensor, state[key]) for key, tensor in optimizer.state_dict().items())


@dataclass(frozen=True)
class ManySteps:
    """The whole steps of several optimizers in one graph, which is compiled once for all of them."""

    steps: tuple[WholeStep, ...]

    def describe(self) -> str:
        return repr([step.describe() for step in self.steps])

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        *kept, weight, bias, learning_rate = inputs
        metrics: list[Tensor] = []
        for step in self.steps:
            own, kept = kept[: 1 + len(step.state)], kept[1 + len(step.state) :]
            metrics += step(*own, weight, bias, learning_rate)
        return tuple(metrics)


@pytest.mark.slow
@NEEDS_COMPILER
def test_a_compiled_optimizer_is_torchs() -> None:
    kinds = [(name, weight_decay) for name in RULES for weight_decay in DECAYS]
    networks, kept, steps = [], [], []
    for name, weight_decay in kinds:
        rule, params = make_named_rule(name, weight_decay), make_params()
        state = rule.make_state(params.flat)
        networks.append(params)
        kept += [params.flat, *state.values()]
        names = tuple(SHAPES), ("learning_rate",), tuple(state)
        steps.append(WholeStep(gradients_from_batch, {"net": params.layout}, *names, rule, math.inf))

    def inputs(step: GradientStep) -> list[Tensor]:
        return [*kept, *step.batch.values(), torch.tensor(step.settings["learning_rate"])]

    many = ManySteps(tuple(steps))
    compiled = load_step(package_key(many, inputs(make_step(1)), "this test"), many, inputs(make_step(1)))
    for seed in range(1, 21):
        compiled.run(inputs(make_step(seed)))
    for (name, weight_decay), params in zip(kinds, networks, strict=True):
        for key, expected in torchs_result(name, weight_decay).items():
            torch.testing.assert_close(params.tensors[key], expected, rtol=1e-5, atol=1e-5)
        assert torch.count_nonzero(params.flat) == NUM_PARAMS
    before = [tensor.clone() for tensor in kept]
    assert all(metrics.isnan().all() for metrics in compiled.run(inputs(with_nan(make_step(21)))))
    assert all(torch.equal(tensor, old) for tensor, old in zip(kept, before, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw"])
@with_and_without_decay
def test_an_eager_adam_is_torchs_fused_one_to_the_last_bit(name: str, weight_decay: float) -> None:
    rule = make_named_rule(name, weight_decay)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(1000, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    state = rule.make_state(ours)
    torchs: Any = RULES[name][1]([theirs], eps=1e-5, weight_decay=weight_decay, fused=True)
    for step in range(1, 20):
        gradient = torch.randn(1000, generator=generator)
        rule.step(ours, state, gradient.clone(), 1.0 / step)
        torchs.param_groups[0]["lr"] = 1.0 / step
        theirs.grad = gradient.clone()
        torchs.step()
    assert torch.equal(ours, theirs)


@every_rule
def test_an_optimizer_goes_on_from_its_state(name: str) -> None:
    rule = RULES[name][0]()
    params, copy = make_params(), make_params()
    optimizer, other = make_optimizer(params, rule), make_optimizer(copy, rule)
    other.load_state_dict({})  # one that had not begun
    optimizer.apply(make_step(1))
    other.load_state_dict(optimizer.state_dict())
    copy.set(params.flat)
    for one in (optimizer, other):
        one.apply(make_step(2))
    assert torch.equal(params.flat, copy.flat)


def test_the_state_of_another_optimizer_or_network_is_refused() -> None:
    adam = make_optimizer(make_params(), Adam())
    with pytest.raises(ValueError, match="the saved optimizer has mean, square, steps, this one has square"):
        make_optimizer(make_params(), RMSprop()).load_state_dict(adam.state_dict())
    small = make_optimizer(HostedParams({"bias": (5,)}, torch.device("cpu")), Adam())
    with pytest.raises(ValueError, match=r"mean of shape \(64,\) does not fit \(16,\)"):
        small.load_state_dict(adam.state_dict())


def test_the_adam_of_a_number_is_torchs_and_goes_on_where_it_stopped() -> None:
    ours, theirs = ScalarAdam(0.3), torch.tensor([0.3], dtype=torch.float64)
    torchs = torch.optim.Adam([theirs], lr=0.1)
    for step in range(20):
        theirs.grad = torch.tensor([math.sin(step) + 0.2], dtype=torch.float64)
        torchs.step()
        ours.step(theirs.grad.item(), 0.1)
        again = ScalarAdam(ours.value)
        again.load_state_dict(ours.state_dict())
        ours = again
    assert ours.value == pytest.approx(theirs.item(), rel=1e-12)
    value, rule = torch.tensor([0.3]), Adam()  # which checkpoints had before
    state = rule.make_state(value)
    rule.step(value, state, torch.tensor([0.5]), 0.1)
    ours.load_state_dict(state)
    ours.load_state_dict({})  # one that had not begun
    assert ours.state_dict()["mean"].item() == pytest.approx(0.05)


RUNS = [
    ("ppo", {"optimizer": "adam", "weight_decay": 0.01}, ["mean", "square", "steps"]),
    ("ppo", {"optimizer": "rmsprop"}, ["square"]),
    ("dqn", {"optimizer": "adamw", "weight_decay": 0.01}, ["mean", "square", "steps"]),
    ("dqn", {"optimizer": "rmsprop", "weight_decay": 0.01}, ["square"]),
    ("sac", {"optimizer": "adamw", "weight_decay": 0.01}, ["mean", "square", "steps"]),
    ("sac", {"optimizer": "rmsprop"}, ["square"]),
]


@pytest.mark.parametrize(("algo", "params", "kept"), slow_except_first(RUNS))
def test_a_stopped_run_ends_as_if_it_had_never_stopped(
    make_config: MakeConfig, algo: str, params: dict[str, Any], kept: list[str]
) -> None:
    config = make_config(algo=algo, num_envs=2, total_timesteps=192, algo_kwargs=params)
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(70, "collect"))
    with pytest.raises(TrainingInterrupted):
        resume_training(run_dir, callbacks=[SignalAt(130, "update")])
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    state = load_checkpoint(find_checkpoint(run_dir)).algorithm_state
    for name in ("actor_optimizer", "critic_optimizer") if algo == "sac" else ("optimizer",):
        assert list(state[name]) == kept
    if algo == "sac":
        assert list(state["alpha_optimizer"]) == ["mean", "square", "steps"]
    plain = outcome(train(make_config(algo=algo, num_envs=2, total_timesteps=192)))
    assert plain != straight


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("params", [{"optimizer": "adamw", "weight_decay": 1e-3}, {"optimizer": "rmsprop"}], ids=str)
def test_an_algorithm_learns_with_each_optimizer(make_config: MakeConfig, algo: str, params: dict[str, Any]) -> None:
    model_class, settings, steps = MODELS[algo]
    config = make_config(
        algo=algo,
        env_id="rl_training/MatchProbe-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs={**settings, **params},
    )
    model = model_class(config)
    model.learn()
    assert np.asarray(model.predict(np.array([[-1.0], [1.0]], np.float32))).tolist() == [0, 1]
    assert model.evaluate(20)["eval_return_mean"] == 1.0
