from pathlib import Path

import pytest
import torch
from conftest import MakeConfig

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

ALGORITHMS = [spec.name for spec in list_algorithm_specs()]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_trains_evaluates_and_resumes(make_config: MakeConfig, algo: str) -> None:
    result = get_algorithm_spec(algo).train_fn(make_config(algo=algo))
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=3)["eval_episodes"] == 3
    assert resume_training(result.checkpoint_path, total_timesteps=192).metrics["global_step"] == 192


def test_evaluating_the_final_checkpoint_repeats_the_runs_own_evaluation(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    repeated = evaluate_checkpoint(result.run_dir, num_episodes=2)
    assert all(result.metrics[name] == value for name, value in repeated.items())


def test_evaluating_a_run_directory_can_take_the_best_checkpoint(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(total_timesteps=640))
    best = evaluate_checkpoint(result.run_dir, num_episodes=2, best=True)
    assert best["eval_return_mean"] == read_metadata(context_of(result.run_dir))["best_return"]


def test_no_episodes_are_no_evaluation(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    with pytest.raises(ConfigError, match="num_episodes=0"):
        evaluate_checkpoint(result.checkpoint_path, num_episodes=0)


def test_resuming_a_file_forks_and_names_the_parent(make_config: MakeConfig) -> None:
    parent = train_ppo(make_config())
    fork = resume_training(parent.checkpoint_path, total_timesteps=256, run_suffix="fork")
    assert fork.run_dir != parent.run_dir
    assert fork.run_dir.name.endswith("__fork")
    assert read_metadata(context_of(fork.run_dir))["parent"] == {"run_id": parent.run_dir.name, "step": 128}
    assert read_metadata(context_of(parent.run_dir))["global_step"] == 128


def test_counters_and_schedules_go_on_where_they_were(make_config: MakeConfig) -> None:
    linear = {"learning_rate": {"schedule": "linear", "start": 1e-3}}
    config = make_config(total_timesteps=256, algo_kwargs=linear, keep_checkpoints=10)
    straight = train_ppo(config)
    rows = {row["step"]: row for row in read_metrics(context_of(straight.run_dir)) if "time/fps" in row}
    resumed = resume_training(straight.checkpoint_path.parent / "step_128.pt")
    later = {row["step"]: row for row in read_metrics(context_of(resumed.run_dir)) if "time/fps" in row}
    assert sorted(later) == [192, 256]
    for step, row in later.items():
        for name in ("train/learning_rate", "train/n_updates"):
            assert row[name] == rows[step][name]
    assert resumed.metrics["num_updates"] == straight.metrics["num_updates"]


def test_a_run_in_two_parts_ends_with_the_weights_of_one(make_config: MakeConfig) -> None:
    params = {"learning_rate": {"schedule": "linear", "start": 1e-2}, "clip_coef": {"schedule": "linear", "start": 0.3}}
    config = make_config(env_id="rl_training/ActionRewardProbe-v0", total_timesteps=256, algo_kwargs=params)
    straight = train_ppo(config)
    resumed = resume_training(straight.checkpoint_path.parent / "step_192.pt")
    one, two = (load_checkpoint(result.checkpoint_path) for result in (straight, resumed))
    for name, weights in one.algorithm_state["policy"]["params"].items():
        assert torch.equal(weights, two.algorithm_state["policy"]["params"][name])
    assert straight.metrics == resumed.metrics
    logged, logged_again = one.trainer_state["metrics"], two.trainer_state["metrics"]
    timed = {name: value for name, value in logged_again.items() if name.startswith("time/")}
    assert logged_again == {**logged, **timed}
    # 64 steps of each env are 64 episodes: none is begun twice, none is left out.
    assert one.trainer_state["envs"]["episode_numbers"] == two.trainer_state["envs"]["episode_numbers"] == [64] * 4


def test_intervals_go_on_where_they_were(make_config: MakeConfig) -> None:
    config = make_config(total_timesteps=256, log_interval=100, eval_interval=100, keep_checkpoints=10)
    straight = train_ppo(config)
    resumed = resume_training(straight.checkpoint_path.parent / "step_128.pt")
    steps = [[row["step"] for row in read_metrics(context_of(result.run_dir))] for result in (straight, resumed)]
    # A training and an evaluation line where 100, 200 and the end are reached; 192 is none of them.
    assert steps == [[128, 128, 256, 256], [256, 256]]


def test_resuming_takes_over_optimizer_and_streams(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    saved = load_checkpoint(result.checkpoint_path)
    step_64 = load_checkpoint(result.checkpoint_path.parent / "step_64.pt")
    assert saved.algorithm_state["optimizer"]["steps"].item() == result.metrics["num_updates"]
    for stream in ("minibatch_stream",):
        assert saved.algorithm_state[stream] != step_64.algorithm_state[stream]
    fork = load_checkpoint(resume_training(result.checkpoint_path, total_timesteps=192).checkpoint_path)
    assert fork.algorithm_state["optimizer"]["steps"].item() == 12


def test_resuming_in_place_forgets_what_lies_beyond_the_checkpoint(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    newest = result.checkpoint_path
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"step_128\.pt is damaged.*using step_64\.pt"):
        resumed = resume_training(result.run_dir)
    assert resumed.metrics["global_step"] == 128
    steps = [row["step"] for row in read_metrics(context_of(result.run_dir))]
    assert steps == [64, 64, 128, 128]  # a training and an evaluation line each, none twice
    load_checkpoint(newest)


def test_a_checkpoint_that_does_not_fit_its_config_is_refused_without_a_directory(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    saved = load_checkpoint(train_ppo(make_config()).checkpoint_path)
    saved.algorithm_state["policy"]["params"]["actor.0.weight"] = torch.zeros(3, 3)
    path = save_checkpoint(tmp_path / "odd.pt", saved)
    runs = len(list((tmp_path / "runs").iterdir()))
    with pytest.raises(CheckpointError, match="does not fit"):
        evaluate_checkpoint(path)
    with pytest.raises(CheckpointError, match="does not fit"):
        resume_training(path, total_timesteps=256)
    assert len(list((tmp_path / "runs").iterdir())) == runs
