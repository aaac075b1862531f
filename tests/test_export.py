"""Exported policies act like the agent, in every format, and nothing is written that does not."""

import builtins
import importlib.util
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_spaces_envs  # noqa: F401  (registers envs)
import torch
from conftest import TINY, MakeConfig, slow_except_first
from plugin_td3 import TD3

from rl_training import DQN, PPO, SAC
from rl_training.cli import main
from rl_training.deploy import export
from rl_training.deploy.checking import check_export, sample_observations
from rl_training.deploy.export import export_agent
from rl_training.deploy.numpy_agent import Agent as NumpyAgent
from rl_training.deploy.program import make_program
from rl_training.errors import ExportError
from rl_training.runtime.agents import Agent, build_agent, predict_action
from rl_training.runtime.registry import get_algorithm_spec

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra export",
)
MakeAgent = Callable[..., Agent]
SEED = 4  # with these weights, every agent chooses different actions for different observations

AGENTS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo, numbers": {"env_id": "Pendulum-v1", "algo_kwargs": {"normalize_obs": True, "activation": "elu"}},
    "ppo, nested observations": {"env_id": "sample_spaces:Nested-v0", "algo_kwargs": {"normalize_obs": True}},
    "ppo, tuples": {"env_id": "sample_spaces:Tuple-v0", "algo_kwargs": {"activation": "gelu", "layer_norm": True}},
    "ppo, nested actions": {
        "env_id": "sample_spaces:NestedAction-v0",
        "algo_kwargs": {"shared_trunk": True, "activation": "silu", "critic_hidden_sizes": [4]},
    },
    "ppo, dials": {"env_id": "tests/Dials-v0", "algo_kwargs": {"actor_hidden_sizes": [5, 4]}},
    "ppo, switches": {"env_id": "tests/Switches-v0"},
    "ppo, masks": {"env_id": "sample_spaces:Masked-v0", "action_mask": "info"},
    "ppo, frames": {"frame_stack": 3, "algo_kwargs": {"activation": "leaky_relu"}},
    "dqn": {"algo": "dqn", "env_id": "FrozenLake-v1", "algo_kwargs": {"dueling": True}},
    "dqn, masks in observations": {
        "algo": "dqn",
        "env_id": "sample_spaces:Masked-v0",
        "env_kwargs": {"source": "observation"},
        "action_mask": "observation.action_mask",
    },
    "dqn, no hidden layers": {"algo": "dqn", "algo_kwargs": {"hidden_sizes": []}},
    "sac": {"algo": "sac", "algo_kwargs": {"normalize_obs": True}},
}
VARIED = ["ppo, nested observations", "ppo, nested actions", "ppo, dials", "ppo, masks", "dqn", "sac"]
ONE_PER_ALGORITHM = ["ppo, nested actions", "dqn, masks in observations", "sac"]


@pytest.fixture
def make_agent(make_config: MakeConfig) -> MakeAgent:
    """An agent with large random weights and statistics, so that every part of it matters."""

    def make(**changes: Any) -> Agent:
        config = make_config(**changes)
        agent = build_agent(get_algorithm_spec(config.algo).build_learner_fn, config)
        policy: Any = agent.learner.policy
        policy.params.set(torch.randn(policy.params.flat.shape, generator=torch.Generator().manual_seed(SEED)))
        policy.encoder.observe(sample_observations(agent, make_program(agent), 50))
        return agent

    return make


def exported_actions(agent: Agent, path: Path, format_name: str) -> tuple[Any, Any]:
    """What the agent and its export choose for random observations."""
    program = make_program(agent)
    rows = sample_observations(agent, program, 40)
    inputs = program.split(rows)
    file = export_agent(agent, path, format_name).files[0]
    if format_name == "torch":
        found = torch.export.load(file).module()({name: torch.from_numpy(own) for name, own in inputs.items()})
        parts = [values.numpy() for values in found.values()]
    elif format_name == "onnx":
        import onnxruntime

        parts = onnxruntime.InferenceSession(file).run(None, inputs)
    else:
        parts = NumpyAgent(file).run(list(inputs.values()))
    expected = agent.learner.policy.predict(rows)
    return expected.reshape(len(rows), -1), np.hstack([part.reshape(len(rows), -1) for part in parts])


