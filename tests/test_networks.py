"""Networks behind one protocol: a user's module learns as the hand-written MLP does, resumes exactly, and compiles."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chaos import result_of as outcome
from conftest import TINY, MakeConfig
from gymnasium import spaces
from test_compiling import NEEDS_COMPILER
from test_exact_resume import SignalAt, train
from test_probes import MODELS, values
from torch import Tensor

from rl_training.algorithms.optimizer import Adam, WholeStep
from rl_training.algorithms.step_packages import package_key
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.policies.networks.mlp import MLP
from rl_training.policies.networks.module import ModuleNetwork
from rl_training.policies.params import FlatLayout, HostedParams
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
SAME_SHAPE = {"ppo": "sample_networks:TanhNet", "dqn": "sample_networks:ReluNet", "sac": "sample_networks:ReluNet"}
ALGORITHMS = pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])


def build_learner(config: TrainConfig) -> Any:
    actions = spaces.Box(-1.0, 1.0, (2,)) if config.algo == "sac" else spaces.Discrete(3)
    return get_algorithm_spec(config.algo).build_learner_fn(config, OBSERVATIONS, actions)


def in_module_layout(arrays: list[Tensor]) -> list[Tensor]:
    """Two stacked critics [2, in, out] become two networks of [out, in]; all else stays as it is."""
    if arrays[0].dim() < 3:
        return arrays
    singles = [array[critic].mT for critic in (0, 1) for array in arrays]
    return [array.squeeze(1) if array.shape[1] == 1 else array for array in singles]


def copy_weights(source: HostedParams, target: HostedParams) -> None:
    arrays = in_module_layout(list(source.tensors.values()))
    for array, own in zip(arrays, target.tensors.values(), strict=True):
        own.copy_(array)


def batch_of(algo: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    batch = {
        "obs": normal(16, 3),
        "next_obs": normal(16, 3),
        "rewards": normal(16),
        "discounts": torch.full((16,), 0.9),
    }
    if algo == "ppo":
        names = ("advantages", "returns", "values", "logprobs")
        return {"obs": batch["obs"], "actions": torch.arange(16) % 3, **{name: normal(16) for name in names}}
    if algo == "dqn":
        return {**batch, "actions": torch.arange(16) % 3, "weights": torch.ones(16)}
    return {**batch, "actions": normal(16, 2).tanh(), "noise": normal(16, 2)}


def gradients_of(learner: Any, algo: str) -> list[Tensor]:
    """All gradients of the algorithm's losses, in the order of the parameters."""
    policy, settings = learner.policy.params, {"clip_coef": 0.2, "alpha": 0.3}
    networks = {"policy": policy.tensors, "online": policy.tensors, "actor": policy.tensors}
    losses = [(policy, learner._actor_gradients if algo == "sac" else learner._gradients)]
    if algo != "ppo":
        networks["target"] = learner._target.tensors
    if algo == "sac":
        networks["critics"] = learner.critics.params.tensors
        losses.append((learner.critics.params, learner._critic_gradients))
    found: list[Tensor] = []
    with torch.inference_mode():
        for params, compute in losses:
            gradients = compute(networks, batch_of(algo), settings).gradients
            found += in_module_layout([gradients[name] for name in params.layout.shapes])
    return found


@ALGORITHMS
def test_a_module_has_the_gradients_of_the_mlp(make_config: MakeConfig, algo: str) -> None:
    params = {"hidden_sizes": [32], **({"dueling": True} if algo == "dqn" else {})}
    ours = build_learner(make_config(algo=algo, algo_kwargs=params))
    theirs = build_learner(make_config(algo=algo, algo_kwargs={**params, "network": SAME_SHAPE[algo]}))
    copy_weights(ours.policy.params, theirs.policy.params)
    if algo != "ppo":
        copy_weights(ours._target, theirs._target)
    if algo == "sac":
        copy_weights(ours.critics.params, theirs.critics.params)
    for found, expected in zip(gradients_of(theirs, algo), gradients_of(ours, algo), strict=True):
        assert expected.norm() > 1e-4
        assert (found - expected).norm() <= 1e-5 * expected.norm()


@ALGORITHMS
def test_a_module_solves_the_probe_that_the_mlp_solves(make_config: MakeConfig, algo: str) -> None:
    model_class, settings, steps = MODELS[algo]
    probe = "ContinuousProbe" if algo == "sac" else "ObservedRewardProbe"
    params = {**settings, "network": SAME_SHAPE[algo]}
    config = make_config(
        algo=algo, env_id=f"rl_training/{probe}-v0", num_envs=8, total_timesteps=steps, algo_kwargs=params
    )
    model = model_class(config)
    metrics = model.learn().metrics
    if algo == "sac":
        assert metrics["eval_return_mean"] > -0.05
    else:
        assert values(model, -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)


@pytest.mark.parametrize(("algo", "steps"), [("ppo", 6_000), ("dqn", 3_000)])
def test_a_small_cnn_learns_from_images(make_config: MakeConfig, algo: str, steps: int) -> None:
    _, settings, _ = MODELS[algo]
    params = {**settings, "network": "sample_networks:SmallCNN", "learning_rate": 1e-3}
    config = make_config(
        algo=algo,
        env_id="sample_networks:Side-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_episodes=0,
        algo_kwargs=params,
    )
    run_dir = train(config)
    assert evaluate_checkpoint(run_dir, 100)["eval_return_mean"] >= 0.95


