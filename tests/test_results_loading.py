"""Runs read back from their directories: what training wrote comes back, and nothing is left out in silence."""

from pathlib import Path

import numpy as np
import pytest
from conftest import MakeConfig
from sample_runs import write_group, write_run
from test_package_smoke import loaded_by

from rl_training.errors import RunDirectoryError
from rl_training.results import RunGroup, load_group, load_groups, load_run
from rl_training.runtime.callbacks import StopAtReturn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training


def test_a_trained_run_comes_back_as_it_was_measured(make_config: MakeConfig) -> None:
    result = train_ppo(make_config())
    run = load_run(result.run_dir)
    assert (run.algo, run.env_id, run.seed, run.status) == ("ppo", "CartPole-v1", 7, "completed")
    assert run.evaluation.steps.tolist() == [64.0, 128.0]
    assert run.training.steps.tolist() == [64.0, 128.0]
    assert run.final_return == run.score() == run.evaluation.values[-1] == result.metrics["eval_return_mean"]
    assert run.score("best") == max(run.evaluation.values)
    assert run.score("auc") == pytest.approx(np.mean(run.evaluation.values))
    assert run.config["algo_kwargs"]["num_steps"] == 16
    assert run.global_step == run.total_timesteps == 128


def test_a_single_run_is_a_group_of_one_and_a_directory_of_runs_a_group(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs", 3, [10.0, 20.0])
    write_run(tmp_path / "runs" / "deeper", 2, [10.0, 40.0])
    assert load_group(run_dir).seeds == (3,)
    group = load_group(tmp_path / "runs")
    assert (group.label, group.algo, group.env_id, group.budgets) == ("runs", "ppo", "CartPole-v1", (2_000,))
    assert group.seeds == (2, 3)
    assert group.scores().tolist() == [40.0, 20.0]
    assert group.scores("auc").tolist() == [25.0, 15.0]
    assert [curve.values.tolist() for curve in group.curves("rollout/ep_rew_mean")] == [[9.0, 39.0], [9.0, 19.0]]
    assert group.notes == ()


def test_several_directories_make_one_group_without_counting_a_run_twice(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, [1.0])
    write_run(tmp_path / "b", 2, [2.0])
    assert load_group(tmp_path / "a", tmp_path / "b", tmp_path).seeds == (1, 2)


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_runs_that_have_not_finished_are_left_out_by_name_unless_asked_for(tmp_path: Path, status: str) -> None:
    write_run(tmp_path, 1, [1.0])
    unfinished = write_run(tmp_path, 2, [2.0], status=status)
    group = load_group(tmp_path)
    assert group.seeds == (1,)
    assert group.notes == (f"left out: {unfinished} ({status})",)
    assert load_group(tmp_path, unfinished=True).seeds == (1, 2)


def test_a_run_that_a_callback_stopped_counts_as_finished(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(total_timesteps=256), callbacks=[StopAtReturn(0.0)])
    assert result.status == "stopped"
    assert load_group(result.run_dir).runs[0].global_step < 256


def test_the_same_seed_with_the_same_settings_counts_once(make_config: MakeConfig) -> None:
    short = train_ppo(make_config())
    longer = resume_training(short.run_dir / "checkpoints" / "step_128.pt", total_timesteps=256)
    group = load_group(make_config().output_dir)
    assert [run.run_dir for run in group.runs] == [longer.run_dir]
    assert group.notes == (f"left out: {short.run_dir} (same seed 7 and settings as {longer.run_dir.name})",)


def test_settings_that_differ_inside_a_group_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, 1, [1.0], algo_kwargs={"gamma": 0.9})
    write_run(tmp_path, 1, [1.0, 2.0], algo_kwargs={"gamma": 0.8}, tags=("free",))
    group = load_group(tmp_path)
    assert group.seeds == (1, 1)
    assert group.notes == (f"the runs of {tmp_path.name} differ in algo_kwargs.gamma, total_timesteps",)