@pytest.mark.parametrize(
    ("name", "format_name"), [*((name, "numpy") for name in AGENTS), *((name, "torch") for name in VARIED)]
)
def test_an_export_acts_like_the_agent(name: str, format_name: str, make_agent: MakeAgent, tmp_path: Path) -> None:
    expected, found = exported_actions(make_agent(**AGENTS[name]), tmp_path / "agent", format_name)
    assert len(np.unique(expected, axis=0)) > 1
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_onnx
@pytest.mark.parametrize("name", slow_except_first(ONE_PER_ALGORITHM))
def test_an_export_to_onnx_acts_like_the_agent(name: str, make_agent: MakeAgent, tmp_path: Path) -> None:
    expected, found = exported_actions(make_agent(**AGENTS[name]), tmp_path / "agent", "onnx")
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "ppo, nested observations", "ppo, nested actions", "ppo, masks", "dqn", "sac"])
def test_the_numpy_agent_takes_observations_as_predict_does(name: str, make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent(**AGENTS[name])
    acting = NumpyAgent(export_agent(agent, tmp_path / "agent.npz", "numpy").files[0])
    space: Any = getattr(agent.observation_space, "original", agent.observation_space)
    space.seed(3)
    masks = [np.array([1, 0, 1, 0])] if "masks" in name else []
    for obs in [space.sample() for _ in range(5)]:
        expected, found = predict_action(agent, obs, True, *masks), acting.act(obs, *masks)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_numpy_agent_takes_batches(make_agent: MakeAgent, tmp_path: Path) -> None:
    flat, nested = make_agent(), make_agent(**AGENTS["ppo, nested actions"])
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    acting = NumpyAgent(export_agent(flat, tmp_path / "flat", "numpy").files[0])
    assert np.array_equal(acting.act(rows), predict_action(flat, rows))
    acting = NumpyAgent(export_agent(nested, tmp_path / "nested", "numpy").files[0])
    assert [action["gear"] for action in acting.act(rows[:, :2])] == [
        action["gear"] for action in predict_action(nested, rows[:, :2])
    ]


@pytest.mark.parametrize("obs", [[0.0, np.nan, 0.0, 0.0], [0.0, 0.0, 0.0, np.inf], [0.0, 0.0]])
def test_the_numpy_agent_refuses_other_observations(obs: list[float], make_agent: MakeAgent, tmp_path: Path) -> None:
    acting = NumpyAgent(export_agent(make_agent(), tmp_path / "agent", "numpy").files[0])
    with pytest.raises(ValueError, match=r"obs must have shape \[4\], or a batch of it, with finite legal values"):
        acting.act(np.array(obs, np.float32))


def test_the_numpy_agent_needs_its_masks(make_agent: MakeAgent, tmp_path: Path) -> None:
    acting = NumpyAgent(export_agent(make_agent(**AGENTS["ppo, masks"]), tmp_path / "agent", "numpy").files[0])
    with pytest.raises(ValueError, match="the action mask allows no action"):
        acting.act(np.zeros(1, np.float32), [0, 0, 0, 0])
    with pytest.raises(ValueError, match="give action_mask=, with 4 entries"):
        acting.act(np.zeros(1, np.float32))


def test_the_numpy_module_is_short_and_acts_as_a_program_without_this_package(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    file, module = export_agent(agent, tmp_path / "agent.npz", "numpy").files
    assert len(module.read_text().splitlines()) <= 100
    arguments = [str(module), str(file), "[0.5, 0.1, -0.2, 0.3]"]
    script = (
        "import runpy, sys; sys.modules.update(torch=None, gymnasium=None, rl_training=None); "
        f"sys.argv = {arguments!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == predict_action(agent, np.array([0.5, 0.1, -0.2, 0.3], np.float32))


def test_images_are_exported_to_torch_and_refused_for_numpy(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent(env_id="sample_networks:Side-v0")
    expected, found = exported_actions(agent, tmp_path / "agent", "torch")
    assert np.array_equal(expected, found)
    with pytest.raises(
        ExportError, match="perceptrons only, and this network contains ImageEncoder: use the format onnx"
    ):
        export_agent(agent, tmp_path / "agent", "numpy")
    assert not (tmp_path / "agent.npz").exists()


def test_a_plugin_is_exported_like_the_built_in_algorithms(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(algo="td3", env_id="Pendulum-v1", algo_kwargs=TINY["sac"])
    expected, found = exported_actions(build_agent(TD3.build_learner_fn, config), tmp_path / "agent", "numpy")
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_export_that_acts_differently_is_refused(make_agent: MakeAgent) -> None:
    for name, wrong in (("ppo", lambda action: 1 - action), ("sac", lambda action: action + 0.01)):
        agent = make_agent(**AGENTS[name])
        program = make_program(agent)

        def run(inputs: dict[str, Any], agent: Agent = agent, wrong: Any = wrong) -> dict[str, Any]:
            return {"action": wrong(agent.learner.policy.predict(inputs["obs"]))}

        with pytest.raises(ExportError, match="the export acts differently: action is"):
            check_export(agent, program, run)


def test_ties_are_counted_and_not_refused(make_agent: MakeAgent) -> None:
    agent = make_agent()
    policy: Any = agent.learner.policy
    policy.params.set(torch.zeros_like(policy.params.flat))  # both actions have the same score
    program = make_program(agent)
    check = check_export(agent, program, lambda inputs: {"action": np.ones(len(inputs["obs"]), np.int64)})
    assert (check.num_ties, check.num_played + check.num_sampled) == (1000, 1000)


def test_an_export_is_checked_without_the_environment_if_it_is_missing(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = make_agent(env_id="sample_spaces:Nested-v0")
    monkeypatch.setitem(sys.modules, "sample_spaces", None)
    check = export_agent(agent, tmp_path / "agent", "numpy").check
    assert (check.num_played, check.num_sampled) == (0, 1000)
    assert "install the env's package" in str(check.not_played)


@pytest.mark.parametrize(
    ("name", "format_name", "message"),
    [
        ("agent", "tflite", "format='tflite': allowed are onnx, torch, numpy"),
        ("agent.pt", "torch", r"agent\.pt: the name of a file of the format torch ends in \.pt2"),
        ("folder.npz", "numpy", "is a directory; give the name of a file"),
        ("taken/agent", "numpy", r"numpy_agent\.py exists and would be replaced"),
    ],
)
def test_a_target_that_cannot_work_is_refused_before_anything_is_built(
    name: str, format_name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "numpy_agent.py").write_text("mine = 1\n")
    monkeypatch.setattr(export, "make_program", None)
    with pytest.raises(ExportError, match=message):
        export_agent(None, tmp_path / name, format_name)  # type: ignore[arg-type]  # it is never looked at
    assert (tmp_path / "taken" / "numpy_agent.py").read_text() == "mine = 1\n"


def test_without_the_extra_the_error_names_it(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else builtins)
    with pytest.raises(ExportError, match=r"needs onnxscript: pip install 'rl-training\[export\]'"):
        export_agent(make_agent(), tmp_path / "agent", "onnx")


@pytest.mark.parametrize(("model", "algo"), [(PPO, "ppo"), (DQN, "dqn"), (SAC, "sac")])
def test_a_trained_model_exports_from_python_and_from_the_command_line(
    model: Any, algo: str, make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = model(make_config(algo=algo))
    result = trained.learn()
    first = trained.export(tmp_path / "first.npz", format="numpy").files[0]
    target = tmp_path / "new" / "second"
    assert main(["export", str(result.run_dir), "--format", "numpy", "--output", str(target)]) == 0
    assert target.with_suffix(".npz").read_bytes() == first.read_bytes()
    assert "checked on 500 observations of episodes and 500 random ones: largest difference" in capsys.readouterr().out
    obs = np.ones(4 if algo != "sac" else 3, np.float32)
    assert np.allclose(NumpyAgent(first).act(obs), trained.predict(obs), rtol=1e-5, atol=1e-5)


def test_the_example_acts_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["deployment.py", "--total-timesteps", "256"])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "deployment.py"), run_name="__main__")
    assert "exported: agent.npz numpy_agent.py" in capsys.readouterr().out
