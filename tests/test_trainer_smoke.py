import json
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig

from rl_training.errors import ConfigError, EnvironmentSetupError, RLTrainingError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import plan_ppo, train_ppo
from rl_training.runtime.trainer import TrainResult


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    params: dict[str, torch.Tensor] = load_checkpoint(result.checkpoint_path).algorithm_state["policy"]["params"]
    return params


def same_weights(left: TrainResult, right: TrainResult) -> bool:
    return all(torch.equal(weights(left)[name], value) for name, value in weights(right).items())


def test_a_run_leaves_config_metadata_metrics_and_checkpoints(make_config: MakeConfig) -> None:
    config = make_config(tags=["smoke"])
    result = train_ppo(config, run_suffix="here")
    assert result.run_dir == config.output_dir / "ppo__CartPole-v1__seed7__here"
    context = context_of(result.run_dir)
    metadata = read_metadata(context)
    assert metadata["status"] == result.status == "completed"
    assert metadata["metrics"] == result.metrics
    assert metadata["tags"] == ["smoke"]
    assert metadata["ended_at"] >= metadata["started_at"]
    assert result.metrics["global_step"] == 128
    assert result.metrics["eval_episodes"] == 2
    assert result.metrics["eval_return_mean"] >= 1.0
    assert result.metrics["eval_return_std"] >= 0.0
    assert sorted(path.name for path in context.checkpoints_dir.glob("*.pt")) == [
        "best.pt",
        "step_128.pt",
        "step_64.pt",
    ]
    assert result.checkpoint_path == context.checkpoints_dir / "step_128.pt"
    assert list(context.tensorboard_dir.iterdir())
    assert "learning_rate" in context.config_path.read_text()  # defaults are written out


def test_metrics_carry_the_known_names_over_env_steps(make_config: MakeConfig) -> None:
    rows = read_metrics(context_of(train_ppo(make_config(total_timesteps=256)).run_dir))
    logged = [row for row in rows if "time/fps" in row]
    assert [row["step"] for row in logged] == [64, 128, 192, 256]
    expected = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/total_timesteps", "train/approx_kl"}
    expected |= {"train/clip_fraction", "train/explained_variance", "train/entropy_loss", "train/learning_rate"}
    assert expected <= set(logged[-1])
    evaluations = [row for row in rows if "eval/mean_reward" in row]
    assert [row["step"] for row in evaluations] == [64, 128, 192, 256]


@pytest.mark.parametrize("changes", [{}, {"env_id": "Pendulum-v1"}], ids=["discrete", "continuous"])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    make_config: MakeConfig, changes: dict[str, Any]
) -> None:
    first, second = (train_ppo(make_config(**changes)) for _ in range(2))
    assert same_weights(first, second)
    assert not same_weights(first, train_ppo(make_config(seed=8, **changes)))


def test_sync_and_async_envs_give_the_same_weights(make_config: MakeConfig) -> None:
    sync, asynchronous = (train_ppo(make_config(vectorization=kind)) for kind in ("sync", "async"))
    assert same_weights(sync, asynchronous)


def test_evaluation_does_not_change_the_weights(make_config: MakeConfig) -> None:
    without = train_ppo(make_config(eval_episodes=0))
    assert same_weights(without, train_ppo(make_config()))
    assert without.metrics["eval_episodes"] == 0
    assert "eval_return_mean" not in without.metrics


def test_logging_and_checkpoints_do_not_change_the_weights(make_config: MakeConfig) -> None:
    often = train_ppo(make_config(log_interval=1, checkpoint_interval=1, checkpoint_seconds=1e-6))
    assert same_weights(often, train_ppo(make_config(checkpoint_interval=0, checkpoint_seconds=0.0)))


def test_no_global_generator_is_touched(make_config: MakeConfig) -> None:
    numpy_before, torch_before = np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002  (its state is the claim)
    train_ppo(make_config())
    numpy_after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(numpy_before) == str(numpy_after)
    assert torch.equal(torch_before, torch.get_rng_state())


def test_threads_are_given_back(make_config: MakeConfig) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    class Watch(Callback):
        def on_train_start(self, trainer: Any) -> None:
            seen.append(torch.get_num_threads())

    train_ppo(make_config(num_threads=before + 1), callbacks=[Watch()])
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


