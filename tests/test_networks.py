"""Networks behind one protocol: a user's module learns as the hand-written MLP does, resumes exactly, and compiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_networks
import torch
from chaos import result_of as outcome
from conftest import TINY, MakeConfig, slow_except_first
from gymnasium import spaces
from test_compiling import NEEDS_COMPILER
from test_exact_resume import SignalAt, train
from test_probes import MODELS, values
from torch import Tensor
from torch.nn import functional

from rl_training import PPO
from rl_training.algorithms.dqn import q_targets
from rl_training.algorithms.optimizer import Adam, WholeStep
from rl_training.algorithms.ppo import PPOParams, ppo_loss
from rl_training.algorithms.step_packages import package_key
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.packing import PackedObservations, is_packed_as_observation
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.base import PolicyOutput
from rl_training.policies.features import Encoder
from rl_training.policies.networks.mlp import MLP
from rl_training.policies.networks.spec import Head, NetworkSpec
from rl_training.policies.params import FlatLayout, HostedParams
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
SAME_SHAPE: dict[str, dict[str, Any]] = {  # as `hidden_sizes: [32]`
    "ppo": {"encoder": "sample_networks:TanhNet", "hidden_sizes": []},
    "dqn": {"encoder": "sample_networks:ReluNet", "hidden_sizes": []},
    "sac": {"encoder": "sample_networks:Unchanged", "hidden_sizes": [32]},  # actions join after the encoder
}
ALGORITHMS = pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])


def build_learner(config: TrainConfig) -> Any:
    actions = spaces.Box(-1.0, 1.0, (2,)) if config.algo == "sac" else spaces.Discrete(3)
    return get_algorithm_spec(config.algo).build_learner_fn(config, OBSERVATIONS, actions)


def policy_for(space: spaces.Space[Any], **network: Any) -> ActorCritic:
    packed = PackedObservations(space) if is_packed_as_observation(space) else space
    spec = {"hidden_sizes": (6,), "activation": "tanh", "device": torch.device("cpu"), **network}
    return ActorCritic(packed, spaces.Discrete(3), NetworkSpec(**spec), seed=1)


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
    theirs = build_learner(make_config(algo=algo, algo_kwargs={**params, **SAME_SHAPE[algo]}))
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
    params = {**settings, **SAME_SHAPE[algo]}
    config = make_config(
        algo=algo,
        env_id=f"rl_training/{probe}-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_interval=0,
        checkpoint_interval=0,
        algo_kwargs=params,
    )
    model = model_class(config)
    metrics = model.learn().metrics
    if algo == "sac":
        assert metrics["eval_return_mean"] > -0.05
    else:
        assert values(model, -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)


@pytest.mark.parametrize("encoder", slow_except_first(["sample_networks:GridCNN", "auto"]))
@pytest.mark.parametrize(("algo", "steps"), [("ppo", 6_000), ("dqn", 1_250)])
def test_cnns_learn_from_images(make_config: MakeConfig, algo: str, steps: int, encoder: str) -> None:
    _, settings, _ = MODELS[algo]
    params = {**settings, "encoder": encoder, "learning_rate": 1e-3}
    config = make_config(
        algo=algo,
        env_id="sample_networks:Side-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs=params,
    )
    run_dir = train(config)
    assert evaluate_checkpoint(run_dir, 100)["eval_return_mean"] >= 0.95


RUNS = [
    ("ppo", "sample_networks:Side-v0", {"layer_norm": True}),
    ("dqn", "sample_networks:Side-v0", {"encoder": "sample_networks:GridCNN", "dueling": True}),
    ("sac", "Pendulum-v1", {"activation": "silu"}),
]


@pytest.mark.parametrize("compiled", ["off", pytest.param("on", marks=[NEEDS_COMPILER, pytest.mark.slow])])
@pytest.mark.parametrize(("algo", "env_id", "params"), RUNS)
def test_a_run_with_a_module_resumes_exactly(
    make_config: MakeConfig,
    compared_steps: list[str],
    algo: str,
    env_id: str,
    params: dict[str, Any],
    compiled: str,
) -> None:
    config = make_config(algo=algo, env_id=env_id, num_envs=2, compile=compiled, algo_kwargs={**TINY[algo], **params})
    straight = train(config)
    run_dir = train(config, SignalAt(70, "collect"))
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(straight)
    assert bool(compared_steps) == (compiled == "on")


def test_sac_trains_on_images(make_config: MakeConfig) -> None:
    config = make_config(algo="sac", env_id="sample_networks:SideControl-v0", num_envs=2)
    weights = weights_of(train(config))
    assert weights["actor.encoder.cnns.0.layers.0.weight"].shape == (16, 1, 3, 3)
    untrained = get_algorithm_spec("sac").build_learner_fn(
        config, sample_networks.SideControlEnv.observation_space, sample_networks.SideControlEnv.action_space
    )
    for name, before in untrained.policy.params.tensors.items():  # type: ignore[attr-defined]  # of SAC's actor
        assert not torch.equal(weights[name], before)


def weights_of(run_dir: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(find_checkpoint(run_dir)).algorithm_state["policy"]["params"]
    return weights


def test_a_modules_initial_weights_follow_the_runs_seed_alone(make_config: MakeConfig) -> None:
    configs = [make_config(seed=seed, algo_kwargs=SAME_SHAPE["ppo"]) for seed in (1, 1, 2)]
    first, again, other = (build_learner(config).policy.params.flat for config in configs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("batch_norm", "changes its buffer 1.running_mean while training, as BatchNorm does, which is not supported"),
        ("dropout", "draws random numbers in its forward pass, as Dropout does"),
        ("too_wide", r"must give outputs \[batch, 8\], as its features_dim says; it gives \(2, 9\) for 2 observations"),
        ("misfit", r"fails for observations of Box\(.*\): RuntimeError"),
        ("double", "all of its parameters must be float32"),
        ("double_outputs", "must give outputs of type float32, not float64"),
        ("batch_mean", "its output for one observation depends on the others in the batch, as with BatchNorm"),
        ("batch_norm_without_state", r"fails for observations of Box\(.*\): ValueError: Expected more than 1 value"),
        ("not_a_module", "must be a torch.nn.Module, not int"),
        ("without_size", r"must have an attribute features_dim, the number of its outputs \(int\)"),
        ("failing", r"cannot be built for Box\(.*\): RuntimeError: no such layer"),
        ("missing", "sample_networks has no missing"),
    ],
)
def test_an_encoder_that_cannot_train_is_refused_before_any_file_is_made(
    make_config: MakeConfig, encoder: str, message: str
) -> None:
    config = make_config(algo_kwargs={"encoder": f"sample_networks:{encoder}"})
    with pytest.raises(ConfigError, match=f"^algo_kwargs.encoder='sample_networks:{encoder}': {message}") as caught:
        train(config)
    assert "\n" not in str(caught.value)
    assert not config.output_dir.exists()


@pytest.mark.parametrize(
    ("algo", "params", "message"),
    [
        ("ppo", {"encoder": "no_such:Net"}, "encoder='no_such:Net': no_such cannot be imported"),
        ("ppo", {"encoder": "Net"}, "encoder='Net': allowed: auto, mlp, nature_cnn, .* or package.module:Name"),
        ("ppo", {"encoder": None}, "encoder=None: input should be a valid string"),
        ("ppo", {"encoder": "small_cnn"}, "encoder='small_cnn': the observations have no images; use auto or mlp"),
        ("ppo", {"encoder_kwargs": {"units": 3}}, r"encoder_kwargs={'units': 3}: the encoder auto takes no arguments"),
        ("ppo", {"encoder_kwargs": 3}, "encoder_kwargs=3: give a map of names to values"),
        ("ppo", {"network": "sample_networks:TanhNet"}, "network: unknown key"),
        ("ppo", {"layer_norm": 1}, "layer_norm=1: "),
        ("ppo", {"activation": "sigmoid"}, "activation='sigmoid': "),
        ("ppo", {"actor_hidden_sizes": [0]}, "actor_hidden_sizes.0=0: "),
        ("ppo", {"shared_trunk": "yes"}, "shared_trunk='yes': "),
        ("dqn", {"actor_hidden_sizes": [8]}, "actor_hidden_sizes: unknown key"),
        ("dqn", {"shared_trunk": True}, "shared_trunk=True: only the two parts of a dueling network share a trunk"),
        ("sac", {"shared_trunk": True}, "shared_trunk: unknown key"),
        ("sac", {"critic_hidden_sizes": 8}, "critic_hidden_sizes=8: give a list"),
    ],
    ids=str,
)
def test_parameters_of_networks_are_refused_in_one_line(
    make_config: MakeConfig, algo: str, params: dict[str, Any], message: str
) -> None:
    config = make_config(algo=algo, algo_kwargs=params)
    with pytest.raises(ConfigError, match=rf"^algo_kwargs\.{message}"):
        train(config)
    assert not config.output_dir.exists()


def test_a_cnn_that_needs_larger_images_is_refused_with_their_size() -> None:
    camera = spaces.Dict({"camera": spaces.Box(0, 255, (35, 40, 3), np.uint8)})
    policy_for(camera, encoder="impala_cnn")
    with pytest.raises(
        ConfigError, match=r"at least 36x36 pixels, those of 'camera' have 35x40; use auto or small_cnn"
    ):
        policy_for(camera, encoder="nature_cnn")


class NestedNets:
    Inner = sample_networks.TanhNet


def test_a_class_is_stored_as_its_path(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"encoder": sample_networks.TanhNet, "hidden_sizes": []})
    assert config.algo_kwargs["encoder"] == "sample_networks:TanhNet"
    assert PPOParams(encoder=sample_networks.batch_norm).encoder == "sample_networks:batch_norm"
    model = PPO.for_env("CartPole-v1", encoder=sample_networks.TanhNet)
    assert model.config.algo_kwargs["encoder"] == "sample_networks:TanhNet"


def test_a_class_that_cannot_be_imported_again_trains_and_is_asked_for_later(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(sample_networks.TanhNet):
        pass

    in_script = type("Script", (sample_networks.TanhNet,), {"__module__": "__main__"})
    for encoder in (Local, in_script):
        config = make_config(algo_kwargs={"encoder": encoder, "hidden_sizes": []})
        assert config.algo_kwargs["encoder"] == f"local:{encoder.__name__}"
        run_dir = train(config)
        monkeypatch.setattr("rl_training.plugins._local_objects", {})  # as in another process
        message = (
            rf"local:{encoder.__name__}'.* was defined in a script or notebook; define it again and give it to load"
        )
        with pytest.raises(ConfigError, match=message):
            PPO.load(run_dir)
        model = PPO.load(run_dir, encoder=encoder)
        assert model.predict(np.zeros(4, np.float32)) in (0, 1)
        assert model.learn(total_timesteps=256).metrics["global_step"] == 256


def test_an_edited_module_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    features_dim = 2\n"
        "    def __init__(self, space):\n"
        "        super().__init__(space.shape[0], 2)\n"
    )
    path = tmp_path / "net_from_elsewhere.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    spec = NetworkSpec((), "tanh", torch.device("cpu"), encoder="net_from_elsewhere:Net")

    def key() -> str:
        network = spec.build(Encoder(OBSERVATIONS), Head("actor", 2))
        step = WholeStep(network.forward, {"actor": FlatLayout(network.shapes)}, (), (), (), Adam(), max_norm=1.0)  # type: ignore[arg-type]  # any bound method of the network shows which code it needs
        return package_key(step, [torch.ones(16)], "a run")

    first = key()
    assert key() == first
    path.write_text(source + "\n# edited\n")
    assert key() != first


def forward(policy: ActorCritic, obs: Any) -> Tensor:
    """The actor's outputs and the value side by side, for packed or plain observations [batch, ...]."""
    features = policy.encoder.encode_tensor(torch.from_numpy(np.asarray(obs)))
    outputs = policy.actor.forward(policy.params.tensors, features)
    if policy.critic is None:
        return outputs
    return torch.cat([outputs, policy.critic.forward(policy.params.tensors, features)], dim=1)