def test_a_group_has_one_algorithm_and_one_environment(tmp_path: Path) -> None:
    write_run(tmp_path, 1, [1.0])
    write_run(tmp_path, 1, [1.0], algo="dqn")
    write_run(tmp_path, 1, [1.0], env_id="Acrobot-v1")
    with pytest.raises(
        RunDirectoryError, match="mixes dqn on CartPole-v1, ppo on Acrobot-v1, ppo on CartPole-v1: give"
    ):
        load_group(tmp_path)
    name = tmp_path.name
    labels = [group.label for group in load_groups([tmp_path])]
    assert labels == [f"{name}: dqn on CartPole-v1", f"{name}: ppo on Acrobot-v1", f"{name}: ppo on CartPole-v1"]


def test_directories_of_the_same_name_keep_their_paths_as_labels(tmp_path: Path) -> None:
    places = [write_group(tmp_path / name / "runs", [1.0]) for name in "ab"]
    places.append(write_group(tmp_path / "other", [1.0]))
    assert [group.label for group in load_groups(places)] == [str(places[0]), str(places[1]), "other"]


def test_where_there_is_nothing_to_read_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"nowhere is not a directory: give a run directory"):
        load_group(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match=r"no finished runs below .*: train some first"):
        load_group(tmp_path)
    write_run(tmp_path, 2, [2.0], status="running")
    with pytest.raises(RunDirectoryError, match=r"no finished runs below .* \(left out: .*seed2.* \(running\)\)"):
        load_groups([tmp_path])


def test_a_run_without_evaluations_has_no_score(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, 1, []))
    assert run.final_return is None
    with pytest.raises(RunDirectoryError, match="no evaluations: train with eval_episodes above 0"):
        run.score()


METADATA = (
    '{"algo": "ppo", "env_id": "CartPole-v1", "seed": 2, "status": "completed", "global_step": 1000, '
    '"total_timesteps": 1000, "metrics": {}}'
)


def damaged(tmp_path: Path, name: str, text: str) -> RunGroup:
    write_run(tmp_path, 1, [1.0])
    (write_run(tmp_path, 2, [2.0]) / name).write_text(text)
    return load_group(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("metadata.json", "{", "is not a run directory"),
        ("metadata.json", "{}", "cannot be read: KeyError: 'algo'"),
        ("metrics.jsonl", "5\n", "cannot be read"),
        ("metrics.jsonl", '{"time": 1}\n', "no line of metrics.jsonl can be read"),
        ("metadata.json", METADATA.replace("{}", "[1]"), "the metrics in metadata.json are not a JSON object"),
        ("config.yaml", "a: [", "cannot be read: ConfigError"),
    ],
)
def test_a_damaged_run_is_left_out_by_name(tmp_path: Path, name: str, text: str, reason: str) -> None:
    group = damaged(tmp_path, name, text)
    assert group.seeds == (1,)
    (note,) = group.notes
    assert note.startswith("left out: ")
    assert "seed2" in note
    assert reason in note
    assert "\n" not in note


def test_damaged_lines_of_a_log_cost_only_themselves(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, 1, [1.0, 2.0, 3.0])
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = '{"step": 2000, "eval/mean_reward": "2.0"}'
    odd = ["\x00", "5", "[" * 9_999, '{"step": true}', '{"step": "2000"}', '{"time": 1}', '{"step": 2000']
    path.write_text("\n".join([*lines[:4], *odd, *lines[4:]]) + "\n")
    (run,) = load_group(tmp_path).runs
    assert run.evaluation.steps.tolist() == [1_000.0, 3_000.0]
    assert run.training.steps.tolist() == [1_000.0, 2_000.0, 3_000.0]


def test_values_that_were_not_finite_are_gaps_and_the_later_line_of_a_step_counts(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, 1, [1.0, float("nan"), 3.0])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "eval/mean_reward": 9.0}\n')
    curve = load_run(run_dir).evaluation
    assert curve.steps.tolist() == [1_000.0, 3_000.0]
    assert curve.values.tolist() == [9.0, 3.0]


def test_reading_results_does_not_import_torch() -> None:
    modules = loaded_by("from rl_training.results import load_group; import rl_training.results.report.page")
    assert "numpy" in modules
    assert not {"torch", "gymnasium", "matplotlib", "PIL"} & modules