class CountingCallback(Callback):
    """Counts what really happened."""

    def __init__(self) -> None:
        self.env_steps = self.gradient_steps = self.rollouts = self.evaluations = 0

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        self.env_steps += result.num_env_steps
        self.rollouts += 1

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.gradient_steps += result.num_gradient_steps
        assert trainer.num_updates == self.gradient_steps
        assert trainer.global_step == self.env_steps

    def on_eval_end(self, trainer: Any, metrics: Any) -> None:
        self.evaluations += 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"total_timesteps": 129},
        {"total_timesteps": 1, "num_envs": 1, "algo_kwargs": {"minibatch_size": 5}},
        {"total_timesteps": 500, "num_envs": 3, "eval_interval": 100, "checkpoint_interval": 70},
        {"eval_interval": 0, "checkpoint_interval": 0, "algo_kwargs": {"minibatch_size": 30}},
        {"eval_episodes": 0, "eval_interval": 1, "checkpoint_interval": 1, "total_timesteps": 300},
    ],
)
def test_the_plan_counts_exactly_what_the_run_does(make_config: MakeConfig, changes: dict[str, Any]) -> None:
    config = make_config(keep_checkpoints=1000, **changes)
    plan, counted = plan_ppo(config), CountingCallback()
    result = train_ppo(config, callbacks=[counted])
    assert plan.env_steps == counted.env_steps == result.metrics["global_step"] >= config.total_timesteps
    assert plan.gradient_steps == counted.gradient_steps == result.metrics["num_updates"]
    assert plan.details["rollouts"] == counted.rollouts
    assert plan.evaluations == counted.evaluations
    assert plan.checkpoints == len(list(result.checkpoint_path.parent.glob("step_*.pt")))


def test_only_the_newest_checkpoints_stay(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(total_timesteps=384, keep_checkpoints=2))
    names = sorted(path.name for path in result.checkpoint_path.parent.iterdir())
    kept = ["best.pt", "step_320.pt", "step_384.pt"]
    assert names == sorted(kept + [f"{name}.manifest.json" for name in kept])


def test_the_best_checkpoint_is_the_best_evaluation(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(total_timesteps=640))
    evaluations = [
        (row["eval/mean_reward"], row["step"])
        for row in read_metrics(context_of(result.run_dir))
        if "eval/mean_reward" in row
    ]
    best = load_checkpoint(result.checkpoint_path.parent / "best.pt")
    best_return = max(value for value, _ in evaluations)
    assert best.metadata["metrics"]["eval_return_mean"] == best_return
    assert best.trainer_state["global_step"] == min(step for value, step in evaluations if value == best_return)


def test_wall_time_alone_makes_checkpoints(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(checkpoint_interval=0, checkpoint_seconds=1e-6))
    assert (result.checkpoint_path.parent / "step_64.pt").exists()


def bad_configs() -> list[tuple[dict[str, Any], type[RLTrainingError]]]:
    return [
        ({"algo_kwargs": {"minibatch_size": 65}}, ConfigError),
        ({"algo_kwargs": {"gama": 0.9}}, ConfigError),
        ({"env_id": "CartPol-v1"}, EnvironmentSetupError),
        ({"env_kwargs": {"no_such": 1}}, EnvironmentSetupError),
        ({"env_kwargs": {"no_such": 1}, "vectorization": "async"}, EnvironmentSetupError),
        ({"device": "cuda:99"}, ConfigError),
        ({"algo_kwargs": {"num_steps": 10**12}}, ConfigError),
    ]


@pytest.mark.parametrize(("changes", "error"), bad_configs())
def test_a_set_up_error_leaves_no_directory_behind(
    make_config: MakeConfig, changes: dict[str, Any], error: type[RLTrainingError]
) -> None:
    config: TrainConfig = make_config(**changes)
    with pytest.raises(error):
        train_ppo(config)
    assert not config.output_dir.exists()


def test_a_callback_without_the_five_methods_is_refused_before_any_file_is_made(make_config: MakeConfig) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match="on_eval_end"):
        train_ppo(config, callbacks=[object()])  # type: ignore[list-item]  # what is tested
    assert not config.output_dir.exists()


def test_metadata_is_plain_json_without_nan(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    text = context_of(result.run_dir).metadata_path.read_text()
    assert (
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in metadata"))["run_id"]
        == result.run_dir.name
    )
