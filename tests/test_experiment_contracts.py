from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from conftest import MakeConfig

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunContext, create_run_context
from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec, list_algorithm_specs


def test_a_config_needs_only_algorithm_and_environment() -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1")
    assert (config.device, config.num_envs, config.eval_episodes) == ("auto", 1, 5)
    assert (config.tags, config.algo_kwargs, config.env_kwargs) == ((), {}, {})
    assert isinstance(config.output_dir, Path)


def test_a_config_does_not_change() -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1")
    with pytest.raises(Exception, match="frozen"):
        config.seed = 2  # type: ignore[misc]  # what is tested


def test_a_run_context_names_the_places_of_a_run(make_config: MakeConfig) -> None:
    context = create_run_context(make_config(), run_suffix="abc")
    assert context.run_id == "ppo__CartPole-v1__seed7__abc"
    assert context.run_dir.name == context.run_id
    assert context.config_path == context.run_dir / "config.yaml"
    assert context.metadata_path == context.run_dir / "metadata.json"
    assert context.checkpoints_dir.is_dir()
    assert context.tensorboard_dir.is_dir()
    names = ["run_id", "run_dir", "checkpoints_dir", "tensorboard_dir", "config_path", "metadata_path"]
    assert [field.name for field in fields(RunContext)] == names


def test_a_checkpoint_has_five_parts() -> None:
    names = ["algorithm_state", "buffer_state", "trainer_state", "config", "metadata"]
    assert [field.name for field in fields(CheckpointState)] == names


def test_the_registry_knows_ppo_and_suggests_the_nearest_name() -> None:
    assert "ppo" in [spec.name for spec in list_algorithm_specs()]
    spec = get_algorithm_spec("ppo")
    assert isinstance(spec, AlgorithmSpec)
    with pytest.raises(FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]  # what is tested
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        get_algorithm_spec("pppo")
    with pytest.raises(ConfigError, match="registered: "):
        get_algorithm_spec("alphazero")
