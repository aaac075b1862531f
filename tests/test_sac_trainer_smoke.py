from typing import Any

import numpy as np
import pytest
from conftest import MakeConfig, stored_rows

from rl_training import SAC
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.runs import context_of, read_metrics
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training


def test_a_run_leaves_metrics_and_a_checkpoint_with_its_replay_buffer(make_config: MakeConfig) -> None:
    result = train_sac(make_config(algo="sac"), run_suffix="here")
    assert result.run_dir.name == "sac__Pendulum-v1__seed7__here"
    assert result.metrics["global_step"] == 128
    saved = load_checkpoint(result.checkpoint_path)
    assert saved.buffer_state["size"] == 128
    assert stored_rows(saved).shape == (128, 3 + 1 + 3 + 3)
    assert stored_rows(saved)[:, 3].abs().max() <= 1.0  # the policy's scale, not the env's
    logged = [row for row in read_metrics(context_of(result.run_dir)) if "train/critic_loss" in row]
    assert {"train/actor_loss", "train/ent_coef", "train/entropy", "train/q_mean"} <= set(logged[-1])
    assert evaluate_checkpoint(result.checkpoint_path, 2)["eval_return_mean"] == result.metrics["eval_return_mean"]


@pytest.mark.parametrize(
    "options", [{"alpha": 0.2}, {"policy_delay": 2}, {"n_step": 3}, {"target_entropy": -0.5}], ids=str
)
def test_every_option_trains_and_resumes(make_config: MakeConfig, options: dict[str, Any]) -> None:
    result = train_sac(make_config(algo="sac", algo_kwargs=options))
    resumed = resume_training(result.checkpoint_path, total_timesteps=192)
    assert resumed.metrics["num_updates"] == (192 - 32) // 4


def test_temperature_counters_and_replay_go_on_where_they_were(make_config: MakeConfig) -> None:
    config = make_config(algo="sac", total_timesteps=256, keep_checkpoints=10)
    straight = train_sac(config)
    middle = load_checkpoint(straight.checkpoint_path.parent / "step_128.pt")
    resumed = resume_training(straight.checkpoint_path.parent / "step_128.pt")
    end = load_checkpoint(resumed.checkpoint_path)
    assert end.algorithm_state["num_updates"] == straight.metrics["num_updates"] == 56
    assert end.algorithm_state["alpha_optimizer"]["steps"].item() == 56
    assert middle.algorithm_state["log_alpha"].item() != end.algorithm_state["log_alpha"].item()
    assert (middle.buffer_state["added"], end.buffer_state["added"], end.buffer_state["size"]) == (128, 256, 200)
    assert stored_rows(end)[: 124 - 56].equal(stored_rows(middle)[56:124])


@pytest.mark.parametrize("alpha", [-1.0, 0.0, "automatic", True])
def test_a_temperature_is_auto_or_positive(make_config: MakeConfig, alpha: Any) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.alpha"):
        train_sac(make_config(algo="sac", algo_kwargs={"alpha": alpha}))


def test_discrete_actions_are_refused_with_what_is_supported(make_config: MakeConfig) -> None:
    config = make_config(algo="sac", env_id="CartPole-v1")
    with pytest.raises(
        EnvironmentSetupError, match="not supported by sac; supported: Box of floats with finite bounds"
    ):
        train_sac(config)
    assert not config.output_dir.exists()


def test_a_model_predicts_within_the_bounds_of_its_env(make_config: MakeConfig) -> None:
    model = SAC(make_config(algo="sac"))
    model.learn()
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for deterministic in (True, False):
        actions = np.asarray(model.predict(obs, deterministic=deterministic))
        assert actions.shape == (50, 1)
        assert np.abs(actions).max() <= 2.0
