"""Studies: promotion by hand-worked numbers, samplers without state, exact continuation, and an honest result."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos import result_of
from conftest import TINY_PPO, MakeConfig, wait_until

from rl_training import TrainConfig, tune
from rl_training.cli import main
from rl_training.errors import ConfigError, RunDirectoryError, TrainingInterrupted
from rl_training.experiment.runs import context_of, find_runs, read_metadata
from rl_training.experiment.search_space import SearchSpace, read_space
from rl_training.experiment.sources import Layer
from rl_training.experiment.studies import StudySettings, Trial, TrialRun, read_settings, read_study
from rl_training.groups.halving import find_best, find_last_promotion, find_promotion
from rl_training.groups.observer import SilentStudyObserver
from rl_training.groups.suggesting import suggest
from rl_training.groups.tuning import TuneResult, resume_study

SPACE: dict[str, Any] = {
    "learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"},
    "gamma": {"low": 0.9, "high": 0.999, "scale": "one_minus_log"},
    "update_epochs": [1, 2],
}
CONFIG = {"total_timesteps": 100_000, "seed": 3}


@pytest.fixture
def tiny(make_config: MakeConfig) -> TrainConfig:
    return make_config(
        env_id="CartPole-v1", total_timesteps=288, num_envs=2, algo_kwargs=TINY_PPO, compile="off", trackers=()
    )


def make_trial(number: int, *values: float, rung: int | None = None, failure: str | None = None) -> Trial:
    run = TrialRun(seed=1, run_dir=f"run{number}", values=values)
    reached = max(len(values) - 1, 0) if rung is None else rung
    params = {"learning_rate": 1e-3 * (1 + number % 5), "gamma": 0.95, "update_epochs": 1}
    return Trial(number=number, params=params, rung=reached, runs=(run,), failure=failure)


def test_the_best_third_of_a_rung_is_promoted() -> None:
    trials = [make_trial(0, 5.0), make_trial(1, 9.0), make_trial(2, 7.0)]
    assert find_promotion(trials[:2], 3, 3) is None  # a third of two is none
    assert find_promotion(trials, 3, 3) == trials[1]
    trials[1] = make_trial(1, 9.0, rung=1)  # promoted, and still training
    assert find_promotion(trials, 3, 3) is None
    trials += [make_trial(3, 8.0), make_trial(4, 1.0), make_trial(5, 2.0)]
    assert find_promotion(trials, 3, 3) == trials[3]  # the second of six


def test_a_promotion_to_a_higher_rung_comes_first_and_failed_trials_never_count() -> None:
    trials = [make_trial(number, float(number), float(-number)) for number in range(3)]
    trials += [make_trial(3, 50.0, failure="NaN"), make_trial(4, 40.0)]
    assert find_promotion(trials, 3, 3) == trials[0]  # the best of three at the second rung
    assert find_best(trials) == trials[0]


def test_one_trial_is_trained_to_the_end_even_if_there_are_too_few_for_a_promotion() -> None:
    trials = [make_trial(0, 1.0), make_trial(1, 2.0)]
    assert find_last_promotion(trials, 2) == trials[1]
    assert find_last_promotion([make_trial(0, 1.0, 1.0)], 2) is None
    assert find_best([make_trial(0)]) is None


def test_rungs_divide_the_budget() -> None:
    settings = StudySettings(config=CONFIG, space={}, seeds_per_trial=2, confirm=3)
    assert settings.budgets == [11_112, 33_334, 100_000]
    assert (settings.trial_seeds, settings.confirmation_seeds) == ([3, 4], [5, 6, 7])


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_a_choice_depends_on_the_seed_and_the_trials_alone(sampler: Any, tiny: TrainConfig) -> None:
    space = read_space(
        Layer("space", SPACE), tiny.model_copy(update={"algo_kwargs": {**TINY_PPO, **dict.fromkeys(SPACE)}})
    )
    settings = StudySettings(config=CONFIG, space=SPACE, sampler=sampler, rungs=2)
    trials: list[Trial] = []
    for number in range(16):
        params = suggest(settings, space, trials)
        assert params == suggest(settings, space, trials)
        assert 1e-4 <= params["learning_rate"] <= 1e-2
        assert 0.9 <= params["gamma"] <= 0.999
        assert params["update_epochs"] in (1, 2)
        trials.append(make_trial(number, -abs(params["learning_rate"] - 2e-3)).model_copy(update={"params": params}))
    assert len({trial.params["learning_rate"] for trial in trials}) == 16
    reordered = SearchSpace(dict(reversed(space.parameters.items())))
    assert suggest(settings, reordered, trials) == suggest(settings, space, trials)
    other = settings.model_copy(update={"seed": 1})
    assert suggest(other, space, trials) != suggest(settings, space, trials)


def test_tpe_searches_where_good_trials_are(tiny: TrainConfig) -> None:
    space = read_space(
        Layer("space", {"learning_rate": {"low": 1e-6, "high": 1.0, "scale": "log"}}),
        tiny.model_copy(update={"algo_kwargs": {"learning_rate": 1.0}}),
    )
    settings = StudySettings(config=CONFIG, space={}, rungs=1)
    trials: list[Trial] = []
    for number in range(40):
        params = suggest(settings, space, trials)
        trials.append(
            make_trial(number, -abs(float(f"{params['learning_rate']:e}".split("e")[1]) + 3)).model_copy(
                update={"params": params}
            )
        )
    late = [trial.params["learning_rate"] for trial in trials[20:]]
    assert sum(1e-4 < rate < 1e-2 for rate in late) > len(late) / 2  # a third of the range would be drawn by chance


def run_tiny(config: TrainConfig, **options: Any) -> TuneResult:
    return tune(config, SPACE, **{"jobs": 1, "trials": 4, "episodes": 2, "confirm": 0, **options})


@pytest.mark.slow
def test_a_promoted_trial_ends_with_the_weights_of_a_straight_run(tiny: TrainConfig, tmp_path: Path) -> None:
    result = run_tiny(tiny)
    best = result.record.trials[result.record.best_trial or 0]
    assert best.status(3) == "completed"
    assert len(best.values) == 3
    promoted = result.study_dir / best.runs[0].run_dir
    straight = tmp_path / "straight.yaml"
    config = yaml.safe_load((promoted / "config.yaml").read_text())
    straight.write_text(yaml.safe_dump({**config, "output_dir": str(tmp_path / "straight")}))
    assert main(["train", "--config", str(straight)]) == 0
    (context,) = find_runs(tmp_path / "straight")
    (weights, _, digests), (expected, _, expected_digests) = result_of(promoted), result_of(context.run_dir)
    assert {name: digest for name, digest in weights.items() if "algorithm" in name} == {
        name: digest for name, digest in expected.items() if "algorithm" in name
    }
    assert expected_digests.items() <= digests.items()  # a pause adds a checkpoint, and so a digest


def test_a_study_uses_its_budgets_and_describes_its_trials(tiny: TrainConfig) -> None:
    result = run_tiny(tiny, seeds_per_trial=2, rungs=2)
    assert [row["trial"] for row in result.trials] == [0, 1, 2, 3]
    assert sorted(row["status"] for row in result.trials) == ["completed", "paused", "paused", "paused"]
    # 288 / 3 = 96 env steps end after three rollouts of 32; two seeds per trial
    assert [row["steps"] for row in result.trials if row["status"] == "paused"] == [192] * 3
    assert result.record.steps == 3 * 192 + 576
    assert result.record.status == "completed"
    assert (result.study_dir / "optuna.journal").exists()
    assert result.best_config is not None
    assert (
        result.best_config.algo_kwargs["gamma"] == result.record.trials[result.record.best_trial or 0].params["gamma"]
    )


@pytest.mark.slow
def test_the_best_config_is_compared_with_the_start_on_new_seeds(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_tiny(tiny, trials=2, rungs=1, confirm=2)
    found = result.confirmation
    assert found is not None
    assert found["verdict"] == "undecided"
    assert found["a"]["seeds"] == found["b"]["seeds"] == [8, 9]  # the trials have seed 7
    text = (result.study_dir / "best.yaml").read_text()
    assert text.startswith(f"# Trial {result.record.best_trial} of 2 in {result.study_dir.name}")
    assert "# On new seeds, with A the starting config: Undecided" in text
    argv = ["train", "--config", str(result.study_dir / "best.yaml"), "--output-dir", str(tmp_path / "again")]
    assert main([*argv, "--total-timesteps", "64"]) == 0
    capsys.readouterr()


def has_begun(runs: Path, trial: str) -> bool:
    return any(runs.glob(f"*/*{trial}/checkpoints/step_*.pt"))


@pytest.fixture(scope="module")
def straight_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainConfig(
        algo="ppo",
        env_id="CartPole-v1",
        total_timesteps=288,
        num_envs=2,
        algo_kwargs=TINY_PPO,
        compile="off",
        trackers=(),
        checkpoint_interval=32,
        output_dir=tmp_path_factory.mktemp("straight"),
    )
    return run_tiny(config, trials=5).study_dir


def tune_argv(straight_study: Path, output_dir: Path) -> list[str]:
    settings = read_settings(straight_study)
    config, space = output_dir / "config.yaml", output_dir / "space.yaml"
    config.write_text(yaml.safe_dump({**settings.config, "output_dir": str(output_dir / "runs")}))
    space.write_text(yaml.safe_dump(settings.space))
    options = ["--trials", "5", "--episodes", "2", "--confirm", "0", "--jobs", "1"]
    return [sys.executable, "-m", "rl_training", "tune", "--config", str(config), "--space", str(space), *options]


@pytest.mark.slow
def test_a_study_that_is_killed_again_and_again_ends_like_one_that_was_not(
    straight_study: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(tune_argv(straight_study, tmp_path), stderr=subprocess.DEVNULL)
    for reached in ("trial0001", "trial0003"):
        wait_until(partial(has_begun, tmp_path / "runs", reached))
        process.kill()
        process.wait()
        (study_dir,) = (tmp_path / "runs").iterdir()
        command = [sys.executable, "-m", "rl_training", "tune", "resume", str(study_dir)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert process.wait(300) == 0
    assert read_study(study_dir).trials == read_study(straight_study).trials
    assert read_study(study_dir).best_trial == read_study(straight_study).best_trial


@pytest.mark.slow
def test_an_interrupted_study_saves_its_trials_and_is_resumed(straight_study: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(tune_argv(straight_study, tmp_path), stderr=subprocess.PIPE, text=True)
    wait_until(partial(has_begun, tmp_path / "runs", "trial0001"))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=150)
    assert process.returncode == 130
    (study_dir,) = (tmp_path / "runs").iterdir()
    assert f"continue with: rl-training tune resume {study_dir}" in errors
    assert read_study(study_dir).status == "interrupted"
    assert main(["resume", str(study_dir)]) == 0
    assert read_study(study_dir).trials == read_study(straight_study).trials


def test_a_resumed_study_can_have_more_trials(straight_study: Path, tmp_path: Path) -> None:
    study_dir = shutil.copytree(straight_study, tmp_path / "study")
    result = resume_study(study_dir, trials=6)
    before, after = read_study(straight_study).trials, result.record.trials
    assert [trial.params for trial in after[:5]] == [trial.params for trial in before]
    assert after[5].values
    assert read_settings(study_dir).trials == 6
    with pytest.raises(ConfigError, match="trials=3: the study has 6 already"):
        resume_study(study_dir, trials=3)


def test_a_trial_that_fails_does_not_end_the_study(tiny: TrainConfig) -> None:
    """A learning rate of 1e20 gives gradients that are not finite; both kinds of trials are drawn."""
    space = {"learning_rate": [1e-3, 1e20], "gamma": [0.9, 0.99]}
    result = tune(tiny, space, jobs=1, trials=4, rungs=1, episodes=2, confirm=0, sampler="grid")
    assert [row["status"] for row in result.trials] == ["completed", "completed", "failed", "failed"]
    failed = result.record.trials[2]
    assert "NonFiniteUpdateError" in (failed.failure or "")
    assert read_metadata(context_of(result.study_dir / failed.runs[0].run_dir))["status"] == "failed"
    assert result.record.best_trial in (0, 1)


@pytest.mark.slow
def test_a_study_whose_first_trials_all_fail_ends_with_their_reason(tiny: TrainConfig) -> None:
    broken = tiny.model_copy(update={"best_metric": "success_rate"})
    with pytest.raises(RunDirectoryError, match=r"5 trials in a row failed.*'success_rate' is not in the evaluation"):
        run_tiny(broken, trials=8, rungs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "trials=0: "),
        (["--sampler", "tpee"], "sampler='tpee': "),
        (["--sampler", "grid"], "learning_rate: the grid sampler needs a list of values"),
        (["--rungs", "9", "--total-timesteps", "100"], "total_timesteps=100 is too small for 9 rungs: lower rungs"),
        (["--storage", "nonsense://x"], "storage='nonsense://x' cannot be opened"),
        (["--jobs", "none"], "--jobs none: "),
        (["--space", "missing.yaml"], "missing.yaml: cannot be read"),
    ],
)
def test_wrong_options_are_one_line_and_leave_nothing_behind(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert main(["tune", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(runs), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not runs.exists()


def test_a_study_can_only_be_resumed_with_options_that_fit(
    straight_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "resume", str(straight_study), "--sampler", "random"]) == 2
    assert main(["tune", "continue", str(straight_study)]) == 2
    assert main(["resume", str(straight_study), "--total-timesteps", "999"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "can only be resumed with --trials, --on, --jobs and --trust" in first
    assert "give options for a new study, or `tune resume STUDY`" in second
    assert "is a study: it can only be resumed with --on, --jobs and --trust" in third


def test_a_completed_study_is_left_alone(straight_study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in straight_study.iterdir() if path.is_file()}
    assert main(["tune", "resume", str(straight_study)]) == 0
    assert "best config:" in capsys.readouterr().out
    assert resume_study(straight_study).best_config is not None
    assert {path: path.read_bytes() for path in straight_study.iterdir() if path.is_file()} == before


def test_a_study_whose_settings_were_edited_is_refused(straight_study: Path, tmp_path: Path) -> None:
    study_dir = shutil.copytree(straight_study, tmp_path / "study")
    settings = study_dir / "study.yaml"
    settings.write_text(settings.read_text().replace("rungs: 3", "rungs: 2"))
    with pytest.raises(RunDirectoryError, match=r"study\.yaml was changed after the study had begun: undo the change"):
        resume_study(study_dir, trials=6)


def test_a_run_that_is_stopped_before_it_has_a_directory_only_interrupts_the_study(tiny: TrainConfig) -> None:
    """The first signal comes as soon as the study says that it begins."""

    class Impatient(SilentStudyObserver):
        def on_progress(self, record: Any, running: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match="continue with: rl-training tune resume"):
        run_tiny(tiny, observer=Impatient())
    (study_dir,) = tiny.output_dir.iterdir()
    assert read_study(study_dir).status == "interrupted"
    assert not any(trial.failure for trial in read_study(study_dir).trials)


@pytest.mark.slow
def test_a_confirmation_evaluates_as_many_episodes_as_the_trials(tiny: TrainConfig) -> None:
    result = run_tiny(tiny.model_copy(update={"eval_episodes": 0}), trials=1, rungs=1, confirm=2)
    assert result.confirmation is not None
    for path in (result.study_dir / "confirmation").glob("*/*/config.yaml"):
        assert yaml.safe_load(path.read_text())["eval_episodes"] == 2


def test_a_trial_records_the_values_that_it_trains_with(tiny: TrainConfig) -> None:
    """A rollout has 2 * num_steps transitions, so minibatches of 64 are lowered in some trials."""
    limited = {"low": 32, "high": 64, "scale": "powers_of_two", "at_most": "num_steps * num_envs"}
    space = {"num_steps": [16, 32], "minibatch_size": limited}
    result = tune(tiny, space, jobs=1, trials=4, rungs=1, episodes=1, confirm=0, sampler="grid")
    assert [(row["num_steps"], row["minibatch_size"]) for row in result.trials] == [
        (16, 32),
        (16, 32),
        (32, 32),
        (32, 64),
    ]
    for trial in result.record.trials:
        config = yaml.safe_load((result.study_dir / trial.runs[0].run_dir / "config.yaml").read_text())
        assert config["algo_kwargs"]["minibatch_size"] == trial.params["minibatch_size"]


HOLD = """
import sys, time
from pathlib import Path
from rl_training.experiment.locking import RunLock
run_dir, log = map(Path, sys.argv[1:])
run_dir.mkdir()
lock = RunLock(run_dir).acquire()
print(flush=True)
while not log.exists():
    time.sleep(0.05)
time.sleep(1.0)
lock.release()
"""


def test_a_trial_waits_for_the_process_of_a_study_that_was_killed(straight_study: Path, tmp_path: Path) -> None:
    study_dir = shutil.copytree(straight_study, tmp_path / "study")
    run_dir = study_dir / read_study(study_dir).trials[0].runs[0].run_dir.replace("trial0000", "trial0005")
    log = study_dir / "logs" / "trial0005_seed1.log"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run_dir), str(log)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        trial = resume_study(study_dir, trials=6).record.trials[5]
    assert trial.values
    assert not trial.failure