RUNS = [
    ("ppo", "sample_networks:Side-v0", "SmallCNN"),
    ("dqn", "sample_networks:Side-v0", "SmallCNN"),
    ("sac", "Pendulum-v1", "ReluNet"),
]


@pytest.mark.parametrize("compiled", ["off", pytest.param("on", marks=NEEDS_COMPILER)])
@pytest.mark.parametrize(("algo", "env_id", "network"), RUNS)
def test_a_run_with_a_module_resumes_exactly(
    make_config: MakeConfig, algo: str, env_id: str, network: str, compiled: str
) -> None:
    params = {**TINY[algo], "network": f"sample_networks:{network}"}
    config = make_config(algo=algo, env_id=env_id, num_envs=2, compile=compiled, algo_kwargs=params)
    straight = train(config)
    run_dir = train(config, SignalAt(70, "collect"))
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(straight)
    if compiled == "on":
        eager = train(config.model_copy(update={"compile": "off"}))
        weights, expected = (weights_of(each) for each in (straight, eager))
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4)


def weights_of(run_dir: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(find_checkpoint(run_dir)).algorithm_state["policy"]["params"]
    return weights


def test_a_modules_initial_weights_follow_the_runs_seed_alone(make_config: MakeConfig) -> None:
    configs = [make_config(seed=seed, algo_kwargs={"network": SAME_SHAPE["ppo"]}) for seed in (1, 1, 2)]
    first, again, other = (build_learner(config).policy.params.flat for config in configs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("batch_norm", r"actor network \(Sequential\) changes its buffer 1.running_mean while training, as BatchNorm"),
        ("dropout", "draws random numbers in its forward pass, as Dropout does"),
        ("too_wide", r"must give outputs \[batch, 2\], it gives \(2, 3\) for 2 rows"),
        ("misfit", r"fails for inputs of shape \(4,\): RuntimeError"),
        ("not_a_module", "must be a torch.nn.Module, not int"),
        ("frozen", "must have parameters, all of type float32"),
        ("failing", r"cannot be built for inputs \(4,\) and 2 outputs: RuntimeError: no such layer"),
        ("missing", "algo_kwargs.network='sample_networks:missing': sample_networks has no missing"),
    ],
)
def test_a_network_that_cannot_train_is_refused_before_any_file_is_made(
    make_config: MakeConfig, network: str, message: str
) -> None:
    config = make_config(algo_kwargs={"network": f"sample_networks:{network}"})
    with pytest.raises(ConfigError, match=message):
        train(config)
    assert not config.output_dir.exists()


def test_a_network_that_cannot_be_imported_is_refused_in_one_line(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs.network='no_such:Net': no_such cannot be imported"):
        train(make_config(algo_kwargs={"network": "no_such:Net"}))
    with pytest.raises(ConfigError, match=r"algo_kwargs.network='Net': give package.module:Name"):
        train(make_config(algo_kwargs={"network": "Net"}))


def test_an_edited_module_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, shape, outputs):\n"
        "        super().__init__(nn.Linear(shape[0], outputs))\n"
    )
    path = tmp_path / "net_from_elsewhere.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    net = importlib.import_module("net_from_elsewhere").Net

    def key() -> str:
        network = ModuleNetwork("actor", net, (3,), 2)
        step = WholeStep(network.forward, {"actor": FlatLayout(network.shapes)}, (), (), (), Adam(), max_norm=1.0)  # type: ignore[arg-type]  # any bound method of the network shows which code it needs
        return package_key(step, [torch.ones(16)], "a run")

    first = key()
    assert key() == first
    path.write_text(source + "\n# edited\n")
    assert key() != first


def mlp_params(network: MLP) -> dict[str, Tensor]:
    params = HostedParams(network.shapes, torch.device("cpu"))
    network.initialise(params.tensors, torch.Generator().manual_seed(0), 1.0)
    return params.tensors


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("stack", [None, 2])
def test_torch_differentiates_the_mlp(activation: Any, stack: int | None) -> None:
    network = MLP("net", [3, 8, 8, 2], activation, stack)
    params = mlp_params(network)
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))

    def loss(named: dict[str, Tensor], rows: Tensor) -> Tensor:
        return network.forward(named, rows).square().sum()

    expected, input_gradients = torch.func.grad(loss, argnums=(0, 1))(params, inputs)
    with torch.inference_mode():
        trace = network.trace(params, inputs)
        outer = 2.0 * trace.outputs
        for name, gradient in network.backward(params, trace, outer.clone()).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)
        columns = network.input_gradients(params, trace, outer.clone(), slice(1, 3))
    torch.testing.assert_close(columns, input_gradients[:, 1:3], rtol=1e-4, atol=1e-5)
    arrays = {name: param.numpy() for name, param in params.items()}
    np.testing.assert_allclose(
        network.forward_array(arrays, inputs.numpy()), network.forward(params, inputs).numpy(), rtol=1e-4, atol=1e-6
    )