REFERENCES = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "leaky_relu": functional.leaky_relu,
}


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", REFERENCES)
def test_activations_and_layer_norm_are_those_of_torch(activation: str, *, layer_norm: bool) -> None:
    policy = policy_for(OBSERVATIONS, hidden_sizes=(8, 8), activation=activation, layer_norm=layer_norm)
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    params = iter([param for name, param in policy.params.tensors.items() if name.startswith("actor")])
    expected = inputs
    for _ in range(2):
        expected = functional.linear(expected, next(params), next(params))
        if layer_norm:
            expected = functional.layer_norm(expected, (8,), next(params), next(params))
        expected = REFERENCES[activation](expected)
    expected = functional.linear(expected, next(params), next(params))
    assert next(params, None) is None
    torch.testing.assert_close(policy.actor.forward(policy.params.tensors, inputs), expected)
    acted = policy.actor.forward_array(policy.params.arrays, inputs.numpy())
    np.testing.assert_allclose(acted, expected.numpy(), rtol=1e-4, atol=1e-6)


CAMERA = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (8, 9, 3), np.uint8),
        "gear": spaces.Discrete(4),
        "speed": spaces.Box(-1.0, 1.0, (2,)),
        "wide": spaces.Box(0, 255, (40, 36), np.uint8),
    }
)


