import itertools
import json
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sample_envs  # noqa: F401  (registers the envs)
import torch
from conftest import MakeConfig

from rl_training.errors import ConfigError, EnvironmentSetupError, RLTrainingError, TrainingInterrupted
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import Callback, StopAtReturn
from rl_training.runtime.ppo_trainer import PPO, train_ppo
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import resume_training


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    params: dict[str, torch.Tensor] = load_checkpoint(result.checkpoint_path).algorithm_state["policy"]["params"]
    return params


def same_weights(left: TrainResult, right: TrainResult) -> bool:
    return all(torch.equal(weights(left)[name], value) for name, value in weights(right).items())


def metrics_rows(result: TrainResult) -> list[dict[str, Any]]:
    return read_metrics(context_of(result.run_dir))


def saved_steps(result: TrainResult) -> list[int]:
    return sorted(int(path.stem.removeprefix("step_")) for path in result.checkpoint_path.parent.glob("step_*.pt"))


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
        "step_0.pt",  # from its first moment on, a run can be resumed
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
    assert [row["train/n_updates"] for row in logged] == [4, 8, 12, 16]
    evaluations = [row for row in rows if "eval/mean_reward" in row]
    assert [row["step"] for row in evaluations] == [64, 128, 192, 256]


@pytest.mark.parametrize(
    "changes",
    [{}, {"env_id": "Pendulum-v1"}, {"env_id": "FrozenLake-v1"}],
    ids=["discrete", "continuous", "discrete observations"],
)
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


def test_intervals_count_env_steps_and_come_round_at_the_first_rollout_that_reaches_them(
    make_config: MakeConfig,
) -> None:
    """Rollouts end at 48, 96, ... 288: 100 is reached at 144, 150 at 192, 200 at 240; the end counts too."""
    config = make_config(
        total_timesteps=288,
        num_envs=3,
        log_interval=200,
        eval_interval=100,
        checkpoint_interval=150,
        checkpoint_seconds=0.0,
    )
    result = train_ppo(config)
    rows = metrics_rows(result)
    assert [row["step"] for row in rows if "time/fps" in row] == [240, 288]
    assert [row["time/total_timesteps"] for row in rows if "time/fps" in row] == [240, 288]
    assert [row["step"] for row in rows if "eval/mean_reward" in row] == [144, 240, 288]
    assert saved_steps(result) == [0, 192, 288]
    plan = PPO.plan_fn(config)
    assert (plan.evaluations, plan.checkpoints) == (3, 3)


def test_annealing_begins_with_the_first_rollout_and_counts_env_steps(make_config: MakeConfig) -> None:
    linear = {"schedule": "linear", "start": 1e-3}
    result = train_ppo(make_config(total_timesteps=256, algo_kwargs={"learning_rate": linear}))
    rates = {row["step"]: row["train/learning_rate"] for row in metrics_rows(result) if "time/fps" in row}
    # A rollout of 64 learns with the rate of its first step.
    assert rates == pytest.approx({64: 1e-3, 128: 7.5e-4, 192: 5e-4, 256: 2.5e-4})


class CountingCallback(Callback):
    """Counts what really happened."""

    def __init__(self) -> None:
        self.env_steps = self.episodes = self.gradient_steps = self.rollouts = self.evaluations = 0

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        self.env_steps += result.num_env_steps
        self.episodes += result.num_episodes
        self.rollouts += 1

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.gradient_steps += result.num_gradient_steps
        assert trainer.num_updates == self.gradient_steps
        assert trainer.global_step == self.env_steps
        assert trainer.num_episodes == self.episodes

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
    plan, counted = PPO.plan_fn(config), CountingCallback()
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


