from typing import Any

import pytest
from conftest import MakeConfig, stored_rows

from rl_training.algorithms.dqn import DQNParams
from rl_training.errors import EnvironmentSetupError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.training import resolve_learner_params
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training


def test_a_run_leaves_metrics_and_a_checkpoint_with_its_replay_buffer(make_config: MakeConfig) -> None:
    result = train_dqn(make_config(algo="dqn"), run_suffix="here")
    assert result.run_dir.name == "dqn__CartPole-v1__seed7__here"
    assert result.metrics["global_step"] == 128
    assert result.metrics["eval_episodes"] == 2
    assert read_metadata(context_of(result.run_dir))["status"] == "completed"
    saved = load_checkpoint(result.checkpoint_path)
    assert saved.buffer_state["size"] == 128
    assert stored_rows(saved).shape == (128, 4 + 1 + 3 + 4)
    logged = [row for row in read_metrics(context_of(result.run_dir)) if "train/loss" in row]
    assert {"train/epsilon", "train/q_mean", "train/learning_rate", "rollout/ep_rew_mean"} <= set(logged[-1])
    assert evaluate_checkpoint(result.checkpoint_path, 2)["eval_return_mean"] == result.metrics["eval_return_mean"]


@pytest.mark.parametrize(
    "options",
    [
        {"double": True},
        {"dueling": True},
        {"n_step": 3},
        {"prioritized": True},
        {"double": True, "dueling": True, "n_step": 3, "prioritized": True, "tau": 0.5, "target_update_interval": 8},
    ],
    ids=str,
)
def test_every_option_trains_and_resumes(make_config: MakeConfig, options: dict[str, Any]) -> None:
    result = train_dqn(make_config(algo="dqn", algo_kwargs=options))
    resumed = resume_training(result.checkpoint_path, total_timesteps=192)
    assert resumed.metrics["num_updates"] == (192 - 32) // 4


def test_schedules_counters_and_replay_go_on_where_they_were(make_config: MakeConfig) -> None:
    config = make_config(algo="dqn", total_timesteps=256, keep_checkpoints=10)
    straight = train_dqn(config)
    middle = straight.checkpoint_path.parent / "step_128.pt"
    resumed = resume_training(middle)
    rows = {row["step"]: row for row in read_metrics(context_of(straight.run_dir)) if "train/epsilon" in row}
    later = {row["step"]: row for row in read_metrics(context_of(resumed.run_dir)) if "train/epsilon" in row}
    assert sorted(later) == [192, 256]
    for step, row in later.items():
        for name in ("train/epsilon", "train/learning_rate", "train/n_updates"):
            assert row[name] == rows[step][name]
        assert row["train/epsilon"] == resolve_learner_params(DQNParams, config).epsilon(step, 256)
    before, after = load_checkpoint(middle), load_checkpoint(resumed.checkpoint_path)
    assert (before.buffer_state["size"], before.buffer_state["added"]) == (128, 128)
    assert (after.buffer_state["size"], after.buffer_state["added"]) == (200, 256)  # it has wrapped
    assert stored_rows(after)[: 124 - 56].equal(stored_rows(before)[56:124])


def test_continuous_actions_are_refused_with_what_is_supported(make_config: MakeConfig) -> None:
    config = make_config(algo="dqn", env_id="Pendulum-v1")
    with pytest.raises(EnvironmentSetupError, match=r"Box is not supported by dqn; supported: Discrete.*sac"):
        train_dqn(config)
    assert not config.output_dir.exists()