@pytest.mark.parametrize("encoder", ["auto", "impala_cnn", "mlp", "sample_networks:CameraNet"])
def test_every_part_of_an_observation_changes_the_outputs(encoder: str) -> None:
    policy = policy_for(CAMERA, encoder=encoder)
    CAMERA.seed(3)
    first, second = CAMERA.sample(), CAMERA.sample()
    second["gear"] = (first["gear"] + 1) % 4
    pack = policy.encoder.space.pack  # type: ignore[attr-defined]  # of PackedObservations
    expected = forward(policy, pack(first)[None])
    unread = {"wide"} if "CameraNet" in encoder else set()
    for name in CAMERA:
        changed = forward(policy, pack({**first, name: second[name]})[None])
        assert torch.equal(changed, expected) == (name in unread)


def test_auto_chooses_a_cnn_by_the_size_of_each_image() -> None:
    shapes = policy_for(CAMERA).params.layout.shapes
    assert shapes["shared.encoder.cnns.0.layers.0.weight"] == (16, 3, 3, 3)
    assert shapes["shared.encoder.cnns.1.layers.0.weight"] == (32, 1, 8, 8)
    assert shapes["shared.trunk.0.weight"] == (6, 2 + 4 + 128 + 512)
    assert "actor.0.weight" in policy_for(CAMERA, encoder="mlp").params.layout.shapes


