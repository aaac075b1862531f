"""Updates in bfloat16: products lose digits, while parameters, outputs, losses and acting stay float32."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from chaos import result_of as outcome
from conftest import MakeConfig
from gymnasium import spaces
from test_exact_resume import SignalAt, train
from test_probes import MODELS

from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.policies.features import Encoder
from rl_training.policies.networks.module import Precision
from rl_training.policies.networks.spec import Head, NetworkSpec
from rl_training.policies.params import HostedParams
from rl_training.runtime.workflows import resume_training

BFLOAT16 = {"precision": "bfloat16"}
CAMERA = spaces.Box(0, 255, (8, 8), np.uint8)
ALGORITHMS = pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def test_only_the_products_of_updates_lose_digits() -> None:
    images = torch.rand(32, 64, generator=torch.Generator().manual_seed(0))
    outer = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    outputs, gradients, acting = {}, {}, {}
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        spec = NetworkSpec((32,), "relu", torch.device("cpu"), precision=precision)
        network = spec.build(Encoder(CAMERA), Head("net", 3))
        params = HostedParams(network.shapes, torch.device("cpu"))
        network.initialise(params.tensors, torch.Generator().manual_seed(2))
        with torch.inference_mode():
            trace = network.trace(params.tensors, images)
            assert torch.equal(trace.outputs, network.forward(params.tensors, images))
            outputs[precision] = trace.outputs
            gradients[precision] = network.backward(params.tensors, trace, outer)
        acting[precision] = network.forward_array(params.arrays, images.numpy())
    assert outputs["bfloat16"].dtype == torch.float32
    assert not torch.equal(outputs["bfloat16"], outputs["float32"])
    torch.testing.assert_close(outputs["bfloat16"], outputs["float32"], rtol=0.02, atol=0.02)
    for name, gradient in gradients["bfloat16"].items():
        exact = gradients["float32"][name]
        assert gradient.dtype == torch.float32
        assert 0.0 < torch.linalg.vector_norm(gradient - exact) < 0.1 * torch.linalg.vector_norm(exact)
    assert np.array_equal(acting["bfloat16"], acting["float32"])


@ALGORITHMS
def test_a_stopped_run_ends_as_if_it_had_never_stopped(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, num_envs=2, total_timesteps=192, algo_kwargs=BFLOAT16)
    straight = train(config)
    run_dir = train(config, SignalAt(70, "collect"))
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(straight)
    state = load_checkpoint(find_checkpoint(run_dir)).algorithm_state
    assert {param.dtype for param in state["policy"]["params"].values()} == {torch.float32}
    exact = train(config.model_copy(update={"algo_kwargs": {**config.algo_kwargs, "precision": "float32"}}))
    assert outcome(exact) != outcome(straight)


@pytest.mark.slow
@NEEDS_COMPILER
def test_compiled_updates_are_about_the_eager_ones(make_config: MakeConfig) -> None:
    config = make_config(algo="dqn", num_envs=2, compile="on", algo_kwargs=BFLOAT16)
    compiled = train(config)
    assert load_checkpoint(find_checkpoint(compiled)).metadata["packages"]
    eager = train(config.model_copy(update={"compile": "off"}))
    weights, expected = (
        load_checkpoint(find_checkpoint(run_dir)).algorithm_state["policy"]["params"] for run_dir in (compiled, eager)
    )
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0.05, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_an_algorithm_learns_in_bfloat16(make_config: MakeConfig, algo: str) -> None:
    model_class, settings, steps = MODELS[algo]
    config = make_config(
        algo=algo,
        env_id="rl_training/MatchProbe-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs={**settings, **BFLOAT16},
    )
    model: Any = model_class(config)
    model.learn()
    assert np.asarray(model.predict(np.array([[-1.0], [1.0]], np.float32))).tolist() == [0, 1]
