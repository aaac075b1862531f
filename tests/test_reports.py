"""What environments report at the end of episodes: read, averaged, logged, resumed and used."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_envs  # noqa: F401  (registers the envs)
from conftest import MakeConfig
from sample_runs import write_run

from rl_training.api import PPO
from rl_training.cli import main
from rl_training.envs.reports import MAX_NUMBERS, InfoReader, average_numbers, info_of
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.experiment.sources import Layer
from rl_training.results import compare, load_group
from rl_training.runtime.callbacks import Callback, StopAt
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.saved import SavedProgress
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import prepare_resume, resume_training


def rows_of(result: TrainResult, prefix: str) -> list[dict[str, Any]]:
    """The logged metrics of one kind, with their step."""
    found = []
    for row in read_metrics(context_of(result.run_dir)):
        values = {name: value for name, value in row.items() if name.startswith(prefix)}
        found += [{"step": row["step"], **values}] if values else []
    return found


def test_finite_scalars_are_read_under_safe_names() -> None:
    info = {"is_success": True, "x": 1, "y": np.float32(0.5), "z": np.bool_(False), "a/b c": 2, "é": 3}
    ignored: dict[Any, Any] = {
        "episode": 1,
        "TimeLimit.truncated": True,
        "action_mask": 1,
        "_x": 1,
        7: 7,
        "text": "1",
        "none": None,
    }
    ignored |= {
        "array": np.ones(1),
        "zero": np.array(1.0),
        "list": [1],
        "nan": math.nan,
        "inf": -np.inf,
        "big": 10**400,
    }
    numbers = InfoReader().read({**ignored, **info})
    assert numbers == {"success_rate": 1.0, "x": 1.0, "y": 0.5, "z": 0.0, "a_b_c": 2.0, "é": 3.0}
    assert {type(number) for number in numbers.values()} == {float}


def test_too_many_names_too_long_ones_and_those_of_other_metrics_are_left_out_with_one_warning() -> None:
    info = {"x" * 61: 1, "return_mean": 2, "a b": 3, "a/b": 4, **{f"key_{number}": 5 for number in range(10_000)}}
    reader = InfoReader()
    with pytest.warns(UserWarning, match=r"not logged: 'x+', 'return_mean', 'a/b' and 9,951 more of the info") as said:
        numbers = reader.read(info)
    assert list(numbers) == ["a_b", *(f"key_{number}" for number in range(49))]
    assert reader.read(info) == numbers
    assert len(said) == 1


def test_an_average_is_over_the_episodes_that_have_it_and_the_names_are_limited() -> None:
    assert average_numbers([{"a": 1.0}, {"a": 2.0, "b": 5.0}, {}]) == {"a": 1.5, "b": 5.0}
    assert len(average_numbers({f"{number}": 1.0} for number in range(200))) == MAX_NUMBERS


def test_the_infos_of_a_batched_env_are_arrays_with_an_optional_mask() -> None:
    infos = {"a": np.array([1, 2]), "_a": np.array([True, False]), "b": np.array([3.0, 4.0]), "c": 5, "d": np.ones(3)}
    assert InfoReader().read(info_of(infos, 0, 2)) == {"a": 1.0, "b": 3.0}
    assert InfoReader().read(info_of(infos, 1, 2)) == {"b": 4.0}


def test_training_logs_the_same_numbers_however_the_envs_are_stepped(make_config: MakeConfig) -> None:
    logged = []
    for vectorization in ("sync", "async", "sample_vector_envs:BatchedReporting"):
        config = make_config(
            env_id="tests/Reporting-v0", vectorization=vectorization, envs_per_worker=2, eval_episodes=0
        )
        logged.append(rows_of(train_ppo(config), "rollout/"))
    assert logged[0] == logged[1] == logged[2]
    names = {"step", *(f"rollout/{name}" for name in ("ep_rew_mean", "ep_len_mean", "success_rate", "drawn", "a_b_c"))}
    assert [set(row) for row in logged[0]] == [names, names]
    assert 0.5 * logged[0][-1]["rollout/success_rate"] < logged[0][-1]["rollout/drawn"] < 1.0  # not cut to integers


def test_a_resumed_run_logs_the_numbers_of_the_uninterrupted_one(make_config: MakeConfig) -> None:
    class StopOnce(Callback):
        def on_update_end(self, trainer: TrainerState, result: Any) -> None:
            trainer.request_stop("half way")

    config = make_config(env_id="tests/Reporting-v0", total_timesteps=128)
    stopped = train_ppo(config, callbacks=[StopOnce()])
    assert stopped.status == "stopped"
    resumed, whole = resume_training(stopped.run_dir), train_ppo(config)
    for prefix in ("rollout/", "eval/"):
        assert rows_of(resumed, prefix) == rows_of(whole, prefix)


def test_checkpoints_without_reported_numbers_and_best_values_load(make_config: MakeConfig) -> None:
    state = load_checkpoint(train_ppo(make_config(env_id="tests/Reporting-v0")).checkpoint_path).trainer_state
    older = {name: value for name, value in state.items() if name not in ("best_metric", "best_value")}
    progress = SavedProgress.from_state({**older, "episodes": [(3.0, 3)]})
    assert (progress.best_metric, progress.best_value) == ("return", state["best_return"])
    assert [(*episode[:2], dict(episode.info)) for episode in progress.episodes] == [(3.0, 3, {})]


def test_an_evaluation_has_the_success_rate_and_so_have_the_progress_and_the_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ["--env", "tests/Reporting-v0", "--algo", "ppo", "--set", "num_envs=2", "--set", "algo_kwargs.num_steps=32"]
    budget = ["--total-timesteps", "64", "--set", "algo_kwargs.minibatch_size=64", "--output-dir", str(tmp_path)]
    assert main(["train", *run, *budget]) == 0
    printed = capsys.readouterr()
    assert "success 0." in printed.err
    assert "eval success " in printed.err
    assert "eval_success_rate" in printed.out


def test_an_env_that_reports_too_much_is_told_so_once_and_does_not_flood_the_log(make_config: MakeConfig) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")  # each text of a line once
        result = train_ppo(make_config(env_id="tests/Reporting-v0", env_kwargs={"extra": 100}))
    assert ["not logged" in str(warning.message) for warning in said] == [True]
    assert {len(row) for row in rows_of(result, "rollout/")} == {MAX_NUMBERS + 3}


def test_the_best_checkpoint_is_chosen_by_the_best_metric(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(env_id="tests/Reporting-v0", best_metric="drawn", total_timesteps=384))
    drawn = {row["step"]: row["eval/drawn"] for row in rows_of(result, "eval/")}
    best = load_checkpoint(context_of(result.run_dir).checkpoints_dir / "best.pt").trainer_state
    assert best["global_step"] == max(drawn, key=drawn.__getitem__) != 64
    assert best["best_value"] == max(drawn.values())
    returns = [row["eval/mean_reward"] for row in rows_of(result, "eval/")]
    assert read_metadata(context_of(result.run_dir))["best_return"] == max(returns)


def test_a_best_metric_that_no_evaluation_has_is_named_once_with_those_there_are(make_config: MakeConfig) -> None:
    with pytest.warns(
        UserWarning, match="best_metric 'succes' is not in the evaluation; it has return, .*success_rate"
    ) as said:
        result = train_ppo(make_config(env_id="tests/Reporting-v0", best_metric="succes"))
    assert len(said) == 1
    assert not (context_of(result.run_dir).checkpoints_dir / "best.pt").exists()


def test_a_resume_with_another_best_metric_looks_for_its_best_value_anew(make_config: MakeConfig) -> None:
    first = train_ppo(make_config(env_id="tests/Reporting-v0", total_timesteps=64))
    assert first.metrics["eval_return_mean"] > 1.0  # higher than any success rate
    change = Layer("test", {"best_metric": "success_rate", "total_timesteps": 128})
    prepare_resume(first.run_dir, [change]).train()
    best = load_checkpoint(first.run_dir / "checkpoints" / "best.pt").trainer_state
    assert (best["global_step"], best["best_metric"]) == (128, "success_rate")


def test_a_run_stops_once_a_metric_reaches_its_value(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Reporting-v0", eval_episodes=20)
    result = train_ppo(config, callbacks=[StopAt("eval/success_rate", 0.01)])
    assert (result.status, result.metrics["global_step"]) == ("stopped", 64)
    reason = read_metadata(context_of(result.run_dir))["stop_reason"]
    assert reason == f"evaluation reached eval/success_rate {result.metrics['eval_success_rate']:g}"
    assert train_ppo(config, callbacks=[StopAt("success_rate", 1.01)]).status == "completed"
    with pytest.warns(
        UserWarning, match="cannot stop early: 'sucess' is not in the evaluation; it has return, "
    ) as said:
        assert train_ppo(config, callbacks=[StopAt("sucess", 0.5)]).status == "completed"
    assert len(said) == 1


def test_stop_at_is_read_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        "--algo",
        "ppo",
        "--env",
        "rl_training/ActionRewardProbe-v0",
        "--output-dir",
        str(tmp_path / "r"),
    ]
    for given, said in (
        ("success_rate", "--stop-at success_rate: give METRIC=VALUE, such as eval/success_rate=0.95"),
        ("eval/success_rate=high", "give METRIC=VALUE"),
        ("=1", "give METRIC=VALUE"),
        ("eval/success_rate=nan", "threshold=nan: give a finite value"),
        ("rollout/success_rate=1", "only evaluations stop a run"),
    ):
        assert main([*command, "--stop-at", given]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    small = ["--set", "algo_kwargs.num_steps=16", "--set", "algo_kwargs.minibatch_size=16", "--set", "eval_interval=16"]
    assert main([*command, *small, "--stop-at", "eval/mean_reward=0"]) == 0
    assert "Run stopped" in capsys.readouterr().out


def test_groups_are_compared_drawn_and_reported_by_a_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rates in (("a", (0.1, 0.2, 0.15, 0.12)), ("b", (0.9, 0.8, 0.85, 0.95))):
        for seed, rate in enumerate(rates, start=1):
            write_run(tmp_path / name, seed, [5.0, 5.0], reported={"success_rate": [1.0, rate]})
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert compare(load_group(a), load_group(b), metric="success_rate").verdict == "better"
    assert compare(load_group(a), load_group(b), metric="success_rate", score="best").verdict == "undecided"
    assert main(["compare", a, b, "--metric", "success_rate:auc"]) == 0
    assert "Mean height of the evaluation curve of success_rate on" in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert main(["report", a, b, "--no-film", "--metric", "success_rate", "--output", str(page)]) == 0
    for words in (
        "Evaluation success rate",
        "success_rate of the final evaluations",
        "B is better",
        "best success_rate",
    ):
        assert words in page.read_text()
    write_run(tmp_path / "b", 9, [5.0, 5.0])
    assert main(["compare", a, b, "--metric", "success_rate"]) == 2
    assert "its evaluations have no 'success_rate'; known: return, mean_reward, std_reward" in capsys.readouterr().err


def test_curves_of_a_metric_are_drawn_by_its_short_name(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "a", 1, [5.0, 5.0], reported={"success_rate": [0.0, 1.0]})
    picture = tmp_path / "curves.svg"
    assert main(["plot", str(run_dir), "--metric", "success_rate", "--output", str(picture)]) == 0
    assert picture.exists()


def test_evaluation_envs_have_their_own_arguments(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Reporting-v0", env_kwargs={"limit": 3}, eval_env_kwargs={"limit": 5})
    result = train_ppo(config)
    assert rows_of(result, "rollout/")[-1]["rollout/ep_len_mean"] == 3.0
    assert result.metrics["eval_length_mean"] == 5.0
    assert PPO.load(result.run_dir).evaluate(2)["eval_length_mean"] == 5.0


def test_arguments_that_change_the_spaces_of_evaluation_are_refused_before_a_directory_is_made(
    make_config: MakeConfig,
) -> None:
    config = make_config(env_id="tests/Echo-v0", eval_env_kwargs={"kind": "discrete"})
    with pytest.raises(ConfigError, match=r"eval_env_kwargs=\{'kind': 'discrete'\}: evaluation would have"):
        train_ppo(config)
    assert not config.output_dir.exists()