@pytest.mark.parametrize("encoder", ["small_cnn", "nature_cnn", "impala_cnn"])
def test_channels_may_be_first_last_or_missing(encoder: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 40, 36, 3), np.uint8)
    first, last = (
        policy_for(spaces.Box(0, 255, shape, np.uint8), encoder=encoder) for shape in [(3, 40, 36), (40, 36, 3)]
    )
    torch.testing.assert_close(forward(first, image.transpose(0, 3, 1, 2).copy()), forward(last, image))
    one, missing = (
        policy_for(spaces.Box(0, 255, shape, np.uint8), encoder=encoder) for shape in [(1, 40, 36), (40, 36)]
    )
    grey = image[..., 0].copy()
    torch.testing.assert_close(forward(one, grey[:, None]), forward(missing, grey))


@pytest.mark.parametrize("encoder", ["small_cnn", "nature_cnn"])
def test_cnns_are_those_of_their_papers(encoder: str) -> None:
    policy = policy_for(spaces.Box(0, 255, (40, 40, 4), np.uint8), encoder=encoder, hidden_sizes=())
    image = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 4), np.uint8)
    params = iter(policy.params.tensors.values())
    expected = torch.from_numpy(image).permute(0, 3, 1, 2) / 255.0
    for stride in (1, 1) if encoder == "small_cnn" else (4, 2, 1):
        expected = torch.relu(functional.conv2d(expected, next(params), next(params), stride))
    expected = torch.relu(functional.linear(expected.flatten(1), next(params), next(params)))
    assert expected.shape[1] == (128 if encoder == "small_cnn" else 512)
    actor, critic = (functional.linear(expected, next(params), next(params)) for _ in range(2))
    torch.testing.assert_close(forward(policy, image), torch.cat([actor, critic], dim=1), rtol=1e-4, atol=1e-5)