def test_a_checkpoint_knows_the_evaluation_of_its_own_step(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    evaluated = {row["step"]: row["eval/mean_reward"] for row in metrics_rows(result) if "eval/mean_reward" in row}
    for step in (64, 128):
        saved = load_checkpoint(result.checkpoint_path.parent / f"step_{step}.pt")
        assert saved.metadata["metrics"]["eval_return_mean"] == evaluated[step]


def test_the_best_checkpoint_stays_until_an_evaluation_beats_it_also_after_resuming(make_config: MakeConfig) -> None:
    """Every evaluation of this env gives 1, so the first one stays the best."""
    result = train_ppo(make_config(env_id="rl_training/ConstantRewardProbe-v0"))
    best = result.checkpoint_path.parent / "best.pt"
    assert load_checkpoint(best).trainer_state["global_step"] == 64
    resume_training(result.run_dir, total_timesteps=256)
    assert load_checkpoint(best).trainer_state["global_step"] == 64


class TenSecondsPerUpdate(Callback):
    """A clock that only updates move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.now += 10.0


def test_wall_time_alone_makes_checkpoints(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(total_timesteps=320, checkpoint_interval=0, checkpoint_seconds=15.0, keep_checkpoints=9)
    result = train_ppo(config, callbacks=[TenSecondsPerUpdate(monkeypatch)])
    # Rollouts end after 10, 20, ... 50 s: due after 20 s, 20 s after that, and at the end.
    assert saved_steps(result) == [0, 128, 256, 320]


def test_the_rate_counts_the_steps_since_the_last_line_also_after_resuming(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = TenSecondsPerUpdate(monkeypatch)
    result = train_ppo(make_config(), callbacks=[clock])
    resume_training(result.run_dir, total_timesteps=256, callbacks=[clock])
    assert [row["time/fps"] for row in metrics_rows(result) if "time/fps" in row] == [6] * 4  # 64 steps in 10 s


def test_the_training_return_is_the_mean_of_the_last_100_episodes(make_config: MakeConfig) -> None:
    returns: list[float] = []
    logged: list[float] = []

    class Watch(Callback):
        def on_collect_end(self, trainer: Any, result: Any) -> None:
            returns.extend(episode.episode_return for episode in result.episodes)
            logged.append(trainer.metrics["rollout/ep_rew_mean"])

    train_ppo(make_config(env_id="rl_training/ActionRewardProbe-v0", total_timesteps=192), callbacks=[Watch()])
    assert len(returns) == 192  # one per step: 64 for each rollout
    assert logged == pytest.approx([np.mean(returns[:64]), np.mean(returns[28:128]), np.mean(returns[92:])])


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


def test_the_weights_do_not_depend_on_the_threads_around_the_run(make_config: MakeConfig) -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            results.append(train_ppo(make_config(algo_kwargs={"hidden_sizes": [64, 64]})))
        finally:
            torch.set_num_threads(1)
    assert same_weights(*results)


def test_an_env_that_cannot_be_reset_leaves_no_directory_behind(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Failing-v0", env_kwargs={"fails_at": 0})
    with pytest.raises(RuntimeError, match="broken at step 0"):
        train_ppo(config)
    assert not config.output_dir.exists()


@pytest.mark.parametrize("fails_at", [5, 40], ids=["first rollout", "later rollout"])
def test_a_run_whose_env_fails_in_mid_rollout_resumes_with_what_was_stored(
    make_config: MakeConfig, fails_at: int
) -> None:
    settings = {"num_steps": 16, "minibatch_size": 16}
    config = make_config(env_id="tests/Failing-v0", num_envs=1, env_kwargs={"fails_at": fails_at}, algo_kwargs=settings)
    with pytest.raises(RuntimeError, match=f"broken at step {fails_at}"):
        train_ppo(config)
    (run_dir,) = config.output_dir.iterdir()
    saved = load_checkpoint(find_checkpoint(run_dir))
    assert saved.trainer_state["global_step"] == fails_at - 1
    assert saved.buffer_state["position"] == (fails_at - 1) % 16
    # The env shows its step: what is saved as the newest observation follows the newest stored one.
    assert saved.trainer_state["obs"].item() == saved.buffer_state["obs"][-1].item() + 1
    resumed = resume_training(run_dir)
    assert resumed.metrics["global_step"] == 128
    metadata = read_metadata(context_of(run_dir))
    assert (metadata["status"], metadata["error"]) == ("completed", None)


def test_a_failed_run_is_marked_and_announced_even_when_it_cannot_be_saved(make_config: MakeConfig) -> None:
    heard: list[str] = []

    class Break(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            shutil.rmtree(trainer.run_dir / "checkpoints")
            (trainer.run_dir / "checkpoints").write_text("in the way")
            raise RuntimeError("broken")

        def on_train_end(self, trainer: Any, result: TrainResult) -> None:
            heard.append(result.status)

    config = make_config()
    with pytest.raises(RuntimeError, match="broken"), pytest.warns(UserWarning, match="while ending the failed run"):
        train_ppo(config, callbacks=[Break()])
    (run_dir,) = config.output_dir.iterdir()
    assert heard == ["failed"]
    assert read_metadata(context_of(run_dir))["status"] == "failed"


def test_a_run_that_used_its_budget_is_completed_whatever_its_last_evaluation_says(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(eval_interval=0), callbacks=[StopAtReturn(1.0)])
    assert result.status == "completed"


def test_a_signal_ends_an_evaluation_at_once(make_config: MakeConfig) -> None:
    """The env has no time limit of its own: only the signal can end its evaluation."""
    config = make_config(env_id="tests/Endless-v0", num_envs=1, eval_episodes=1, algo_kwargs={"minibatch_size": 16})
    with pytest.raises(TrainingInterrupted):
        train_ppo(config)
    (run_dir,) = config.output_dir.iterdir()
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 64


def test_a_forks_best_return_is_its_own(make_config: MakeConfig) -> None:
    parent = train_ppo(make_config(total_timesteps=640))
    fork = resume_training(parent.checkpoint_path, total_timesteps=704)
    best = load_checkpoint(fork.checkpoint_path.parent / "best.pt")
    assert best.metadata["metrics"]["eval_return_mean"] == read_metadata(context_of(fork.run_dir))["best_return"]


def test_a_resumed_run_adds_up_its_time_and_knows_its_budget(make_config: MakeConfig) -> None:
    first = train_ppo(make_config())
    before = read_metadata(context_of(first.run_dir))["wall_seconds"]
    resume_training(first.run_dir, total_timesteps=256)
    metadata = read_metadata(context_of(first.run_dir))
    assert metadata["wall_seconds"] > before
    assert metadata["total_timesteps"] == 256


def test_all_progress_survives_a_round_trip(make_config: MakeConfig) -> None:
    """What a resumed run starts from is what was saved, but for the best return that a fork leaves behind."""
    result = train_ppo(make_config(total_timesteps=640))
    saved = load_checkpoint(result.checkpoint_path).trainer_state
    started: list[dict[str, Any]] = []

    class Look(Callback):
        def on_train_start(self, trainer: Any) -> None:
            started.append({"step": trainer.global_step, "updates": trainer.num_updates})
            started[0] |= {"episodes": trainer.num_episodes, "best": trainer.best_return, "metrics": trainer.metrics}
            raise RuntimeError("seen")

    with pytest.raises(RuntimeError, match="seen"):
        resume_training(result.run_dir, total_timesteps=704, callbacks=[Look()])
    names = {"step": "global_step", "updates": "num_updates", "episodes": "num_episodes"}
    names |= {"best": "best_return", "metrics": "metrics"}
    assert started == [{short: saved[name] for short, name in names.items()}]
    assert saved["num_episodes"] > 0
    again = load_checkpoint(find_checkpoint(result.run_dir)).trainer_state
    for name in ("episodes", "iterated_at", "evaluated_at", "evaluation", "num_episodes"):
        assert again[name] == saved[name]
    assert saved["envs"]["episode_numbers"] == again["envs"]["episode_numbers"]


@pytest.mark.parametrize("seconds", [0.0, -100.0], ids=["stands still", "jumps back"])
def test_a_clock_that_does_not_go_on_gives_finite_rates_in_the_order_of_steps(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: seconds * next(looks), time=lambda: seconds * next(looks))
    monkeypatch.setattr("rl_training.runtime.session.time", clock)
    monkeypatch.setattr("rl_training.experiment.logging.time", clock)
    rows = metrics_rows(train_ppo(make_config(total_timesteps=256)))
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    assert all(0 <= row["time/fps"] < float("inf") for row in rows if "time/fps" in row)


def test_frames_per_second_are_measured(make_config: MakeConfig) -> None:
    rows = read_metrics(context_of(train_ppo(make_config()).run_dir))
    assert all(row["time/fps"] > 0 for row in rows if "time/fps" in row)