def test_a_module_of_another_package_gets_nested_observations_and_its_arguments() -> None:
    policy = policy_for(
        CAMERA, encoder="sample_networks:CameraNet", encoder_kwargs={"features_dim": 7}, hidden_sizes=()
    )
    shapes = policy.params.layout.shapes
    assert shapes["shared.encoder.module.linear.weight"] == (7, 3 + 4 + 2)
    assert shapes["shared.heads.actor.0.weight"] == (3, 7)
    assert policy_for(OBSERVATIONS, encoder="sample_networks:LazyNet").params.layout.shapes[
        "actor.encoder.module.0.weight"
    ] == (6, 3)


def shapes_of(make_config: MakeConfig, algo: str, **params: Any) -> dict[str, tuple[int, ...]]:
    learner = build_learner(make_config(algo=algo, algo_kwargs=params))
    shapes: dict[str, tuple[int, ...]] = dict(learner.policy.params.layout.shapes)
    return shapes | (learner.critics.params.layout.shapes if algo == "sac" else {})


def test_actor_and_critic_have_hidden_layers_of_their_own(make_config: MakeConfig) -> None:
    ppo = shapes_of(make_config, "ppo", actor_hidden_sizes=[5], critic_hidden_sizes=[6, 7])
    assert (ppo["actor.1.weight"], ppo["critic.2.weight"]) == ((3, 5), (1, 7))
    sac = shapes_of(make_config, "sac", hidden_sizes=[9], critic_hidden_sizes=[6])
    assert (sac["actor.1.weight"], sac["critics.1.weight"]) == ((4, 9), (2, 6, 1))
    behind = shapes_of(make_config, "ppo", hidden_sizes=[9], shared_trunk=True, actor_hidden_sizes=[5])
    assert behind["shared.trunk.0.weight"] == (9, 3)
    assert (behind["shared.heads.actor.0.weight"], behind["shared.heads.critic.0.weight"]) == ((5, 9), (1, 9))
    dueling = shapes_of(make_config, "dqn", hidden_sizes=[9], shared_trunk=True, dueling=True)
    assert (dueling["shared.heads.advantage.0.weight"], dueling["shared.heads.value.0.weight"]) == ((3, 9), (1, 9))


def test_actions_join_behind_the_encoder_of_a_critic(make_config: MakeConfig) -> None:
    params = {"encoder": "sample_networks:ReluNet", "hidden_sizes": [9]}
    shapes = shapes_of(make_config, "sac", **params)
    assert shapes["critics.1.encoder.module.0.weight"] == (32, 3)
    assert shapes["critics.1.heads.critics.0.weight"] == (9, 32 + 2)
    critics = build_learner(make_config(algo="sac", algo_kwargs=params)).critics
    obs, actions = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    actions = actions[:, :2].clone().requires_grad_()
    (expected,) = torch.autograd.grad(critics.forward(critics.params.tensors, obs, actions).sum(), actions)
    trace = critics.trace(critics.params.tensors, obs, actions.detach())
    found = critics.action_gradients(critics.params.tensors, trace, torch.ones(2, 5))
    torch.testing.assert_close(found, expected)
    trace = critics.trace(critics.params.tensors, obs, actions.detach())
    everything = critics.network.input_gradients(critics.params.tensors, trace, torch.ones(2, 5, 1), slice(None))
    assert everything.shape == (5, 5)
    torch.testing.assert_close(everything[:, 3:], expected)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_gradients_through_a_shared_trunk_are_those_of_autograd(make_config: MakeConfig, algo: str) -> None:
    params = {"shared_trunk": True, "hidden_sizes": [16], "layer_norm": True, "activation": "elu"}
    learner = build_learner(
        make_config(algo=algo, algo_kwargs={**params, **({"dueling": True} if algo == "dqn" else {})})
    )
    batch, settings = batch_of(algo), {"clip_coef": 0.2}
    networks = {"policy": learner.policy.params.tensors, "online": learner.policy.params.tensors}
    if algo == "dqn":
        networks["target"] = learner._target.tensors

    def network(named: dict[str, Tensor], rows: Tensor) -> Tensor:
        hidden = functional.linear(rows, named["shared.trunk.0.weight"], named["shared.trunk.0.bias"])
        hidden = functional.layer_norm(hidden, (16,), named["shared.trunk.1.weight"], named["shared.trunk.1.bias"])
        heads = ("actor", "critic") if algo == "ppo" else ("advantage", "value")
        layers = [[named[f"shared.heads.{head}.0.{kind}"] for kind in ("weight", "bias")] for head in heads]
        return torch.cat([functional.linear(functional.elu(hidden), *layer) for layer in layers], dim=1)

    def loss(named: dict[str, Tensor]) -> Tensor:
        outputs = network(named, batch["obs"])
        if algo == "ppo":
            scores = learner.policy.distribution.score({}, outputs[:, :3], batch["actions"])
            output = PolicyOutput(batch["actions"], scores.logprobs, outputs[:, 3], scores.entropies)
            return ppo_loss(output, batch, learner.params, 0.2)[0][0]
        values = outputs[:, 3:] + outputs[:, :3] - outputs[:, :3].mean(dim=1, keepdim=True)
        following = learner.policy.q_values(networks["target"], batch["next_obs"])
        errors = values.gather(1, batch["actions"].unsqueeze(1)).squeeze(1) - q_targets(batch, following)
        return functional.smooth_l1_loss(errors, torch.zeros_like(errors))

    expected = torch.func.grad(loss)(dict(learner.policy.params.tensors))
    with torch.inference_mode():
        found = learner._gradients(networks, batch, settings).gradients
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.norm() > 0.0
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_policy_behind_a_shared_trunk_acts_as_it_learns() -> None:
    policy = policy_for(spaces.Box(0, 255, (8, 8), np.uint8))
    obs = (255 * np.eye(64, dtype=np.uint8)).reshape(64, 8, 8)
    likeliest = forward(policy, obs)[:, :3].argmax(dim=1)
    assert len(set(likeliest.tolist())) > 1
    assert policy.predict(obs).tolist() == likeliest.tolist()
    features = policy.encoder.encode_tensor(torch.from_numpy(obs))
    output = policy.score(policy.params.tensors, features, likeliest)
    traced = policy.evaluate(policy.params.tensors, features, likeliest).output
    for name in ("logprobs", "values", "entropy"):
        assert torch.equal(getattr(output, name), getattr(traced, name))
    assert torch.equal(policy.values(policy.params.tensors, features), output.values)


def test_layers_of_ppo_begin_orthogonal_and_those_of_another_package_as_they_are() -> None:
    for policy in (policy_for(CAMERA), policy_for(CAMERA, shared_trunk=False)):
        for name, weight in policy.params.tensors.items():
            if name.endswith("bias"):
                assert torch.equal(weight, torch.zeros_like(weight))
                continue
            rows = weight.flatten(1)
            smaller = rows if len(rows) <= rows.shape[1] else rows.T
            last = weight.shape[0] if weight.shape[0] in (1, 3) else 0
            gain = {1: 1.0, 3: 0.01}.get(last, 2**0.5)
            torch.testing.assert_close(smaller @ smaller.T, gain**2 * torch.eye(len(smaller)), rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    own = policy_for(OBSERVATIONS, encoder="sample_networks:TanhNet").params.tensors
    assert own["actor.encoder.module.0.bias"].abs().min() > 0.0  # torch's own
    assert not own["actor.heads.actor.0.bias"].any()


def test_weights_of_dqn_and_sac_begin_as_torch_initialises_them(make_config: MakeConfig) -> None:
    learner = build_learner(make_config(algo="dqn", algo_kwargs={"layer_norm": True, "hidden_sizes": [400]}))
    weight, bias = (learner.policy.params.tensors[f"advantage.heads.advantage.0.{kind}"] for kind in ("weight", "bias"))
    for param in (weight, bias):
        assert 0.9 < param.abs().max() * 3**0.5 <= 1.0  # uniform within 1 / sqrt(inputs)


def mlp_params(network: MLP) -> dict[str, Tensor]:
    params = HostedParams(network.shapes, torch.device("cpu"))
    network.initialise(params.tensors, torch.Generator().manual_seed(0))
    return params.tensors


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("stack", [None, 2])
def test_torch_differentiates_the_mlp(activation: Any, stack: int | None) -> None:
    network = MLP("net", [3, 8, 8, 2], activation, stack, output_gain=1.0)
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
